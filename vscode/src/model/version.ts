/** Which devkit this extension needs, and what to say when it is missing or too old. */

export const MINIMAL_VERSION = "0.1.0"; // the one place
export const PACKAGE = "ray-devkit"; // as pip knows it

export type Installed =
  | { readonly kind: "fine"; readonly version: string }
  | { readonly kind: "old"; readonly version: string }
  | { readonly kind: "missing"; readonly why: string };

/** From what `devkit --version` prints. */
export function judge(output: string): Installed {
  const version = /^devkit (\d+(?:\.\d+)*\S*)/m.exec(output)?.[1];
  if (!version) {
    return { kind: "missing", why: "the command found is not ray-devkit's" };
  }
  return { kind: compareVersions(version, MINIMAL_VERSION) < 0 ? "old" : "fine", version };
}

/** Negative: a is older. A release candidate or a development version counts as its release. */
export function compareVersions(a: string, b: string): number {
  const left = numbers(a);
  const right = numbers(b);
  for (let index = 0; index < Math.max(left.length, right.length); index++) {
    const difference = (left[index] ?? 0) - (right[index] ?? 0);
    if (difference) {
      return difference;
    }
  }
  return 0;
}

function numbers(version: string): number[] {
  const release = /^\d+(?:\.\d+)*/.exec(version)?.[0] ?? "0";
  return release.split(".").map(Number);
}

/** The command that installs or updates it: with the Python of the workspace where there is one. */
export function installCommand(python: string | undefined): string {
  const quoted = python && /[\s'"$]/.test(python) ? `"${python}"` : python;
  return `${quoted ?? "python3"} -m pip install --upgrade "${PACKAGE}>=${MINIMAL_VERSION}"`;
}

export function complaint(installed: Exclude<Installed, { kind: "fine" }>, command: string): string {
  if (installed.kind === "old") {
    return `Ray DevKit needs devkit ${MINIMAL_VERSION} or later; ${command} is version ${installed.version}.`;
  }
  return `Ray DevKit needs the devkit command: ${installed.why}.`;
}
