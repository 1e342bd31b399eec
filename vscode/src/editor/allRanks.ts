/** All ranks of a job together: moved and asked through the session that stands for them, else through devkit. */

import * as vscode from "vscode";
import { LOCAL } from "../model/clusters";
import type { ContinueDocument, EvalDocument, StopRecord } from "../model/records";
import { allConfiguration, isParent, parentName, threadOf, TYPE } from "../model/sessions";
import { noValues } from "../model/values";
import type { Clusters } from "./clusters";
import { clusterOf, configurationOf } from "./debugging";
import type { Answer, Devkit } from "./devkit";
import { report } from "./messages";

export type Move = "continue" | "next" | "stepIn" | "stepOut";

export class AllRanks implements vscode.Disposable {
  private readonly sessions = new Map<string, vscode.DebugSession>();
  private readonly listeners: vscode.Disposable[];

  constructor(
    private readonly devkit: Devkit,
    private readonly clusters: Clusters,
  ) {
    this.listeners = [
      vscode.debug.onDidStartDebugSession((session) => {
        if (session.type === TYPE) {
          this.sessions.set(session.id, session);
          this.clustersChanged();
        }
      }),
      vscode.debug.onDidTerminateDebugSession((session) => this.sessions.delete(session.id)),
      vscode.debug.onDidChangeActiveDebugSession(() => this.showMoves()),
    ];
  }

  dispose(): void {
    this.listeners.forEach((one) => one.dispose());
  }

  /** A crash is no rank: nothing moves there. */
  private showMoves(): void {
    void vscode.commands.executeCommand("setContext", "devkit.canMove", this.active !== undefined);
  }

  private get active(): vscode.DebugSession | undefined {
    const session = vscode.debug.activeDebugSession;
    return session?.type === TYPE && !configurationOf(session).crash ? session : undefined;
  }

  /** The session that stands for many ranks: the active one's parent, else one that runs. */
  private get parent(): vscode.DebugSession | undefined {
    const near = this.active?.parentSession ?? this.active;
    const candidates = [...(near ? [near] : []), ...this.sessions.values()];
    return candidates.find((one) => isParent(configurationOf(one)));
  }

  /** The Call Stack says "Running" of a session over all ranks whatever they do: its name says how many are paused. */
  clustersChanged(): void {
    for (const session of this.sessions.values()) {
      const { all, job, name } = configurationOf(session);
      const document = this.clusters.view(clusterOf(session))?.watch.document;
      const isNamedByUs = all && job !== undefined && name === allConfiguration(job).name;
      const now = isNamedByUs && document ? parentName(job, document) : session.name;
      if (now !== session.name) {
        session.name = now;
      }
    }
  }

  /** The session that follows a stopped thread already. */
  sessionOf(cluster: string, stop: StopRecord): vscode.DebugSession | undefined {
    const thread = threadOf(stop);
    const all = [...this.sessions.values()];
    return all.find((one) => configurationOf(one).thread === thread && clusterOf(one) === cluster);
  }

  /** The cluster that is looked at: of the session, else the first with a stop. */
  get cluster(): string {
    const session = this.parent ?? this.active;
    if (session) {
      return clusterOf(session);
    }
    const stopped = this.clusters.views.find((view) => view.watch.document?.stops.length);
    return stopped?.key ?? this.clusters.views.find((view) => view.watch.document)?.key ?? LOCAL;
  }

  async move(command: Move): Promise<void> {
    const session = this.parent ?? this.active;
    if (session) {
      try {
        await session.customRequest("devkitAll", { command });
      } catch {
        // The editor itself has shown the adapter's error.
      }
    } else if (command === "continue") {
      await this.continueAll(this.cluster);
    }
  }

  /** Resumes all stops of a cluster, or those of one job. */
  async continueAll(cluster: string, job?: string): Promise<void> {
    const stops = this.clusters.view(cluster)?.watch.document?.stops ?? [];
    const ids = stops.filter((stop) => job === undefined || stop.job_id === job).map((stop) => stop.id);
    await this.resume(cluster, job === undefined ? ["--all"] : ids);
  }

  async resume(cluster: string, words: readonly string[]): Promise<void> {
    if (!words.length) {
      return;
    }
    const answer = await this.devkit.json<ContinueDocument>(["continue", ...words], await this.clusters.where(cluster));
    if (!answer.ok) {
      void report(answer.problem);
      return;
    }
    const failed = Object.entries(answer.document.failed ?? {});
    if (failed.length) {
      const words_ = failed.map(([id, why]) => `${id}: ${why}`).join("; ");
      void report({ kind: "failed", error: `Some ranks could not be resumed: ${words_}`, hint: "" });
    }
  }

  /** The value of an expression on every stopped rank. */
  async evaluate(expression: string): Promise<Answer<EvalDocument>> {
    const { parent } = this;
    if (parent) {
      try {
        const document = (await parent.customRequest("devkitEval", { expression })) as EvalDocument;
        return { ok: true, document, exitCode: 0 };
      } catch {
        // An adapter that does not know the request, or that is just ending: devkit itself can still be asked.
      }
    }
    return this.devkit.json<EvalDocument>(["eval", expression], await this.clusters.where(this.cluster));
  }

  /** Whether a session arms breakpoints in a job. */
  get hasParent(): boolean {
    return this.parent !== undefined;
  }

  /** Why there is nothing to ask, where it is not that no rank is paused. */
  get noValues(): string | undefined {
    return noValues(this.clusters.views);
  }

  /** Whether there is anything to ask. */
  get hasStops(): boolean {
    return this.clusters.views.some((view) => view.watch.document?.stops.length);
  }
}
