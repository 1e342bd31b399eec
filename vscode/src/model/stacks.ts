/** The stacks of all ranks: equal ones merged, the ranks that differ from the rest marked. */

import type { ClusterView } from "./clusters";
import { count, inOrder, rankList, shortPath, who } from "./naming";
import { COLORS, plain, type Node } from "./node";
import type { StackFrame, StackProcess, StackGroup, StacksDocument } from "./records";

/** What must not have changed for stacks to be true still: the stops, and that the cluster can be asked. */
export function stopsOf(cluster: ClusterView | undefined, job: string | undefined): string {
  const stops = cluster?.watch.document?.stops;
  if (!stops) {
    return "out of reach";
  }
  const ids = stops.filter((stop) => job === undefined || stop.job_id === job).map((stop) => stop.id);
  return JSON.stringify(ids.sort());
}

/** What the view is headed with: whose stacks, and when they were taken where that is no longer now. */
export function stacksTitle(whose: string, time: string, isOld: boolean): string {
  return isOld ? `as of ${time}, outdated · ${whose}` : `${time} · ${whose}`;
}

export function stacksTree(document: StacksDocument, folders: readonly string[]): Node[] {
  const odd = new Set(document.odd);
  const largest = new Map<string, StackGroup>();
  for (const group of document.groups) {
    const known = largest.get(group.role);
    if (!known || group.pids.length > known.pids.length) {
      largest.set(group.role, group);
    }
  }
  const isOdd = (group: StackGroup): boolean =>
    group !== largest.get(group.role) && group.ranks.some((rank) => odd.has(rank));
  const groups = [...document.groups].sort((a, b) => Number(isOdd(b)) - Number(isOdd(a)));
  const nodes = groups.map((group) => groupNode(group, isOdd(group), document, folders));
  const silent = document.ranks.filter((one) => one.error).map(silentNode);
  return [...nodes, ...silent, ...idleNodes(document)];
}

function groupNode(group: StackGroup, isOdd: boolean, document: StacksDocument, folders: readonly string[]): Node {
  const isIdle = group.frames.length === 0;
  const id = `stack:${group.role}:${group.pids.join(",")}`;
  const state = [
    isOdd ? "differs from the rest" : "",
    group.stopped ? "paused by devkit" : "",
    isIdle ? "idle: no code of the program is running" : "",
    group.pids.length > 1 ? count(group.pids.length, "process") : "",
  ];
  const processes = document.ranks.filter((one) => group.pids.includes(one.pid) && one.role === group.role);
  const frames = group.frames.map((frame, number) => frameNode(`${id}:${number}`, frame, folders));
  return {
    id,
    context: "stackGroup",
    label: groupName(group),
    description: state.filter(Boolean).join(" · "),
    tooltip: processes.map((one) => `${plain(who(one))}: ${plain(one.node_ip)} pid ${one.pid}`).join("\n\n"),
    icon: isOdd
      ? { id: "warning", color: COLORS.odd }
      : group.stopped
        ? { id: "debug-pause", color: COLORS.stopped }
        : { id: isIdle ? "circle-outline" : "layers" },
    expanded: !isIdle,
    subject: {},
    children: [...frames, ...processNodes(id, processes, folders)],
  };
}

/** `Worker ranks 0-2`; processes without a rank are told by their number. */
export function groupName(group: StackGroup): string {
  if (group.ranks.length) {
    return `${group.role} rank${group.ranks.length > 1 ? "s" : ""} ${rankList(group.ranks)}`.trim();
  }
  const name = group.role || "worker";
  return group.pids.length > 1 ? `${name} × ${group.pids.length}` : name;
}

function frameNode(id: string, frame: StackFrame, folders: readonly string[]): Node {
  return {
    id,
    context: "frame",
    label: frame.function,
    description: `${shortPath(frame.file, folders)}:${frame.line}`,
    tooltip: `${plain(frame.file)}:${frame.line}`,
    icon: { id: "debug-stackframe" },
    click: "devkit.openPlace",
    subject: { place: { file: frame.file, line: frame.line } },
    children: [],
  };
}

/** All threads of each process, folded: for who wants to see what a library waits for. */
function processNodes(id: string, processes: readonly StackProcess[], folders: readonly string[]): Node[] {
  const sorted = [...processes].sort((a, b) => inOrder({ ...a, id: `${a.pid}` }, { ...b, id: `${b.pid}` }));
  const [only, ...others] = sorted;
  if (!only) {
    return [];
  }
  const all: Node = {
    id: `${id}:threads`,
    context: "processes",
    label: "All threads",
    icon: { id: "list-tree" },
    subject: {},
    children: others.length ? sorted.map((one) => processNode(id, one, folders)) : threadNodes(id, only, folders),
  };
  return [all];
}

function processNode(id: string, one: StackProcess, folders: readonly string[]): Node {
  return {
    id: `${id}:process:${one.pid}`,
    context: "process",
    label: who(one),
    description: `${one.node_ip} pid ${one.pid}`,
    icon: { id: "server-process" },
    subject: {},
    children: threadNodes(id, one, folders),
  };
}

function threadNodes(id: string, one: StackProcess, folders: readonly string[]): Node[] {
  return one.threads.map((thread, number): Node => ({
    id: `${id}:thread:${one.pid}:${number}`,
    context: "thread",
    label: thread.name || `thread ${number + 1}`,
    icon: { id: "list-tree" },
    subject: {},
    children: thread.frames.map((frame, deep) =>
      frameNode(`${id}:thread:${one.pid}:${number}:${deep}`, frame, folders),
    ),
  }));
}

function silentNode(one: StackProcess): Node {
  return {
    id: `silent:${one.node_ip}:${one.pid}`,
    context: "silent",
    label: who(one),
    description: `no stack: ${one.error}`,
    tooltip: plain(one.error ?? ""),
    icon: { id: "error", color: COLORS.crash },
    subject: {},
    children: [],
  };
}

/** Processes of which nothing can be told: they are in no group and gave no error. */
function idleNodes(document: StacksDocument): Node[] {
  const grouped = new Set(document.groups.flatMap((group) => group.pids));
  const idle = document.ranks.filter((one) => !grouped.has(one.pid) && !one.error);
  if (!idle.length) {
    return [];
  }
  return [
    {
      id: "idle",
      context: "idle",
      label: "Idle",
      description: idle.map(who).join(", "),
      icon: { id: "circle-outline" },
      subject: {},
      children: [],
    },
  ];
}
