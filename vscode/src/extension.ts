/** Ray DevKit for VS Code: makes the parts and connects them. */

import * as vscode from "vscode";
import { AllRanks } from "./editor/allRanks";
import { ClusterCommands } from "./editor/clusterCommands";
import { Clusters } from "./editor/clusters";
import { ClustersView } from "./editor/clustersView";
import { registerCommands } from "./editor/commands";
import { registerDebugging, Trackers } from "./editor/debugging";
import { Devkit } from "./editor/devkit";
import { registerHover } from "./editor/hover";
import { registerOffer } from "./editor/offer";
import { SmokeTests } from "./editor/smoke";
import { Stacks } from "./editor/stacks";
import { OutdatedDecorations } from "./editor/trees";
import { Tokens } from "./editor/tokens";
import { Values } from "./editor/values";

export function activate(context: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel("Ray DevKit", { log: true });
  const tokens = new Tokens(context.secrets);
  const devkit = new Devkit(log);
  const clusters = new Clusters(devkit, tokens, log);
  const view = new ClustersView(clusters, devkit);
  const ranks = new AllRanks(devkit, clusters);
  const values = new Values(ranks, context.workspaceState);
  const stacks = new Stacks(devkit, clusters);
  const smoke = new SmokeTests(devkit);
  const trackers = new Trackers(log);
  const clusterCommands = new ClusterCommands(devkit, clusters, tokens);
  const parts = { devkit, clusters, clusterCommands, view, ranks, values, stacks, smoke, log };
  context.subscriptions.push(log, devkit, clusters, view, ranks, values, stacks, smoke, trackers);
  context.subscriptions.push(...registerCommands(parts), ...registerDebugging(devkit, clusters, tokens, trackers));
  context.subscriptions.push(registerHover(ranks, clusters), registerOffer(clusters, ranks));

  let stops = "";
  const redraw = (): void => {
    view.show();
    stacks.clustersChanged();
    ranks.clustersChanged();
    const now = clusters.views.flatMap((one) => one.watch.document?.stops.map((stop) => stop.id) ?? []).join();
    if (now !== stops) {
      stops = now;
      values.refreshSoon();
    }
  };
  const reconfigure = (event: vscode.ConfigurationChangeEvent): void => {
    if (event.affectsConfiguration("devkit")) {
      devkit.forget();
      clusters.configure();
      clusters.retryWaiting();
      void view.welcome();
    }
  };
  context.subscriptions.push(
    vscode.window.registerFileDecorationProvider(new OutdatedDecorations()),
    clusters.onDidChange(redraw),
    trackers.onDidStop(() => values.refreshSoon()),
    vscode.workspace.onDidChangeConfiguration(reconfigure),
  );
  void view.welcome();
  clusters.configure();
}
