/** Debug configurations of type `devkit`, and the command line of the adapter that each one means. */

import { count, shortJob, who } from "./naming";
import type { CrashRecord, PsDocument, StopRecord } from "./records";

export const TYPE = "devkit";

export interface DevkitConfiguration {
  readonly type: string;
  readonly request: string;
  readonly name: string;
  readonly address?: string; // a dashboard's URL; devkit's own choice by default
  readonly id?: string;
  readonly thread?: string; // of the stop `id`: the session follows it to its later stops
  readonly all?: boolean;
  readonly job?: string;
  readonly ranks?: string;
  readonly crash?: string;
  readonly pipe?: string; // of a child: where its parent listens
  readonly underParent?: boolean; // of a child too
  readonly childEvents?: boolean; // of a parent: it tells of its children, and starts none by itself
  readonly program?: string;
  readonly command?: readonly string[];
  readonly args?: readonly string[];
  readonly cwd?: string;
}

function attach(name: string, address: string | undefined): DevkitConfiguration {
  return { type: TYPE, request: "attach", name, ...(address ? { address } : {}) };
}

export function stopConfiguration(stop: StopRecord, address?: string): DevkitConfiguration {
  return { ...attach(who(stop), address), id: stop.id, thread: threadOf(stop) };
}

/** What a session that was started at this stop follows; `devkit dap --all` tells its children the same. */
export function threadOf(stop: StopRecord): string {
  return `${stop.worker_id}/${stop.thread}`;
}

export function crashConfiguration(crash: CrashRecord, address?: string): DevkitConfiguration {
  return { ...attach(`Crash: ${crash.exception.type} in ${who(crash)}`, address), crash: crash.id };
}

export function allConfiguration(job?: string, address?: string, ranks?: string): DevkitConfiguration {
  const base = attach(job ? `Job ${shortJob(job)}: all ranks` : "All ranks", address);
  return { ...base, all: true, ...(job ? { job } : {}), ...(ranks ? { ranks } : {}) };
}

/** How the session over all ranks of a job is called while it runs: `Job 05: 3 of 4 ranks paused`. */
export function parentName(job: string, ps: PsDocument): string {
  const ranks = ps.workers.filter((one) => one.job_id === job && one.connected && one.rank !== null);
  const stopped = new Set(ps.stops.filter((one) => one.job_id === job).map((one) => one.worker_id));
  const paused = ranks.filter((one) => stopped.has(one.worker_id)).length;
  const counted = ranks.length ? `${paused} of ${count(ranks.length, "rank")} paused` : `${stopped.size} paused`;
  return `Job ${shortJob(job)}: ${counted}`;
}

export function launchConfiguration(program: string, address?: string): DevkitConfiguration {
  const where = address ? { address } : {};
  return { type: TYPE, request: "launch", name: "devkit: current file", program, ...where };
}

/** What a launch.json begins with, and what the editor offers to add to one. */
export function initialConfigurations(): DevkitConfiguration[] {
  return [
    { type: TYPE, request: "launch", name: "devkit: current file", program: "${file}" },
    { type: TYPE, request: "attach", name: "devkit: all ranks", all: true },
  ];
}

/** Whether it is said what to debug; else the user is asked. */
export function isWhole(one: Partial<DevkitConfiguration>): boolean {
  if (one.pipe) {
    return true;
  }
  if (one.request === "launch") {
    return Boolean(one.program) || Boolean(one.command?.length);
  }
  return Boolean(one.id) || Boolean(one.all) || Boolean(one.crash);
}

/** The arguments of devkit that make the adapter of this configuration. The token is never among them. */
export function adapterArguments(one: DevkitConfiguration): string[] {
  const words = ["dap", ...subject(one)];
  return one.address ? [...words, "--address", one.address] : words;
}

function subject(one: DevkitConfiguration): string[] {
  if (one.request === "launch") {
    return ["--launch"];
  }
  if (one.crash) {
    return ["--crash", one.crash];
  }
  if (one.id) {
    return ["--id", one.id];
  }
  const job = one.job ? ["--job", one.job] : [];
  const ranks = one.ranks ? ["--ranks", one.ranks] : [];
  return ["--all", ...job, ...ranks];
}

/** Whether a session stands for many ranks: it arms breakpoints, evaluates and moves for all. */
export function isParent(one: Partial<DevkitConfiguration>): boolean {
  return !one.pipe && !one.underParent && !one.crash && (one.all === true || one.request === "launch");
}

/** The event in which a parent tells of a child; its body is the child's configuration. */
export const CHILD_EVENT = "devkitChild";

/** The event in which it tells that its cluster is out of reach, once for all ranks. */
export const LOST_EVENT = "devkitLost";

/** What a parent is told beside the user's configuration: the extension starts its children. */
export function withChildEvents<Configuration extends Partial<DevkitConfiguration>>(
  given: Configuration,
): Configuration {
  return isParent(given) ? { ...given, childEvents: true } : given;
}
