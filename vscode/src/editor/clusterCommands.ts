/** Commands about clusters: add, remove, set a token, start one for debugging, stop it. */

import * as vscode from "vscode";
import { clusterName, dashboardUrl, LOCAL } from "../model/clusters";
import type { Node } from "../model/node";
import type { DebugCluster, StoppedDocument } from "../model/records";
import type { Clusters } from "./clusters";
import type { Devkit } from "./devkit";
import { report, say } from "./messages";
import type { Tokens } from "./tokens";

const SETTING = "clusters";

export class ClusterCommands {
  constructor(
    private readonly devkit: Devkit,
    private readonly clusters: Clusters,
    private readonly tokens: Tokens,
  ) {}

  async add(): Promise<void> {
    const typed = await vscode.window.showInputBox({
      title: "Add a Ray Cluster (1/2)",
      prompt: "The URL of its dashboard",
      placeHolder: "http://head:8265",
      ignoreFocusOut: true,
      validateInput: (text) => {
        const result = dashboardUrl(text);
        return "error" in result && text.trim() ? result.error : undefined;
      },
    });
    const result = dashboardUrl(typed ?? "");
    if (!("url" in result)) {
      return;
    }
    const token = await askToken("Add a Ray Cluster (2/2)", result.url);
    if (token === undefined) {
      return;
    }
    await this.tokens.set(result.url, token);
    const known = listed();
    if (!known.includes(result.url)) {
      await save([...known, result.url]);
    }
    this.clusters.retry(result.url);
  }

  async remove(node?: Node): Promise<void> {
    const key = node?.subject.cluster ?? (await this.pick("Remove a Cluster", (each) => each !== LOCAL));
    if (!key || key === LOCAL) {
      return;
    }
    await this.tokens.set(key, "");
    await save(
      listed().filter((text) => {
        const result = dashboardUrl(text);
        return "error" in result || result.url !== key;
      }),
    );
  }

  async setToken(node?: Node): Promise<void> {
    const key = node?.subject.cluster ?? (await this.pick("Set the Token of a Cluster", () => true));
    if (!key) {
      return;
    }
    const token = await askToken("Set the Token", clusterName({ key }));
    if (token !== undefined) {
      await this.tokens.set(key, token);
      this.clusters.retry(key);
    }
  }

  private async pick(title: string, fits: (key: string) => boolean): Promise<string | undefined> {
    const keys = this.clusters.views.map((view) => view.key).filter(fits);
    if (!keys.length) {
      say("No cluster is added yet: the command Ray DevKit: Add Cluster does that.");
      return undefined;
    }
    const items = keys.map((key) => ({ label: clusterName({ key }), key }));
    return items.length === 1 ? items[0]?.key : (await vscode.window.showQuickPick(items, { title }))?.key;
  }

  async start(): Promise<void> {
    const counts = ["1", "2", "4"].map((nodes) => ({
      label: nodes === "1" ? "One node" : `${nodes} nodes`,
      description: nodes === "1" ? "on this machine" : "simulated on this machine",
      nodes,
    }));
    const chosen = await vscode.window.showQuickPick(counts, { title: "Start a Debug Cluster" });
    if (!chosen) {
      return;
    }
    const answer = await withProgress("Starting a debug cluster", (onTalk) =>
      this.devkit.json<DebugCluster>(["debug-cluster", "--nodes", chosen.nodes], { onTalk }),
    );
    if (!answer.ok) {
      void report(answer.problem);
      return;
    }
    this.clusters.retry(LOCAL);
    const open = "Open the Dashboard";
    const { dashboard_url, gcs_address } = answer.document;
    const text = `Ray runs with debugging on: dashboard ${dashboard_url}, GCS ${gcs_address}.`;
    if ((await vscode.window.showInformationMessage(text, open)) === open) {
      await vscode.env.openExternal(vscode.Uri.parse(dashboard_url));
    }
  }

  async stop(): Promise<void> {
    const stop = "Stop It";
    const detail = "What devkit debug-cluster has started on this machine, with all jobs that run there.";
    if ((await vscode.window.showWarningMessage("Stop the debug cluster?", { modal: true, detail }, stop)) !== stop) {
      return;
    }
    const answer = await withProgress("Stopping the debug cluster", (onTalk) =>
      this.devkit.json<StoppedDocument>(["debug-cluster", "stop"], { onTalk }),
    );
    if (!answer.ok) {
      void report(answer.problem);
      return;
    }
    const names = answer.document.stopped.map((one) => one.name);
    say(names.length ? `Stopped: ${names.join(", ")}` : "No cluster started by devkit is running here.");
    this.clusters.retry(LOCAL);
  }
}

async function askToken(title: string, where: string): Promise<string | undefined> {
  const token = await vscode.window.showInputBox({
    title,
    prompt: `The token of ${where}, kept in the editor's secret storage; empty: none`,
    password: true,
    ignoreFocusOut: true,
  });
  return token?.trim();
}

function listed(): string[] {
  return vscode.workspace.getConfiguration("devkit").get<string[]>(SETTING, []);
}

/** Where the list already is: in the workspace's settings, else in the user's. */
async function save(urls: readonly string[]): Promise<void> {
  const settings = vscode.workspace.getConfiguration("devkit");
  const isOfWorkspace = settings.inspect(SETTING)?.workspaceValue !== undefined;
  const { Workspace, Global } = vscode.ConfigurationTarget;
  await settings.update(SETTING, urls, isOfWorkspace ? Workspace : Global);
}

function withProgress<Result>(
  title: string,
  work: (onTalk: (text: string) => void) => Promise<Result>,
): Thenable<Result> {
  return vscode.window.withProgress({ location: vscode.ProgressLocation.Notification, title }, (progress) =>
    work((text) => {
      const line = text.trim().split("\n").at(-1) ?? "";
      if (!/^(error|hint): /.test(line)) {
        progress.report({ message: line });
      }
    }),
  );
}
