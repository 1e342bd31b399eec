/** Shows nodes of the model as a tree view. An unchanged tree is left alone; a changed one keeps its selection. */

import * as vscode from "vscode";
import type { Node } from "../model/node";

export class NodeTree implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  private readonly emitter = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.emitter.event;
  private nodes: readonly Node[] = [];
  private shown = "[]";

  set(nodes: readonly Node[]): void {
    const text = JSON.stringify(nodes);
    if (text !== this.shown) {
      this.shown = text;
      this.nodes = nodes;
      this.emitter.fire();
    }
  }

  dispose(): void {
    this.emitter.dispose();
  }

  getChildren(node?: Node): Node[] {
    return [...(node ? node.children : this.nodes)];
  }

  getTreeItem(node: Node): vscode.TreeItem {
    const { None, Expanded, Collapsed } = vscode.TreeItemCollapsibleState;
    const item = new vscode.TreeItem(node.label, node.children.length ? (node.expanded ? Expanded : Collapsed) : None);
    // The editor remembers "not expanded" of a leaf; one that gets children is a new item to it.
    item.id = node.children.length ? `${node.id}+` : node.id;
    item.contextValue = node.context;
    if (node.description) {
      item.description = node.description;
    }
    if (node.tooltip) {
      item.tooltip = new vscode.MarkdownString(node.tooltip, true);
    }
    if (node.icon) {
      const { id, color } = node.icon;
      item.iconPath = new vscode.ThemeIcon(id, color ? new vscode.ThemeColor(color) : undefined);
    }
    if (node.click) {
      item.command = { command: node.click, title: node.label, arguments: [node] };
    }
    if (node.spoken) {
      item.accessibilityInformation = { label: node.spoken };
    }
    return item;
  }
}
