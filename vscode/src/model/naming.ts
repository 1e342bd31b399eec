/** How ranks, files and times are called when a person reads them. */

export interface Participant {
  readonly id: string;
  readonly role: string;
  readonly rank: number | null;
}

// Where Ray unpacks a job's code, and where packages are installed: the beginning says nothing to a reader.
const UNPACKED = /^.*\/(?:working_dir_files|py_modules_files)\/_ray_pkg_[0-9a-f]+\//;
const INSTALLED = /^.*\/(?:site|dist)-packages\//;
const STANDARD = /^.*\/lib(?:64)?\/python3\.\d+\//;

/** Ranks as a person writes them: `0-2,5`. */
export function rankList(ranks: Iterable<number>): string {
  const runs: [number, number][] = [];
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) {
      last[1] = rank;
    } else {
      runs.push([rank, rank]);
    }
  }
  const words = runs.map(([first, last]) => {
    if (first === last) {
      return `${first}`;
    }
    return last === first + 1 ? `${first},${last}` : `${first}-${last}`;
  });
  return words.join(",");
}

/** One participant: `rank 1 · Worker`, `driver`. */
export function who(one: Pick<Participant, "role" | "rank">): string {
  const role = one.role || "worker";
  return one.rank === null ? role : `rank ${one.rank} · ${role}`;
}

/** Several, as short as can be: `ranks 0-2`, `Actor rank 0; Critic rank 1`, `boom a1b2-1`. */
export function members(some: readonly Participant[], among: readonly Participant[] = some): string {
  const counts = new Map<string, number>();
  for (const one of among) {
    counts.set(key(one), (counts.get(key(one)) ?? 0) + 1);
  }
  const isPlain = (one: Participant): boolean => one.rank !== null && counts.get(key(one)) === 1;
  const isOneRole = new Set(among.map((one) => one.role)).size <= 1;
  const parts: string[] = [];
  for (const role of [...new Set(some.filter(isPlain).map((one) => one.role))].sort()) {
    const ranks = some.filter((one) => isPlain(one) && one.role === role).map((one) => one.rank ?? 0);
    const word = `rank${ranks.length > 1 ? "s" : ""} ${rankList(ranks)}`;
    parts.push(isOneRole || !role ? word : `${role} ${word}`);
  }
  for (const one of some.filter((each) => !isPlain(each))) {
    const isAlone = one.rank === null && counts.get(key(one)) === 1;
    parts.push(isAlone ? one.role || "worker" : `${who(one)} ${one.id}`);
  }
  return parts.join("; ");
}

function key(one: Participant): string {
  return JSON.stringify([one.role, one.rank]);
}

/** Sorts by role, then by rank, then by id. */
export function inOrder(a: Participant, b: Participant): number {
  return compare(a.role, b.role) || (a.rank ?? -1) - (b.rank ?? -1) || compare(a.id, b.id);
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** A file as the reader knows it: below a folder of the workspace, below a package, else its name and its folder's. */
export function shortPath(file: string, folders: readonly string[] = []): string {
  for (const folder of folders) {
    const root = folder.replace(/\/+$/, "") + "/";
    if (file.startsWith(root)) {
      return file.slice(root.length);
    }
  }
  const inside = withoutPrefix(file);
  const parts = inside.split("/");
  return inside.startsWith("/") && parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : inside;
}

/** Without the folder that a job was unpacked to, or a package installed. */
export function withoutPrefix(file: string): string {
  return file.replace(UNPACKED, "").replace(INSTALLED, "").replace(STANDARD, "");
}

/** The last part of a path. */
export function baseName(file: string): string {
  return file.split(/[\\/]/).at(-1) ?? file;
}

/** A job's number without the zeros that Ray writes behind it: `05000000` is `05`. */
export function shortJob(job: string): string {
  return /^[0-9a-f]{8}$/.test(job) ? job.replace(/(?:00){1,3}$/, "") : job;
}

/** `3 stops`, `1 crash`. */
export function count(number: number, noun: string): string {
  const plural = /(s|sh|ch)$/.test(noun) ? "es" : "s";
  return `${number} ${noun}${number === 1 ? "" : plural}`;
}

/** A time of day, with the date if it is not today. It stays as it is while it is shown, and so does the list. */
export function clock(seconds: number, now: Date): string {
  const then = new Date(seconds * 1000);
  const two = (value: number): string => `${value}`.padStart(2, "0");
  const time = `${two(then.getHours())}:${two(then.getMinutes())}:${two(then.getSeconds())}`;
  const isToday = then.toDateString() === now.toDateString();
  return isToday ? time : `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())} ${time}`;
}

/** One line of at most `most` characters. */
export function clip(text: string, most: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}
