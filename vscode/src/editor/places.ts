/** Opens a file of a worker at a line, where the file is on this machine too. */

import * as vscode from "vscode";
import type { Node } from "../model/node";
import { localCandidates } from "../model/places";

export async function openPlace(node: Node): Promise<void> {
  const place = node.subject.place;
  if (!place) {
    return;
  }
  const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
  for (const candidate of localCandidates(place.file, folders)) {
    const uri = vscode.Uri.file(candidate);
    if (await exists(uri)) {
      const line = Math.max(0, place.line - 1);
      await vscode.window.showTextDocument(uri, { selection: new vscode.Range(line, 0, line, 0) });
      return;
    }
  }
  void vscode.window.showWarningMessage(`${place.file} was found neither on this machine nor in the workspace.`);
}

async function exists(uri: vscode.Uri): Promise<boolean> {
  try {
    return (await vscode.workspace.fs.stat(uri)).type !== vscode.FileType.Directory;
  } catch {
    return false;
  }
}
