/** One job in the clusters view: its stopped ranks and its crashes. */

import type { ClusterView } from "./clusters";
import type { Setting } from "./clusterTree";
import { baseName, clip, clock, count, inOrder, shortPath, who } from "./naming";
import { code, COLORS, plain, type Node } from "./node";
import type { CrashRecord, PsDocument, StopRecord } from "./records";

const LONGEST_COMMAND = 60;
const LONGEST_MESSAGE = 80; // characters of an exception's message in a line

export function jobNode(cluster: ClusterView, ps: PsDocument, job: string, setting: Setting): Node {
  const stops = ps.stops.filter((stop) => stop.job_id === job);
  const crashes = cluster.crashes.filter((crash) => crash.job_id === job);
  const running = ps.workers.filter((worker) => worker.job_id === job && worker.connected).length;
  const lost = new Set(ps.workers.filter((worker) => !worker.connected).map((worker) => worker.worker_id));
  const command = cluster.jobs.find((one) => one.job_id === job)?.command ?? "";
  const subject = { cluster: cluster.key, job };
  const states = [stops.length ? "stopped" : "", running ? "running" : "ended"].filter(Boolean);
  return {
    id: `job:${cluster.key}:${job}`,
    context: ["job", ...states].join("."),
    label: command ? shortCommand(command, setting.folders) : `Job ${job}`,
    description: [command ? `job ${job}` : "", running ? count(running, "process") : "ended"]
      .filter(Boolean)
      .join(" · "),
    tooltip: command ? code(command, "sh") : plain(`Job ${job}`),
    icon: { id: running ? "run-all" : "history" },
    expanded: true,
    subject,
    children: [
      ...stoppedGroup(subject, stops, lost, setting),
      ...crashGroup(subject, crashes, setting),
      ...calm(subject, stops, running),
    ],
  };
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
      label: "Nothing is stopped",
      description: "attach, and the breakpoints of the editor are armed in all ranks",
      tooltip: "Attach to the job: breakpoints in the editor's gutter are then armed in its running processes.",
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
      label: "Stopped",
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
  const parts = [where, reason(stop), `since ${clock(stop.since, setting.now)}`];
  if (stop.attached) {
    parts.push(`${stop.attached} attached`);
  }
  if (isLost) {
    parts.push("connection lost");
  }
  return {
    id: `stop:${subject.cluster}:${stop.id}`,
    context: "stop",
    label: who(stop),
    description: parts.join(" · "),
    tooltip: stopTooltip(stop, where),
    icon: isLost
      ? { id: "debug-disconnect", color: COLORS.odd }
      : stop.reason === "exception"
        ? { id: "flame", color: COLORS.crash }
        : { id: "debug-pause", color: COLORS.stopped },
    click: "devkit.attachStop",
    spoken: `${who(stop)}, stopped at ${where}`,
    subject: { ...subject, stop, place: { file: stop.file, line: stop.line } },
    children: [],
  };
}

/** Why it is stopped; the message of an exception too. */
export function reason(stop: StopRecord): string {
  if (stop.exception) {
    return clip(`${stop.exception.type}: ${stop.exception.message}`, LONGEST_MESSAGE);
  }
  return stop.reason;
}

function stopTooltip(stop: StopRecord, where: string): string {
  const lines = [
    `**${plain(who(stop))}** in \`${stop.function}\``,
    `${plain(where)} · ${plain(reason(stop))}`,
    `${plain(stop.node_ip)} · pid ${stop.pid}${stop.thread ? ` · thread ${plain(stop.thread)}` : ""}`,
    `stop ${plain(stop.id)}${stop.breakpoint ? `, breakpoint ${plain(stop.breakpoint)}` : ""}`,
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
    description: [message, crash.file ? where : "", clock(crash.time, setting.now)].filter(Boolean).join(" · "),
    tooltip: [
      `**${plain(who(crash))}** in \`${crash.function}\``,
      code(`${crash.exception.type}: ${crash.exception.message}`),
      `${plain(crash.node_ip)} · pid ${crash.pid} · crash ${plain(crash.id)}`,
    ].join("\n\n"),
    icon: { id: "flame", color: COLORS.crash },
    click: "devkit.openCrash",
    spoken: `${who(crash)}, ${message}`,
    subject: { ...subject, crash, place: { file: crash.file, line: crash.line } },
    children: caused.map((other) => crashNode(subject, other, rest, setting)),
  };
}
