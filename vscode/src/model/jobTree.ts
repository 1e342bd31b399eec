/** One job in the clusters view: its stopped ranks and its crashes. */

import type { ClusterView } from "./clusters";
import type { Setting } from "./clusterTree";
import { baseName, clip, clock, count, inOrder, shortJob, shortPath, who } from "./naming";
import { code, COLORS, plain, type Icon, type Node } from "./node";
import type { CrashRecord, JobRecord, PsDocument, StopRecord } from "./records";

const LONGEST_COMMAND = 60;
const LONGEST_MESSAGE = 80; // characters of an exception's message in a line

export function jobNode(cluster: ClusterView, ps: PsDocument, job: string, setting: Setting): Node {
  const stops = ps.stops.filter((stop) => stop.job_id === job);
  const crashes = cluster.crashes.filter((crash) => crash.job_id === job);
  const running = ps.workers.filter((worker) => worker.job_id === job && worker.connected).length;
  const lost = new Set(ps.workers.filter((worker) => !worker.connected).map((worker) => worker.worker_id));
  const record = cluster.jobs.find((one) => one.job_id === job);
  const command = record?.command ?? "";
  const subject = { cluster: cluster.key, job };
  const states = [stops.length ? "stopped" : "", running ? "running" : "ended"].filter(Boolean);
  return {
    id: `job:${cluster.key}:${job}`,
    context: ["job", ...states].join("."),
    label: command ? shortCommand(command, setting.folders) : `Job ${shortJob(job)}`,
    description: [jobState(record, running), command ? `job ${shortJob(job)}` : ""].filter(Boolean).join(" · "),
    tooltip: jobTooltip(job, record),
    icon: jobIcon(record, running),
    expanded: true,
    subject,
    children: [
      ...stoppedGroup(subject, stops, lost, setting),
      ...crashGroup(subject, crashes, setting),
      ...calm(subject, stops, running),
    ],
  };
}

/** Whether its driver failed. Ray calls a driver that nobody submitted a success, whatever it did; devkit knows. */
export function hasFailed(record: JobRecord | undefined): boolean {
  return record?.status === "FAILED";
}

/** `FAILED, exit code 1`, `3 processes`, `ended`. */
function jobState(record: JobRecord | undefined, running: number): string {
  if (record && hasFailed(record)) {
    // An older devkit does not say the code.
    return typeof record.exit_code === "number" ? `FAILED, exit code ${record.exit_code}` : "FAILED";
  }
  return running ? count(running, "process") : "ended";
}

function jobIcon(record: JobRecord | undefined, running: number): Icon {
  return hasFailed(record) ? { id: "error", color: COLORS.crash } : { id: running ? "run-all" : "history" };
}

function jobTooltip(job: string, record: JobRecord | undefined): string {
  const command = record?.command ? code(record.command, "sh") : "";
  const why = record && hasFailed(record) ? plain(record.message) : "";
  return [command, plain(`Job ${job}`), why].filter(Boolean).join("\n\n");
}

interface JobSubject {
  readonly cluster: string;
  readonly job: string;
}

/** A command without the folders of its interpreter and of the workspace. */
export function shortCommand(command: string, folders: readonly string[] = []): string {
  const [first = "", ...rest] = command.split(" ");
  const words = rest.map((word) => (word.startsWith("/") ? shortPath(word, folders) : word));
  return clip([baseName(first), ...words].join(" "), LONGEST_COMMAND);
}

/** Nothing is stopped in a job that runs: what to do next. */
function calm(subject: JobSubject, stops: readonly StopRecord[], running: number): Node[] {
  if (stops.length || !running) {
    return [];
  }
  return [
    {
      id: `calm:${subject.cluster}:${subject.job}`,
      context: "hint",
      label: "No rank is paused",
      description: "attach to use breakpoints",
      tooltip: "Attach to the job to arm the editor's breakpoints in all of its running processes.",
      icon: { id: "debug-start" },
      click: "devkit.attachAll",
      subject,
      children: [],
    },
  ];
}

function stoppedGroup(
  subject: JobSubject,
  stops: readonly StopRecord[],
  lost: ReadonlySet<string>,
  setting: Setting,
): Node[] {
  if (!stops.length) {
    return [];
  }
  return [
    {
      id: `stops:${subject.cluster}:${subject.job}`,
      context: "stops",
      label: "Paused",
      description: `${stops.length}`,
      icon: { id: "debug-pause", color: COLORS.stopped },
      expanded: true,
      subject,
      children: [...stops].sort(inOrder).map((stop) => stopNode(subject, stop, lost.has(stop.worker_id), setting)),
    },
  ];
}

