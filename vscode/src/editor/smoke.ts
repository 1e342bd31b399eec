/** The smoke test in the Test Explorer: one item for each check, with what it found. */

import * as vscode from "vscode";
import type { SmokeDocument } from "../model/records";
import { checkItems, isSmoke, verdict, type CheckItem } from "../model/smoke";
import type { Devkit } from "./devkit";

const ROOT = "smoke";

export class SmokeTests implements vscode.Disposable {
  private readonly controller: vscode.TestController;
  private readonly root: vscode.TestItem;

  constructor(private readonly devkit: Devkit) {
    this.controller = vscode.tests.createTestController("devkit.smoke", "Ray DevKit");
    this.root = this.controller.createTestItem(ROOT, "devkit smoke --tiny");
    this.root.description = "a PPO run on a tiny model through Ray";
    this.controller.items.add(this.root);
    const run = (request: vscode.TestRunRequest, cancel: vscode.CancellationToken): Promise<void> =>
      this.run(request, cancel);
    this.controller.createRunProfile("Smoke Test", vscode.TestRunProfileKind.Run, run, true);
  }

  dispose(): void {
    this.controller.dispose();
  }

  /** From a command: the checks show in the Test Explorer, what the run says in the results' panel. */
  async start(): Promise<void> {
    await vscode.commands.executeCommand("workbench.view.testing.focus");
    const cancel = new vscode.CancellationTokenSource();
    const running = this.run(new vscode.TestRunRequest([this.root]), cancel.token);
    await vscode.commands.executeCommand("testing.showMostRecentOutput");
    await running;
    cancel.dispose();
  }

  /** One run has all checks: whichever item was asked for, all are told. */
  private async run(request: vscode.TestRunRequest, cancel: vscode.CancellationToken): Promise<void> {
    const run = this.controller.createTestRun(request);
    const stop = new vscode.CancellationTokenSource();
    const listeners = [cancel, run.token].map((token) => token.onCancellationRequested(() => stop.cancel()));
    run.started(this.root);
    this.root.children.forEach((item) => run.started(item));
    try {
      await this.runIn(run, stop.token);
    } finally {
      run.end();
      listeners.forEach((one) => one.dispose());
      stop.dispose();
    }
  }

  private async runIn(run: vscode.TestRun, cancel: vscode.CancellationToken): Promise<void> {
    const began = Date.now();
    const answer = await this.devkit.json<SmokeDocument>(["smoke", "--tiny"], {
      cancel,
      onTalk: (text) => run.appendOutput(text.replace(/\r?\n/g, "\r\n")),
    });
    if (cancel.isCancellationRequested) {
      run.skipped(this.root);
      run.appendOutput("cancelled\r\n");
    } else if (answer.ok && isSmoke(answer.document)) {
      this.tell(run, answer.document);
    } else {
      const { error, hint } = answer.ok ? { error: "devkit smoke printed no result", hint: "" } : answer.problem;
      run.errored(this.root, new vscode.TestMessage([error, hint].filter(Boolean).join("\n")), Date.now() - began);
    }
  }

  private tell(run: vscode.TestRun, record: SmokeDocument): void {
    const items = checkItems(record);
    this.root.children.replace(
      items.map((check, number) => {
        const item = this.controller.createTestItem(check.id, check.label);
        item.sortText = `${number}`.padStart(3, "0");
        item.description = check.message;
        return item;
      }),
    );
    for (const check of items) {
      const item = this.root.children.get(check.id);
      if (item) {
        tellOne(run, item, check);
      }
    }
    run.appendOutput(`smoke: ${verdict(record)}\r\n`);
    this.root.description = verdict(record);
  }
}

function tellOne(run: vscode.TestRun, item: vscode.TestItem, check: CheckItem): void {
  run.appendOutput(`${check.status.padEnd(4)}  ${check.label}: ${check.message}\r\n`, undefined, item);
  if (check.status === "pass") {
    run.passed(item, check.milliseconds);
  } else if (check.status === "skip") {
    run.skipped(item);
  } else {
    run.failed(item, new vscode.TestMessage(check.message), check.milliseconds);
  }
}
