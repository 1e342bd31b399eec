/** "Breakpoint for Ranks...": asks for ranks, role and condition, and writes them into the editor's breakpoint. */

import * as vscode from "vscode";
import { formatTarget, parseTarget, rankProblem, roleProblem, targetWords, type Target } from "../model/targets";

/** Where the command was called: on the gutter, or from the palette at the cursor. */
export interface GutterArgument {
  readonly lineNumber?: number; // from 1
  readonly uri?: vscode.Uri;
}

const STEPS = 3;

export async function breakpointForRanks(
  argument: GutterArgument | undefined,
  roles: readonly string[],
): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  const uri = argument?.uri ?? editor?.document.uri;
  const line = argument?.lineNumber !== undefined ? argument.lineNumber - 1 : editor?.selection.active.line;
  if (!uri || line === undefined) {
    return;
  }
  const before = breakpointAt(uri, line);
  const known = parseTarget(before?.condition ?? "") ?? { role: "", ranks: "", condition: before?.condition ?? "" };
  const target = await ask(known, roles);
  if (!target) {
    return;
  }
  const location = new vscode.Location(uri, new vscode.Position(line, 0));
  const condition = formatTarget(target) || undefined;
  if (before) {
    vscode.debug.removeBreakpoints([before]);
  }
  vscode.debug.addBreakpoints([
    new vscode.SourceBreakpoint(location, true, condition, before?.hitCondition, before?.logMessage),
  ]);
  vscode.window.setStatusBarMessage(`Breakpoint on line ${line + 1}: ${targetWords(target)}`, 5000);
}

function breakpointAt(uri: vscode.Uri, line: number): vscode.SourceBreakpoint | undefined {
  return vscode.debug.breakpoints.find(
    (one): one is vscode.SourceBreakpoint =>
      one instanceof vscode.SourceBreakpoint &&
      one.location.uri.toString() === uri.toString() &&
      one.location.range.start.line === line,
  );
}

async function ask(known: Target, roles: readonly string[]): Promise<Target | undefined> {
  const ranks = await vscode.window.showInputBox({
    title: `Breakpoint for Ranks (1/${STEPS})`,
    prompt: "Ranks to pause, e.g. 0,2:4 (empty: all)",
    placeHolder: "0,2:4",
    value: known.ranks,
    validateInput: rankProblem,
  });
  if (ranks === undefined) {
    return undefined;
  }
  const role = await askRole(known.role, roles);
  if (role === undefined) {
    return undefined;
  }
  const condition = await vscode.window.showInputBox({
    title: `Breakpoint for Ranks (${STEPS}/${STEPS})`,
    prompt: "Pause only if this Python expression is true (empty: always)",
    placeHolder: "step == 3",
    value: known.condition,
  });
  return condition === undefined ? undefined : { ranks: ranks.replace(/\s+/g, ""), role, condition: condition.trim() };
}

async function askRole(known: string, roles: readonly string[]): Promise<string | undefined> {
  const title = `Breakpoint for Ranks (2/${STEPS})`;
  const any = { label: "Any role", role: "" };
  const other = { label: "$(edit) Other...", role: undefined };
  const named = [...new Set([...(known ? [known] : []), ...roles])].map((role) => ({ label: role, role }));
  const chosen = await vscode.window.showQuickPick([...(known ? [...named, any] : [any, ...named]), other], {
    title,
    placeHolder: "Role to pause: an actor's class or name",
  });
  if (!chosen || chosen.role !== undefined) {
    return chosen?.role;
  }
  const typed = await vscode.window.showInputBox({
    title,
    prompt: "Actor class or name; * and ? are wildcards",
    value: known,
    validateInput: roleProblem,
  });
  return typed?.trim();
}
