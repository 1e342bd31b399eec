/** The clusters view: clusters > jobs > stopped ranks, crashes, breakpoints. */

import { clusterName, LOCAL, type ClusterView } from "./clusters";
import { hasFailed, jobNode } from "./jobTree";
import { baseName, clock, count, members, shortPath, who } from "./naming";
import { COLORS, outdated, plain, type Icon, type Node } from "./node";
import { isRefused, type Problem } from "./problems";
import type { BreakpointState, PsDocument } from "./records";

/** What the tree is drawn with. */
export interface Setting {
  readonly folders: readonly string[]; // of the workspace
  readonly now: Date;
}

export function clusterTree(clusters: readonly ClusterView[], setting: Setting): Node[] {
  return clusters.map((cluster) => clusterNode(cluster, setting));
}

function clusterNode(cluster: ClusterView, setting: Setting): Node {
  const { key } = cluster;
  return {
    id: `cluster:${key}`,
    context: key === LOCAL ? "cluster.local" : "cluster",
    label: clusterName(cluster),
    description: describe(cluster),
    tooltip: tooltip(cluster),
    icon: clusterIcon(cluster),
    expanded: true,
    subject: { cluster: key },
    children: childrenOf(cluster, setting),
  };
}

function childrenOf(cluster: ClusterView, setting: Setting): Node[] {
  const { document, lastKnown, problem } = cluster.watch;
  if (document) {
    return contents(cluster, document, setting);
  }
  const before = lastKnown ? outdated(contents(cluster, lastKnown, setting)) : [];
  return [...(problem ? problemNodes(cluster.key, problem) : []), ...before];
}

