/** The clusters view with its badge, the status bar's count of stops, and what the empty view says. */

import * as vscode from "vscode";
import { emptyState, isLooking, visible } from "../model/clusters";
import { clusterTree } from "../model/clusterTree";
import { count } from "../model/naming";
import type { Node } from "../model/node";
import type { Clusters } from "./clusters";
import type { Devkit } from "./devkit";
import { NodeTree } from "./trees";

export class ClustersView implements vscode.Disposable {
  private readonly tree = new NodeTree();
  private readonly view: vscode.TreeView<Node>;
  private readonly status: vscode.StatusBarItem;
  private found: (() => void) | undefined; // ends the view's progress

  constructor(
    private readonly clusters: Clusters,
    private readonly devkit: Devkit,
  ) {
    this.view = vscode.window.createTreeView("devkit.clusters", { treeDataProvider: this.tree });
    this.view.onDidChangeVisibility(({ visible: isVisible }) => isVisible && this.clusters.retryWaiting());
    this.status = vscode.window.createStatusBarItem("devkit.stops", vscode.StatusBarAlignment.Left);
    this.status.name = "Ray DevKit";
    this.status.command = "devkit.clusters.focus";
  }

  dispose(): void {
    this.found?.();
    this.view.dispose();
    this.status.dispose();
    this.tree.dispose();
  }

  show(): void {
    const all = this.clusters.views;
    const views = visible(all);
    this.progress(all.some(isLooking));
    void vscode.commands.executeCommand("setContext", "devkit.state", emptyState(this.devkit.installed?.kind, all));
    const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
    this.tree.set(clusterTree(views, { folders, now: new Date() }));
    const stops = views.reduce((sum, view) => sum + (view.watch.document?.stops.length ?? 0), 0);
    const words = `${count(stops, "rank")} paused`;
    this.view.badge = stops ? { value: stops, tooltip: words } : undefined;
    this.status.text = `$(debug-pause) ${stops} paused`;
    this.status.tooltip = `Ray DevKit: ${words}`;
    if (stops) {
      this.status.show();
    } else {
      this.status.hide();
    }
    void vscode.commands.executeCommand("setContext", "devkit.hasStops", stops > 0);
  }

  /** Which of the welcome texts fits, when it has been looked for devkit. */
  async welcome(): Promise<void> {
    await this.devkit.check();
    this.show();
  }

  /** The bar at the top of the view, as long as nothing is known of a cluster. */
  private progress(isWanted: boolean): void {
    if (!isWanted) {
      this.found?.();
      this.found = undefined;
    } else if (!this.found) {
      const until = new Promise<void>((resolve) => (this.found = resolve));
      void vscode.window.withProgress({ location: { viewId: "devkit.clusters" } }, () => until);
    }
  }
}
