/** A line of a tree view, as data; `editor/trees.ts` makes the editor's items of these. */

import type { BreakpointState, CrashRecord, StopRecord } from "./records";

export interface Icon {
  readonly id: string; // a codicon
  readonly color?: string; // of the editor's theme
}

export interface Place {
  readonly file: string;
  readonly line: number;
}

/** What a node is about; commands take it from here. */
export interface Subject {
  readonly cluster?: string; // a cluster's key
  readonly job?: string;
  readonly stop?: StopRecord;
  readonly crash?: CrashRecord;
  readonly breakpoint?: BreakpointState;
  readonly expression?: string;
  readonly text?: string; // what "Copy Value" copies
  readonly place?: Place;
}

export interface Node {
  readonly id: string; // the same as long as it is the same thing: the editor keeps selection and expansion by it
  readonly context: string; // for `when` clauses: viewItem
  readonly label: string;
  readonly description?: string;
  readonly tooltip?: string; // Markdown
  readonly icon?: Icon;
  readonly expanded?: boolean; // at first
  readonly click?: string; // a command, called with the node
  readonly spoken?: string; // for screen readers, where the label alone does not tell
  readonly outdated?: boolean; // shown greyed: it was so, and may not be any more
  readonly subject: Subject;
  readonly children: readonly Node[];
}

export const COLORS = {
  stopped: "debugIcon.pauseForeground",
  crash: "errorForeground",
  odd: "list.warningForeground",
  breakpoint: "debugIcon.breakpointForeground",
  unverified: "debugIcon.breakpointUnverifiedForeground",
  fine: "testing.iconPassed",
  outdated: "disabledForeground",
} as const;

/** As they were when last seen: greyed, and of their commands only the one that opens the source is left. */
export function outdated(nodes: readonly Node[]): Node[] {
  return nodes.map((node): Node => {
    const { click: _click, icon, ...rest } = node;
    return {
      ...rest,
      context: "outdated",
      ...(icon ? { icon: { id: icon.id, color: COLORS.outdated } } : {}),
      ...(node.subject.place ? { click: "devkit.openPlace" } : {}),
      spoken: `${node.spoken ?? node.label}, as last seen`,
      outdated: true,
      children: outdated(node.children),
    };
  });
}

/** Text that Markdown shows as it is. */
export function plain(text: string): string {
  return text.replace(/[\\`*_{}[\]()#+\-.!|<>~&]/g, "\\$&");
}

/** Text as a block of code: a fence that is longer than any in it. */
export function code(text: string, language = ""): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((found) => found[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}
