/** A breakpoint's target in its condition: `@Role[ranks] if condition`, in the grammar of devkit's SPECs. */

export interface Target {
  readonly role: string; // an actor's class or name; * and ? match as in a shell; empty: any
  readonly ranks: string; // Python's slice notation; empty: all
  readonly condition: string;
}

const TARGETED = /^\s*@\s*([^\s[\]@]*)(?:\[([^\]]*)\])?(?:\s+if\b\s*([\s\S]*))?\s*$/;
const ITEM = /^(?:\d+|\d*:\d*(?::\d*)?)$/;

/** A condition that begins with no `@` has no target. Undefined for one that can't be read. */
export function parseTarget(condition: string): Target | undefined {
  if (!condition.trimStart().startsWith("@")) {
    return { role: "", ranks: "", condition: condition.trim() };
  }
  const found = TARGETED.exec(condition);
  if (!found || (!found[1] && !found[2]?.trim())) {
    return undefined;
  }
  return { role: found[1] ?? "", ranks: (found[2] ?? "").replace(/\s+/g, ""), condition: (found[3] ?? "").trim() };
}

/** Writes what `parseTarget` reads back. */
export function formatTarget(target: Target): string {
  const ranks = target.ranks ? `[${target.ranks}]` : "";
  if (!target.role && !ranks) {
    return target.condition;
  }
  const condition = target.condition ? ` if ${target.condition}` : "";
  return `@${target.role}${ranks}${condition}`;
}

/** What is wrong with ranks that a user types; undefined: nothing. */
export function rankProblem(text: string): string | undefined {
  const ranks = text.replace(/\s+/g, "");
  if (!ranks) {
    return undefined;
  }
  for (const item of ranks.split(",")) {
    if (!ITEM.test(item)) {
      return `"${item}" is not a valid rank; use e.g. 1 or 0,2 or 2:6`;
    }
    if (/^\d*:\d*:0+$/.test(item)) {
      return `"${item}": the step can't be 0`;
    }
  }
  return undefined;
}

/** What is wrong with a role that a user types; undefined: nothing. */
export function roleProblem(text: string): string | undefined {
  return /[\s[\]@]/.test(text.trim()) ? "A role is an actor's class or name, without spaces or brackets" : undefined;
}

/** What the user sees beside a breakpoint: `rank 1 of Worker if step == 3`. */
export function targetWords(target: Target): string {
  const ranks = target.ranks ? `ranks ${target.ranks}` : "all ranks";
  const role = target.role ? ` of ${target.role}` : "";
  return `${ranks}${role}${target.condition ? ` if ${target.condition}` : ""}`;
}
