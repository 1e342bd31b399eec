/** Tokens of clusters, in the editor's secret storage; never in settings, logs or on command lines. */

import type * as vscode from "vscode";

const PREFIX = "devkit.token:";

export class Tokens {
  constructor(private readonly secrets: vscode.SecretStorage) {}

  async get(cluster: string): Promise<string | undefined> {
    return (await this.secrets.get(PREFIX + cluster)) || undefined;
  }

  async set(cluster: string, token: string): Promise<void> {
    await (token ? this.secrets.store(PREFIX + cluster, token) : this.secrets.delete(PREFIX + cluster));
  }
}
