/** The view of the stacks of all ranks, which is greyed when a rank has stopped or gone on since they were taken. */

import * as vscode from "vscode";
import { clusterName } from "../model/clusters";
import { clock, shortJob } from "../model/naming";
import { outdated, type Node } from "../model/node";
import type { StacksDocument } from "../model/records";
import { stacksTitle, stacksTree, stopsOf } from "../model/stacks";
import type { Clusters } from "./clusters";
import type { Devkit } from "./devkit";
import { report } from "./messages";
import { NodeTree } from "./trees";

interface Subject {
  readonly cluster: string;
  readonly job: string | undefined;
}

/** Stacks as they were taken. */
interface Taken {
  readonly of: Subject;
  readonly document: StacksDocument;
  readonly at: Date;
  readonly stops: string; // of `stopsOf`, before they were asked for
}

export class Stacks implements vscode.Disposable {
  private readonly tree = new NodeTree();
  private readonly view: vscode.TreeView<Node>;
  private last: Subject | undefined;
  private taken: Taken | undefined;
  private isOld = false; // stays so: a rank that stops again at the same place has moved in between

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
    const of = { cluster, job };
    this.last = of;
    await vscode.commands.executeCommand("devkit.stacks.focus");
    const words = ["stacks", ...(job ? ["--job", job] : [])];
    const stops = this.stops(of);
    const answer = await vscode.window.withProgress({ location: { viewId: "devkit.stacks" } }, async () =>
      this.devkit.json<StacksDocument>(words, await this.clusters.where(cluster)),
    );
    if (!answer.ok) {
      this.isOld = true; // what is shown is of an earlier question
      this.draw();
      void report(answer.problem);
      return;
    }
    this.taken = { of, document: answer.document, at: new Date(), stops };
    this.isOld = false;
    this.clustersChanged();
    this.draw();
  }

  async refresh(otherwise: string): Promise<void> {
    await this.show(this.last?.cluster ?? otherwise, this.last?.job);
  }

  /** Marks what is shown when it is no longer how the ranks stand. */
  clustersChanged(): void {
    if (this.taken && !this.isOld && this.stops(this.taken.of) !== this.taken.stops) {
      this.isOld = true;
      this.draw();
    }
  }

  private stops({ cluster, job }: Subject): string {
    return stopsOf(this.clusters.view(cluster), job);
  }

  private draw(): void {
    if (!this.taken) {
      return;
    }
    const { of, document, at } = this.taken;
    const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
    const nodes = stacksTree(document, folders);
    this.tree.set(this.isOld ? outdated(nodes) : nodes);
    const whose = of.job ? `job ${shortJob(of.job)}` : clusterName({ key: of.cluster });
    this.view.description = stacksTitle(whose, clock(at.getTime() / 1000, at), this.isOld);
  }
}
