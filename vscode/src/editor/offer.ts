/** Offers a session to who sets a breakpoint in Python while a job runs under devkit, and nothing would arm it. */

import * as vscode from "vscode";
import { debugChoices } from "../model/choices";
import { shortJob } from "../model/naming";
import { Offers } from "../model/offers";
import type { AllRanks } from "./allRanks";
import type { Clusters } from "./clusters";
import { startSession } from "./debugging";

const ATTACH = "Attach to All Ranks";

export function registerOffer(clusters: Clusters, ranks: AllRanks): vscode.Disposable {
  const offers = new Offers();
  return vscode.debug.onDidChangeBreakpoints(async ({ added }) => {
    const choice = added.some(isPython) && !ranks.hasParent ? offers.next(debugChoices(clusters.views, [])) : undefined;
    if (!choice) {
      return;
    }
    const job = shortJob(choice.configuration.job ?? "");
    const text = `Job ${job} runs under devkit. Attach to it to arm your breakpoints.`;
    if ((await vscode.window.showInformationMessage(text, ATTACH)) === ATTACH) {
      await startSession(choice.configuration);
    }
  });
}

function isPython(one: vscode.Breakpoint): boolean {
  return one.enabled && one instanceof vscode.SourceBreakpoint && one.location.uri.path.endsWith(".py");
}