function describe(cluster: ClusterView): string {
  const { watch } = cluster;
  const where = cluster.key === LOCAL && cluster.url ? cluster.url.replace(/^https?:\/\//, "") : "";
  return [where, state(cluster)].filter(Boolean).join(" · ") || (watch.phase === "starting" ? "connecting…" : "");
}

function state(cluster: ClusterView): string {
  const { document, problem, phase } = cluster.watch;
  if (document) {
    const stops = document.stops.length ? `${document.stops.length} paused` : "";
    return [stops, phase === "live" ? "" : "reconnecting…"].filter(Boolean).join(" · ");
  }
  return problem ? problemName(problem).toLowerCase() : "connecting…";
}

/** What is wrong, in the two or three words that even a narrow view has room for. */
function problemName(problem: Problem): string {
  switch (problem.kind) {
    case "token":
      return isRefused(problem) ? "Wrong token" : "Token required";
    case "unreachable":
      return "Not reachable";
    case "absent":
      return "Gone";
    case "idle":
      return "No job";
    case "missing":
      return "No devkit";
    case "failed":
      return "Error";
  }
}

function clusterIcon(cluster: ClusterView): Icon {
  const { document, problem } = cluster.watch;
  if (document || problem === null || problem.kind === "idle") {
    return { id: "server-environment" };
  }
  return problem.kind === "token" ? { id: "key", color: COLORS.odd } : { id: "debug-disconnect", color: COLORS.odd };
}

function tooltip(cluster: ClusterView): string {
  const { document, problem } = cluster.watch;
  const head = `**${plain(clusterName(cluster))}**${cluster.url ? `\n\n${plain(cluster.url)}` : ""}`;
  if (problem && !document) {
    return `${head}\n\n${plain(problem.error)}\n\n${plain(problem.hint)}`;
  }
  return document ? `${head}\n\n${count(document.workers.length, "process")} under devkit` : head;
}

/** What is wrong, and what to do about it. The hint about a token names a variable, which is no use in an editor. */
function problemNodes(key: string, problem: Problem): Node[] {
  const isIdle = problem.kind === "idle";
  const isToken = problem.kind === "token";
  const error: Node = {
    id: `problem:${key}`,
    context: "problem",
    label: problemName(problem),
    description: problem.error,
    tooltip: [problem.error, isToken ? "" : problem.hint].filter(Boolean).map(plain).join("\n\n"),
    icon: isIdle ? { id: "info" } : { id: "error", color: COLORS.crash },
    subject: { cluster: key },
    children: [],
  };
  const hint: Node = {
    id: `hint:${key}`,
    context: "hint",
    label: problem.hint,
    tooltip: plain(problem.hint),
    icon: { id: "lightbulb" },
    subject: { cluster: key },
    children: [],
  };
  const remedy = isToken
    ? action(key, "Set Token...", "key", "devkit.setToken")
    : isIdle
      ? action(key, "Run the Current File", "debug-alt", "devkit.runFile")
      : action(key, "Retry", "refresh", "devkit.reconnect");
  return [error, ...(problem.hint && !isToken ? [hint] : []), remedy];
}

function action(key: string, label: string, icon: string, command: string): Node {
  return {
    id: `${command}:${key}`,
    context: "action",
    label,
    icon: { id: icon },
    click: command,
    subject: { cluster: key },
    children: [],
  };
}

function contents(cluster: ClusterView, ps: PsDocument, setting: Setting): Node[] {
  const jobs = jobIds(cluster, ps).map((job) => jobNode(cluster, ps, job, setting));
  const others = [...breakpointGroup(cluster.key, ps.breakpoints, setting), ...goneGroup(cluster.key, ps, setting)];
  return [...(jobs.length ? jobs : [nothing(cluster.key)]), ...others];
}

function nothing(key: string): Node {
  return {
    id: `nothing:${key}`,
    context: "hint",
    label: "No job",
    description: "start one with devkit run -- CMD",
    tooltip: "Only jobs started with `devkit run` or `devkit submit`, or from this editor, can be debugged.",
    icon: { id: "info" },
    subject: { cluster: key },
    children: [],
  };
}

/** Jobs with a process, a stop or a crash, and those that failed without one; the newest first. */
function jobIds(cluster: ClusterView, ps: PsDocument): string[] {
  const failed = cluster.jobs.filter(hasFailed);
  const all = [...ps.workers, ...ps.stops, ...cluster.crashes, ...failed].map((one) => one.job_id).filter(Boolean);
  return [...new Set(all)].sort().reverse();
}

/** Breakpoints hold for jobs that start later, too: they stand beside the jobs. */
function breakpointGroup(key: string, breakpoints: readonly BreakpointState[], setting: Setting): Node[] {
  if (!breakpoints.length) {
    return [];
  }
  return [
    {
      id: `breakpoints:${key}`,
      context: "breakpoints",
      label: "Breakpoints",
      description: `${breakpoints.length}`,
      icon: { id: "debug-breakpoint", color: COLORS.breakpoint },
      expanded: true,
      subject: { cluster: key },
      children: breakpoints.map((one) => breakpointNode(key, one, setting)),
    },
  ];
}

function breakpointNode(key: string, one: BreakpointState, setting: Setting): Node {
  const isArmed = one.armed > 0;
  const icon: Icon = one.error
    ? { id: "warning", color: COLORS.odd }
    : isArmed
      ? { id: "debug-breakpoint", color: COLORS.breakpoint }
      : { id: "debug-breakpoint-unverified", color: COLORS.unverified };
  const place = placeOf(one.spec);
  return {
    id: `breakpoint:${key}:${one.id}`,
    context: "breakpoint",
    label: place ? `${baseName(place.file)}:${place.line}` : one.spec,
    description: breakpointState(one),
    tooltip: [
      plain(place ? one.spec.replace(place.file, shortPath(place.file, setting.folders)) : one.spec),
      plain(armed(one)),
      one.error && plain(`condition failed: ${one.error}`),
    ]
      .filter(Boolean)
      .join("\n\n"),
    icon,
    ...(place ? { click: "devkit.openPlace" } : {}),
    subject: { cluster: key, breakpoint: one, ...(place ? { place } : {}) },
    children: [],
  };
}

/** What keeps it from stopping anything comes first, else for whom it is. */
function breakpointState(one: BreakpointState): string {
  if (one.error) {
    return `condition failed: ${one.error}`;
  }
  const target = /^\s*\S.*?:\d+\s+(.*)$/s.exec(one.spec)?.[1] ?? "";
  const parts = one.armed ? [target, armed(one)] : [armed(one), target];
  return parts.filter(Boolean).join(" · ");
}

/** How far a breakpoint has come: `armed in 3 of 8, 2 hits`. */
export function armed(one: BreakpointState): string {
  const hits = one.hits ? `, ${count(one.hits, "hit")}` : "";
  const some = one.armed < one.workers ? ` (not in ${without(one)}: ${one.note})` : ` (${one.note})`;
  const note = !one.note ? "" : one.armed ? some : `: ${one.note}`;
  return `armed in ${one.armed} of ${one.workers}${hits}${note}`;
}

/** Who has not armed it, in a few words however many there are; an older hub says only how many. */
function without(one: BreakpointState): string {
  const missing = one.missing ?? [];
  if (!missing.length) {
    return count(one.workers - one.armed, "other process");
  }
  const ranked = missing.filter((each) => each.rank !== null).map((each) => ({ ...each, id: "" }));
  const others = new Map<string, number>();
  for (const each of missing.filter(({ rank }) => rank === null)) {
    others.set(each.role || "worker", (others.get(each.role || "worker") ?? 0) + 1);
  }
  const named = ranked.length ? [members(ranked)] : [];
  for (const [role, number] of others) {
    named.push(role === "driver" && number === 1 ? "the driver" : count(number, `${role} process`));
  }
  return named.length > 1 ? `${named.slice(0, -1).join(", ")} and ${named.at(-1)}` : `${named[0]}`;
}

/** File and line of a SPEC; a SPEC by name has none. */
export function placeOf(spec: string): { file: string; line: number } | undefined {
  const found = /^\s*(\S.*?):(\d+)(?=\s|$)/.exec(spec);
  return found?.[1] && found[2] ? { file: found[1], line: Number(found[2]) } : undefined;
}

const GONE_SHOWN = 20;

/** Stops that are over, and why: a rank that vanished from the list has a reason. */
function goneGroup(key: string, ps: PsDocument, setting: Setting): Node[] {
  const notable = ps.gone.filter((one) => one.reason !== "continued");
  if (!notable.length) {
    return [];
  }
  const newest = [...notable].sort((a, b) => b.time - a.time).slice(0, GONE_SHOWN);
  const children = newest.map((one): Node => ({
    id: `gone:${key}:${one.id}:${one.time}`,
    context: "gone",
    label: who(one),
    description: `${one.reason} · ${clock(one.time, setting.now)}`,
    tooltip: `${plain(members([one]))}: ${plain(one.reason)}`,
    icon: { id: "circle-slash" },
    click: "devkit.openPlace",
    subject: { cluster: key, place: { file: one.file, line: one.line } },
    children: [],
  }));
  return [
    {
      id: `gone:${key}`,
      context: "goneGroup",
      label: "No Longer Paused",
      description: `${notable.length}`,
      icon: { id: "history" },
      subject: { cluster: key },
      children,
    },
  ];
}
