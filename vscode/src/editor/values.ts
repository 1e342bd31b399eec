/** The view of values on all ranks: expressions that the user adds, asked again at every stop. */

import * as vscode from "vscode";
import type { Node } from "../model/node";
import { valueTree, type Watched } from "../model/values";
import type { AllRanks } from "./allRanks";
import { NodeTree } from "./trees";

const KEY = "devkit.values"; // of the workspace's memory
const SETTLE = 150; // milliseconds: ranks that stop together are asked once

export class Values implements vscode.Disposable {
  private watched: Watched[];
  private readonly tree = new NodeTree();
  private readonly view: vscode.TreeView<Node>;
  private timer: NodeJS.Timeout | undefined;
  private round = 0;

  constructor(
    private readonly ranks: AllRanks,
    private readonly memory: vscode.Memento,
  ) {
    this.watched = memory.get<string[]>(KEY, []).map((expression) => ({ expression }));
    this.view = vscode.window.createTreeView("devkit.values", { treeDataProvider: this.tree, showCollapseAll: true });
    this.show();
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.view.dispose();
    this.tree.dispose();
  }

  /** Asks again soon. */
  refreshSoon(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.refresh(), SETTLE);
  }

  async refresh(): Promise<void> {
    const round = ++this.round;
    if (!this.ranks.hasStops) {
      const problem = this.ranks.noValues;
      this.watched = this.watched.map(({ expression }) => ({ expression, ...(problem ? { problem } : {}) }));
      this.show();
      return;
    }
    await Promise.all(this.watched.map((one) => this.ask(one.expression, round)));
  }

  private async ask(expression: string, round: number): Promise<void> {
    this.replace({ ...this.find(expression), expression, pending: true });
    const answer = await this.ranks.evaluate(expression);
    if (round !== this.round) {
      return; // a later stop was asked about meanwhile
    }
    this.replace(answer.ok ? { expression, document: answer.document } : { expression, problem: answer.problem.error });
  }

  private find(expression: string): Watched | undefined {
    return this.watched.find((one) => one.expression === expression);
  }

  private replace(fresh: Watched): void {
    this.watched = this.watched.map((one) => (one.expression === fresh.expression ? fresh : one));
    this.show();
  }

  /** Adds what is given, or what the user types. */
  async add(given?: string): Promise<void> {
    const typed =
      given ??
      (await vscode.window.showInputBox({
        title: "Show on All Ranks",
        prompt: "Python expression to evaluate on every paused rank",
        placeHolder: "loss.item()",
      }));
    const expression = typed?.trim();
    if (!expression) {
      return;
    }
    if (!this.find(expression)) {
      this.watched = [...this.watched, { expression }];
      await this.remember();
    }
    this.show();
    void vscode.commands.executeCommand("devkit.values.focus");
    await this.refresh();
  }

  async edit(node: Node): Promise<void> {
    const before = node.subject.expression ?? "";
    const after = (await vscode.window.showInputBox({ title: "Show on All Ranks", value: before }))?.trim();
    if (after && after !== before) {
      this.watched = this.watched.map((one) => (one.expression === before ? { expression: after } : one));
      await this.remember();
      this.show();
      await this.refresh();
    }
  }

  async remove(node?: Node): Promise<void> {
    this.watched = node ? this.watched.filter((one) => one.expression !== node.subject.expression) : [];
    await this.remember();
    this.show();
  }

  /** What is selected in the editor, else the expression at the cursor. */
  async addSelection(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor) {
      return this.add();
    }
    const { selection, document } = editor;
    const range = selection.isEmpty ? expressionRange(document, selection.active) : selection;
    return this.add(range ? document.getText(range) : undefined);
  }

  private remember(): Thenable<void> {
    return this.memory.update(
      KEY,
      this.watched.map((one) => one.expression),
    );
  }

  private show(): void {
    this.tree.set(valueTree(this.watched));
  }
}

/** A name with its attributes, up to the one at this position: looking at it runs no call. */
export function expressionRange(document: vscode.TextDocument, position: vscode.Position): vscode.Range | undefined {
  const range = document.getWordRangeAtPosition(position, /[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*/);
  const word = document.getWordRangeAtPosition(position, /[A-Za-z_]\w*/);
  return range && word && new vscode.Range(range.start, word.end);
}
