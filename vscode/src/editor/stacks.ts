/** The view of the stacks of all ranks. */

import * as vscode from "vscode";
import { clusterName } from "../model/clusters";
import { clock } from "../model/naming";
import type { Node } from "../model/node";
import type { StacksDocument } from "../model/records";
import { stacksTree } from "../model/stacks";
import type { Clusters } from "./clusters";
import type { Devkit } from "./devkit";
import { report } from "./messages";
import { NodeTree } from "./trees";

export class Stacks implements vscode.Disposable {
  private readonly tree = new NodeTree();
  private readonly view: vscode.TreeView<Node>;
  private last: { cluster: string; job: string | undefined } | undefined;

  constructor(
    private readonly devkit: Devkit,
    private readonly clusters: Clusters,
  ) {
    this.view = vscode.window.createTreeView("devkit.stacks", { treeDataProvider: this.tree, showCollapseAll: true });
  }

  dispose(): void {
    this.view.dispose();
    this.tree.dispose();
  }

  /** Of a job, of a cluster, or what was shown last. */
  async show(cluster: string, job?: string): Promise<void> {
    this.last = { cluster, job };
    await vscode.commands.executeCommand("devkit.stacks.focus");
    const words = ["stacks", ...(job ? ["--job", job] : [])];
    const answer = await vscode.window.withProgress({ location: { viewId: "devkit.stacks" } }, async () =>
      this.devkit.json<StacksDocument>(words, await this.clusters.where(cluster)),
    );
    if (!answer.ok) {
      this.tree.set([]);
      void report(answer.problem);
      return;
    }
    const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
    this.tree.set(stacksTree(answer.document, folders));
    const now = new Date();
    const time = clock(now.getTime() / 1000, now);
    this.view.description = `${time} · ${job ? `job ${job}` : clusterName({ key: cluster })}`;
  }

  async refresh(otherwise: string): Promise<void> {
    await this.show(this.last?.cluster ?? otherwise, this.last?.job);
  }
}
