/** All commands of the extension, each a line that says which part does it. */

import * as vscode from "vscode";
import { addressOf, LOCAL } from "../model/clusters";
import type { Node } from "../model/node";
import { knownRoles } from "../model/choices";
import { allConfiguration, crashConfiguration, launchConfiguration, stopConfiguration } from "../model/sessions";
import type { AllRanks, Move } from "./allRanks";
import { breakpointForRanks, type GutterArgument } from "./breakpoints";
import type { ClusterCommands } from "./clusterCommands";
import type { Clusters } from "./clusters";
import type { ClustersView } from "./clustersView";
import { startSession } from "./debugging";
import type { Devkit } from "./devkit";
import { report, say } from "./messages";
import { openPlace } from "./places";
import type { SmokeTests } from "./smoke";
import type { Stacks } from "./stacks";
import type { Values } from "./values";

export interface Parts {
  readonly devkit: Devkit;
  readonly clusters: Clusters;
  readonly clusterCommands: ClusterCommands;
  readonly view: ClustersView;
  readonly ranks: AllRanks;
  readonly values: Values;
  readonly stacks: Stacks;
  readonly smoke: SmokeTests;
  readonly log: vscode.LogOutputChannel;
}

type Command = (node?: Node) => unknown;

export function registerCommands(parts: Parts): vscode.Disposable[] {
  const all: Record<string, Command> = { ...aboutClusters(parts), ...aboutStops(parts), ...aboutViews(parts) };
  const plain = Object.entries(all).map(([name, run]) => vscode.commands.registerCommand(`devkit.${name}`, run));
  const gutter = (argument?: GutterArgument): Promise<void> =>
    breakpointForRanks(argument, knownRoles(parts.clusters.views));
  return [...plain, vscode.commands.registerCommand("devkit.breakpointForRanks", gutter)];
}

function aboutClusters({ devkit, clusters, clusterCommands, view, log }: Parts): Record<string, Command> {
  return {
    addCluster: () => clusterCommands.add(),
    removeCluster: (node) => clusterCommands.remove(node),
    setToken: (node) => clusterCommands.setToken(node),
    startCluster: () => clusterCommands.start(),
    stopCluster: () => clusterCommands.stop(),
    reconnect: (node) => clusters.retry(node?.subject.cluster),
    refresh: async () => {
      devkit.forget();
      await view.welcome();
      clusters.retry();
    },
    install: () => {
      const terminal = vscode.window.createTerminal({ name: "Install devkit", cwd: devkit.folder });
      terminal.show();
      terminal.sendText(devkit.installCommand(), true);
    },
    showLog: () => log.show(),
  };
}

function aboutStops({ devkit, clusters, ranks }: Parts): Record<string, Command> {
  const address = (node?: Node): string | undefined => addressOf(node?.subject.cluster ?? ranks.cluster);
  const move = (command: Move) => () => ranks.move(command);
  return {
    attachStop: (node) => node && attachStop(ranks, node),
    attachAll: (node) => startSession(allConfiguration(node?.subject.job, address(node))),
    openCrash: (node) => node?.subject.crash && startSession(crashConfiguration(node.subject.crash, address(node))),
    continueStop: (node) => node?.subject.stop && ranks.resume(clusterKey(node), [node.subject.stop.id]),
    continueAll: (node) => ranks.continueAll(node?.subject.cluster ?? ranks.cluster, node?.subject.job),
    allContinue: move("continue"),
    allStepOver: move("next"),
    allStepInto: move("stepIn"),
    allStepOut: move("stepOut"),
    runFile: () => runFile(),
    attachTerminal: (node) => attachTerminal(devkit, clusters, node, ranks.cluster),
    clearBreakpoint: (node) => clearBreakpoint(devkit, clusters, node),
  };
}

function aboutViews({ ranks, values, stacks, smoke }: Parts): Record<string, Command> {
  return {
    openPlace: (node) => node && openPlace(node),
    copyText: (node) => node && vscode.env.clipboard.writeText(node.subject.text ?? node.label),
    addValue: () => values.add(),
    editValue: (node) => node && values.edit(node),
    removeValue: (node) => node && values.remove(node),
    removeAllValues: () => values.remove(),
    refreshValues: () => values.refresh(),
    showOnAllRanks: () => values.addSelection(),
    showStacks: (node) => stacks.show(node?.subject.cluster ?? ranks.cluster, node?.subject.job),
    refreshStacks: () => stacks.refresh(ranks.cluster),
    smoke: () => smoke.start(),
  };
}

/** A click on what a session follows already shows where it is; two sessions would only tell everything twice. */
async function attachStop(ranks: AllRanks, node: Node): Promise<void> {
  const { stop } = node.subject;
  if (stop && ranks.sessionOf(clusterKey(node), stop)) {
    await openPlace(node);
    await vscode.commands.executeCommand("workbench.view.debug");
  } else if (stop) {
    await startSession(stopConfiguration(stop, addressOf(clusterKey(node))));
  }
}

function clusterKey(node: Node): string {
  return node.subject.cluster ?? LOCAL;
}

async function runFile(): Promise<void> {
  const document = vscode.window.activeTextEditor?.document;
  if (document?.languageId !== "python" || document.isUntitled) {
    say("Open the Python file of a Ray program first.");
    return;
  }
  await document.save();
  await startSession(launchConfiguration(document.uri.fsPath));
}

/** `devkit attach` in a terminal. Started without a shell: nothing is quoted, the token stays in the environment. */
async function attachTerminal(
  devkit: Devkit,
  clusters: Clusters,
  node: Node | undefined,
  otherwise: string,
): Promise<void> {
  const where = await clusters.where(node?.subject.cluster ?? otherwise);
  const stop = node?.subject.stop;
  const terminal = vscode.window.createTerminal({
    name: stop ? `devkit attach ${stop.id}` : "devkit attach --all",
    shellPath: devkit.command,
    shellArgs: ["attach", ...(stop ? [stop.id] : ["--all"]), ...(where.address ? ["--address", where.address] : [])],
    cwd: devkit.folder,
    env: devkit.environment(where),
  });
  terminal.show();
}

async function clearBreakpoint(devkit: Devkit, clusters: Clusters, node: Node | undefined): Promise<void> {
  const id = node?.subject.breakpoint?.id;
  if (node && id) {
    const answer = await devkit.json(["break", "--clear", id], await clusters.where(clusterKey(node)));
    if (!answer.ok) {
      void report(answer.problem);
    }
  }
}
