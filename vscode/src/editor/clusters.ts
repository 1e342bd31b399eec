/** Keeps one `devkit ps --watch --wait --json` per cluster running, and tells when something has changed. */

import * as vscode from "vscode";
import { addressOf, clusterKeys, LOCAL, type ClusterView } from "../model/clusters";
import { isNews, jobsSeen, nextQuestion, type JobsSeen } from "../model/jobsSeen";
import type { CrashesDocument, CrashRecord, JobRecord, JobsDocument } from "../model/records";
import { OFF, step, type WatchAction, type WatchEvent, type WatchState } from "../model/watch";
import type { Devkit, Where } from "./devkit";
import type { Tokens } from "./tokens";

/** One cluster: the table's actions are done here. */
class Watcher implements vscode.Disposable {
  private state: WatchState = OFF;
  private crashes: readonly CrashRecord[] = [];
  private jobs: readonly JobRecord[] = [];
  private seen: JobsSeen = new Map();
  private question = 0; // for the jobs; an answer to an earlier one is old
  private later: NodeJS.Timeout | undefined; // until the next one
  private process: { kill(): void } | undefined;
  private timer: NodeJS.Timeout | undefined;

  constructor(
    readonly key: string,
    private readonly devkit: Devkit,
    private readonly where: () => Promise<Where>,
    private readonly changed: () => void,
  ) {}

  get view(): ClusterView {
    return {
      key: this.key,
      url: this.key === LOCAL ? "" : this.key,
      watch: this.state,
      crashes: this.state.document || this.state.lastKnown ? this.crashes : [],
      jobs: this.jobs,
    };
  }

  dispose(): void {
    this.question++;
    clearTimeout(this.later);
    this.tell({ kind: "stop" });
  }

  tell(event: WatchEvent): void {
    const before = this.state;
    const [state, actions] = step(before, event);
    this.state = state;
    for (const action of actions) {
      this.act(action);
    }
    if (state.document !== before.document) {
      void this.learnJobs();
    }
    if (state !== before) {
      this.changed();
    }
  }

  private act(action: WatchAction): void {
    switch (action.kind) {
      case "spawn":
        void this.spawn(action.run);
        return;
      case "kill":
        this.process?.kill();
        this.process = undefined;
        return;
      case "wait":
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.tell({ kind: "timer", run: action.run }), action.milliseconds);
        return;
      case "cancelWait":
        clearTimeout(this.timer);
        return;
      case "crashesChanged":
        void this.learnCrashes();
    }
  }

  private async spawn(run: number): Promise<void> {
    const installed = await this.devkit.check();
    if (installed.kind !== "fine") {
      this.tell({ kind: "missing", run, problem: this.devkit.missing(installed) });
      return;
    }
    const where = await this.where();
    if (this.state.run !== run) {
      return; // meanwhile it was stopped, or started anew
    }
    this.process = this.devkit.stream(["ps", "--watch", "--wait"], where, {
      onDocument: (document) => this.tell({ kind: "document", run, document }),
      onExit: (code, stderr) => this.tell({ kind: "exit", run, code, stderr }),
    });
  }

  private async learnCrashes(): Promise<void> {
    if (!this.state.document?.crashes) {
      this.crashes = [];
      return;
    }
    const answer = await this.devkit.json<CrashesDocument>(["crashes"], await this.where());
    if (answer.ok) {
      this.crashes = answer.document.crashes;
      await this.learnJobs();
      this.changed();
    }
  }

  /** Asks for the commands of new jobs, and how those that are gone have ended. */
  private async learnJobs(): Promise<void> {
    if (!this.state.document) {
      return; // out of reach is not ended
    }
    const before = this.seen;
    this.seen = jobsSeen(before, this.state.document, this.crashes);
    if (isNews(before, this.seen)) {
      await this.askJobs(1);
    }
  }

  private async askJobs(time: number): Promise<void> {
    const question = ++this.question;
    clearTimeout(this.later);
    const answer = await this.devkit.json<JobsDocument>(["jobs"], await this.where());
    if (question !== this.question) {
      return;
    }
    if (answer.ok) {
      this.jobs = answer.document.jobs.filter((one) => this.seen.has(one.job_id));
      this.changed();
    }
    const pause = nextQuestion(time, this.seen, this.jobs);
    if (pause !== undefined) {
      this.later = setTimeout(() => void this.askJobs(time + 1), pause);
    }
  }
}

export class Clusters implements vscode.Disposable {
  private readonly watchers = new Map<string, Watcher>();
  private readonly emitter = new vscode.EventEmitter<void>();
  readonly onDidChange = this.emitter.event;
  private pending = false;

  constructor(
    private readonly devkit: Devkit,
    private readonly tokens: Tokens,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  dispose(): void {
    this.watchers.forEach((watcher) => watcher.dispose());
    this.watchers.clear();
    this.emitter.dispose();
  }

  /** Watches what the settings name, and no longer what they don't. */
  configure(): void {
    const settings = vscode.workspace.getConfiguration("devkit");
    const { keys, wrong } = clusterKeys(
      settings.get<string[]>("clusters", []),
      settings.get<boolean>("localCluster", true),
    );
    wrong.forEach((url) => this.log.warn(`devkit.clusters: ${url} is not the URL of a dashboard`));
    for (const [key, watcher] of this.watchers) {
      if (!keys.includes(key)) {
        watcher.dispose();
        this.watchers.delete(key);
      }
    }
    for (const key of keys.filter((each) => !this.watchers.has(each))) {
      const watcher = new Watcher(
        key,
        this.devkit,
        () => this.where(key),
        () => this.changed(),
      );
      this.watchers.set(key, watcher);
      watcher.tell({ kind: "start" });
    }
    this.sort(keys);
    this.changed();
  }

  private sort(keys: readonly string[]): void {
    const entries = [...this.watchers].sort((a, b) => keys.indexOf(a[0]) - keys.indexOf(b[0]));
    this.watchers.clear();
    entries.forEach(([key, watcher]) => this.watchers.set(key, watcher));
  }

  get views(): ClusterView[] {
    return [...this.watchers.values()].map((watcher) => watcher.view);
  }

  view(key: string): ClusterView | undefined {
    return this.watchers.get(key)?.view;
  }

  /** What devkit is told to reach a cluster. */
  async where(key: string): Promise<Where> {
    return { address: addressOf(key), token: await this.tokens.get(key) };
  }

  /** Connects now instead of after the pause; all clusters without a key. */
  retry(key?: string): void {
    for (const watcher of this.watchers.values()) {
      if (key === undefined || watcher.key === key) {
        watcher.tell({ kind: "retry" });
      }
    }
  }

  /** Those that wait: something has changed that may help them. */
  retryWaiting(): void {
    for (const watcher of this.watchers.values()) {
      if (watcher.view.watch.phase === "waiting") {
        watcher.tell({ kind: "retry" });
      }
    }
  }

  /** Many changes at once are told once. */
  private changed(): void {
    if (!this.pending) {
      this.pending = true;
      setTimeout(() => {
        this.pending = false;
        this.emitter.fire();
      }, 20);
    }
  }
}
