/** Values of an expression on all stopped ranks: equal ones together, the odd ones marked. */

import type { ClusterView } from "./clusters";
import { clip, inOrder, members } from "./naming";
import { code, COLORS, plain, type Node } from "./node";
import type { EvalDocument, EvalResult } from "./records";

export interface ValueGroup {
  readonly name: string; // the ranks
  readonly text: string; // the value, or what went wrong
  readonly failed: boolean;
  readonly odd: boolean; // differs from most
}

/** What is known of one expression. */
export interface Watched {
  readonly expression: string;
  readonly document?: EvalDocument;
  readonly problem?: string; // why there are no values
  readonly pending?: boolean;
}

/** Equal outcomes together, the commonest first; odd is who is outside of the largest group, if one is the largest. */
export function groupsOf(results: readonly EvalResult[]): ValueGroup[] {
  const found = new Map<string, EvalResult[]>();
  for (const result of [...results].sort(inOrder)) {
    const outcome = JSON.stringify([result.error, result.error === null ? result.value : null]);
    found.set(outcome, [...(found.get(outcome) ?? []), result]);
  }
  const groups = [...found.values()].sort((a, b) => b.length - a.length);
  const hasMost = groups.length > 1 && (groups[0]?.length ?? 0) > (groups[1]?.length ?? 0);
  return groups.map((group, number): ValueGroup => {
    const error = group[0]?.error ?? null;
    return {
      name: members(group, results),
      text: error ?? group[0]?.value ?? "",
      failed: error !== null,
      odd: hasMost && number > 0,
    };
  });
}

/** Why there are no values: that no rank is paused is said only of clusters that answer. */
export function noValues(clusters: readonly ClusterView[]): string | undefined {
  const isLost = clusters.some(({ watch }) => watch.lastKnown?.stops.length);
  return isLost ? "the cluster does not answer" : undefined;
}

const LONGEST_VALUE = 200; // characters in a line of its own
const SHORT_VALUE = 40; // beside others

export function valueTree(watched: readonly Watched[]): Node[] {
  return watched.map(expressionNode);
}

function expressionNode(one: Watched): Node {
  const groups = one.document ? groupsOf(one.document.results) : [];
  const odd = groups.filter((group) => group.odd);
  return {
    id: `value:${one.expression}`,
    context: "expression",
    label: one.expression,
    description: summary(one, groups),
    tooltip: tooltip(one, groups),
    icon: icon(one, groups, odd.length > 0),
    expanded: true,
    subject: { expression: one.expression, text: groups.map((group) => `${group.name}: ${group.text}`).join("\n") },
    children: groups.length > 1 ? groups.map((group) => groupNode(one.expression, group)) : [],
  };
}

function summary(one: Watched, groups: readonly ValueGroup[]): string {
  const [first] = groups;
  if (!first) {
    return one.problem ?? (one.pending ? "..." : "no rank is paused");
  }
  if (groups.length === 1) {
    return `${clip(first.text, LONGEST_VALUE)}  (${first.name})`;
  }
  const oddFirst = [...groups].sort((a, b) => Number(b.odd) - Number(a.odd));
  return oddFirst.map((group) => `${group.name}: ${clip(group.text, SHORT_VALUE)}`).join(" · ");
}

function icon(one: Watched, groups: readonly ValueGroup[], hasOdd: boolean): NonNullable<Node["icon"]> {
  if (!groups.length) {
    return { id: one.pending ? "loading~spin" : "dash" };
  }
  if (groups.every((group) => group.failed)) {
    return { id: "error", color: COLORS.crash };
  }
  return hasOdd || groups.length > 1 ? { id: "warning", color: COLORS.odd } : { id: "pass", color: COLORS.fine };
}

function tooltip(one: Watched, groups: readonly ValueGroup[]): string {
  const lines = groups.map((group) => `${plain(group.name)}${group.odd ? " (odd)" : ""}\n\n${code(group.text)}`);
  return [`**${plain(one.expression)}**`, ...lines].join("\n\n");
}

function groupNode(expression: string, group: ValueGroup): Node {
  const icon = group.failed
    ? { id: "error", color: COLORS.crash }
    : group.odd
      ? { id: "warning", color: COLORS.odd }
      : { id: "symbol-variable" };
  return {
    id: `value:${expression}:${group.name}`,
    context: "value",
    label: group.name,
    description: clip(group.text, LONGEST_VALUE),
    tooltip: code(group.text),
    icon,
    spoken: `${group.name}: ${clip(group.text, LONGEST_VALUE)}${group.odd ? ", differs from the rest" : ""}`,
    subject: { expression, text: group.text },
    children: [],
  };
}

/** The groups as Markdown, for a hover. */
export function valuesMarkdown(expression: string, results: readonly EvalResult[]): string {
  const rows = groupsOf(results).map((group) => {
    const mark = group.odd ? "$(warning) " : "";
    return `| ${mark}${plain(group.name)} | ${plain(clip(group.text, LONGEST_VALUE))} |`;
  });
  return [`| **${plain(clip(expression, 80))}** | |`, "|:--|:--|", ...rows].join("\n");
}
