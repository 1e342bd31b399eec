/** What the user is told: one message with what is wrong, and a button that does something about it. */

import * as vscode from "vscode";
import type { Problem } from "../model/problems";

/** One message; for a missing devkit with the command that installs it. */
export async function report(problem: Problem): Promise<void> {
  if (problem.kind === "missing") {
    const install = "Install in Terminal";
    const choose = "Set the Path";
    const message = `${problem.error} To fix it, run: ${problem.hint}`;
    const chosen = await vscode.window.showErrorMessage(message, install, choose);
    if (chosen === install) {
      await vscode.commands.executeCommand("devkit.install");
    } else if (chosen === choose) {
      await vscode.commands.executeCommand("workbench.action.openSettings", "devkit.command");
    }
    return;
  }
  const showLog = "Show Log";
  const text = problem.hint ? `${problem.error}. Hint: ${problem.hint}` : problem.error;
  if ((await vscode.window.showErrorMessage(text, showLog)) === showLog) {
    await vscode.commands.executeCommand("devkit.showLog");
  }
}

export function say(text: string): void {
  void vscode.window.showInformationMessage(text);
}