function stopNode(subject: JobSubject, stop: StopRecord, isLost: boolean, setting: Setting): Node {
  const where = `${shortPath(stop.file, setting.folders)}:${stop.line}`;
  const since = clock(stop.since, setting.now);
  // What tells this row from the next one comes first: a narrow view cuts the rest off. The tooltip has all of it.
  const parts = [
    isLost ? "connection lost" : "",
    `${baseName(stop.file)}:${stop.line}`,
    stop.exception ? reason(stop) : since,
  ];
  return {
    id: `stop:${subject.cluster}:${stop.id}`,
    context: "stop",
    label: who(stop),
    description: parts.filter(Boolean).join(" · "),
    tooltip: stopTooltip(stop, where, since),
    icon: isLost
      ? { id: "debug-disconnect", color: COLORS.odd }
      : stop.reason === "exception"
        ? { id: "flame", color: COLORS.crash }
        : { id: "debug-pause", color: COLORS.stopped },
    click: "devkit.attachStop",
    spoken: `${who(stop)}, paused at ${where}`,
    subject: { ...subject, stop, place: { file: stop.file, line: stop.line } },
    children: [],
  };
}

/** Why it is paused; with an exception's message. */
export function reason(stop: StopRecord): string {
  if (stop.exception) {
    return clip(`${stop.exception.type}: ${stop.exception.message}`, LONGEST_MESSAGE);
  }
  return stop.reason;
}

function stopTooltip(stop: StopRecord, where: string, since: string): string {
  const attached = stop.attached ? ` · ${count(stop.attached, "debugger")} attached` : "";
  const lines = [
    `**${plain(who(stop))}** in \`${stop.function}\``,
    `${plain(where)} · ${plain(reason(stop))} · since ${plain(since)}${attached}`,
    `${plain(stop.node_ip)} · pid ${stop.pid}${stop.thread ? ` · thread ${plain(stop.thread)}` : ""}`,
    `ID ${plain(stop.id)}${stop.breakpoint ? `, breakpoint ${plain(stop.breakpoint)}` : ""}`,
  ];
  return lines.join("\n\n");
}

function crashGroup(subject: JobSubject, crashes: readonly CrashRecord[], setting: Setting): Node[] {
  if (!crashes.length) {
    return [];
  }
  const ids = new Set(crashes.map((crash) => crash.id));
  const roots = crashes.filter((crash) => crash.root === null || !ids.has(crash.root));
  const newest = [...roots].sort((a, b) => b.time - a.time);
  return [
    {
      id: `crashes:${subject.cluster}:${subject.job}`,
      context: "crashes",
      label: "Crashes",
      description: `${roots.length}`,
      icon: { id: "error", color: COLORS.crash },
      expanded: true,
      subject,
      children: newest.map((crash) => crashNode(subject, crash, crashes, setting)),
    },
  ];
}

/** A crash; what it caused, other attempts and outer levels, stands below it. */
function crashNode(subject: JobSubject, crash: CrashRecord, all: readonly CrashRecord[], setting: Setting): Node {
  const where = `${shortPath(crash.file, setting.folders)}:${crash.line}`;
  const rest = all.filter((other) => other !== crash); // so that this ends, whatever the records say
  const caused = rest.filter((other) => other.root === crash.id).sort((a, b) => a.time - b.time);
  const message = clip(`${crash.exception.type}: ${crash.exception.message}`, LONGEST_MESSAGE);
  return {
    id: `crash:${subject.cluster}:${crash.id}`,
    context: "crash",
    label: who(crash),
    description: [crash.file ? `${baseName(crash.file)}:${crash.line}` : "", message].filter(Boolean).join(" · "),
    tooltip: [
      `**${plain(who(crash))}** in \`${crash.function}\``,
      code(`${crash.exception.type}: ${crash.exception.message}`),
      [crash.file ? plain(where) : "", plain(clock(crash.time, setting.now))].filter(Boolean).join(" · "),
      `${plain(crash.node_ip)} · pid ${crash.pid} · ID ${plain(crash.id)}`,
    ].join("\n\n"),
    icon: { id: "flame", color: COLORS.crash },
    click: "devkit.openCrash",
    spoken: `${who(crash)}, ${message}`,
    subject: { ...subject, crash, place: { file: crash.file, line: crash.line } },
    children: caused.map((other) => crashNode(subject, other, rest, setting)),
  };
}
