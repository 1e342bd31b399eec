/** Where the devkit command may be: the setting, the workspace's .venv, the selected Python's folder, then PATH. */

export interface Surroundings {
  readonly setting: string; // devkit.command
  readonly folders: readonly string[]; // of the workspace
  readonly selectedPython?: string; // of the Python extension, if that is there
  readonly home: string;
  readonly windows: boolean;
}

/** In order; the last one is looked up on PATH. A setting is the only candidate: what the user says is meant. */
export function candidates(around: Surroundings): string[] {
  const setting = expand(around.setting.trim(), around);
  if (setting) {
    return [setting];
  }
  const program = around.windows ? "devkit.exe" : "devkit";
  const scripts = around.windows ? "Scripts" : "bin";
  const environments = around.folders.map((folder) => join(around, folder, ".venv", scripts, program));
  const selected = around.selectedPython ? [join(around, parent(around.selectedPython), program)] : [];
  return [...environments, ...selected, program];
}

/** The Python beside a devkit command, to install with; undefined for a bare name. */
export function pythonBeside(command: string, windows: boolean): string | undefined {
  const folder = parent(command);
  return folder === command ? undefined : `${folder}${windows ? "\\python.exe" : "/python"}`;
}

function expand(setting: string, around: Surroundings): string {
  const folder = around.folders[0] ?? "";
  return setting.replace(/^~(?=[\\/])/, () => around.home).replace(/\$\{workspaceFolder\}/g, () => folder);
}

function join(around: Surroundings, ...parts: string[]): string {
  return parts.join(around.windows ? "\\" : "/");
}

function parent(path: string): string {
  return path.replace(/[\\/][^\\/]*$/, "");
}
