/** Shows nodes of the model as a tree view. An unchanged tree is left alone; a changed one keeps its selection. */

import * as vscode from "vscode";
import { COLORS, type Node } from "../model/node";

const OUTDATED = "devkit-outdated"; // the scheme of what is shown greyed

/** Rows of trees have no colour of their own but by the file that they stand for: these stand for none. */
export class OutdatedDecorations implements vscode.FileDecorationProvider {
  provideFileDecoration(uri: vscode.Uri): vscode.FileDecoration | undefined {
    return uri.scheme === OUTDATED
      ? new vscode.FileDecoration(undefined, "as last seen", new vscode.ThemeColor(COLORS.outdated))
      : undefined;
  }
}

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
    if (node.outdated) {
      item.resourceUri = vscode.Uri.from({ scheme: OUTDATED, path: `/${node.id}` });
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
