/**
 * The values of a name on all stopped ranks, where the mouse rests on it in a file in which a rank is stopped.
 *
 * While a session is open the editor shows that rank's own value first; this one comes with the Alt key.
 */

import * as vscode from "vscode";
import { localCandidates } from "../model/places";
import { valuesMarkdown } from "../model/values";
import type { AllRanks } from "./allRanks";
import type { Clusters } from "./clusters";
import { expressionRange } from "./values";

const KEYWORDS = new Set(
  (
    "False None True and as assert async await break class continue def del elif else except finally for from global " +
    "if import in is lambda nonlocal not or pass raise return try while with yield"
  ).split(" "),
);

export function registerHover(ranks: AllRanks, clusters: Clusters): vscode.Disposable {
  return vscode.languages.registerHoverProvider("python", {
    async provideHover(document, position) {
      const range = expressionRange(document, position);
      const expression = range && document.getText(range);
      if (!expression || KEYWORDS.has(expression) || !isStoppedIn(document.uri.fsPath, clusters)) {
        return undefined;
      }
      const answer = await ranks.evaluate(expression);
      if (!answer.ok || answer.document.results.every((result) => result.error !== null)) {
        return undefined;
      }
      const text = new vscode.MarkdownString(valuesMarkdown(expression, answer.document.results), true);
      return new vscode.Hover(text, range);
    },
  });
}

function isStoppedIn(path: string, clusters: Clusters): boolean {
  const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
  const files = new Set(clusters.views.flatMap((view) => view.watch.document?.stops.map((stop) => stop.file) ?? []));
  return [...files].some((file) => localCandidates(file, folders).includes(path));
}
