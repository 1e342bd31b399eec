/** Where a worker's file may be on this machine: as it is, or by the end of its name in a folder of the workspace. */

import { withoutPrefix } from "./naming";

/** Best first. `file` may be absolute, of another machine, or relative as in a SPEC. */
export function localCandidates(file: string, folders: readonly string[]): string[] {
  const found: string[] = [];
  if (file.startsWith("/") || /^[A-Za-z]:[\\/]/.test(file)) {
    found.push(file);
  }
  const parts = withoutPrefix(file).split("/").filter(Boolean);
  for (const folder of folders) {
    for (let first = 0; first < parts.length; first++) {
      found.push([folder.replace(/\/+$/, ""), ...parts.slice(first)].join("/"));
    }
  }
  return [...new Set(found)];
}
