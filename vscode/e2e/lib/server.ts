/** code-server: VS Code for a browser, with our extension and nothing else, and with a home of its own. */

import { chmodSync, cpSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { CODE_SERVER, PROGRAMS, PYTHON, VSIX } from './paths.ts';
import { type Environment, Process, run } from './processes.ts';

/** What the workbench would do besides, and what would ask the internet. */
const SETTINGS = {
  'workbench.startupEditor': 'none',
  'workbench.tips.enabled': false,
  'workbench.secondarySideBar.defaultVisibility': 'hidden',
  'workbench.colorTheme': 'Default Dark Modern',
  'telemetry.telemetryLevel': 'off',
  'extensions.autoCheckUpdates': false,
  'extensions.autoUpdate': false,
  'extensions.ignoreRecommendations': true,
  'chat.disableAIFeatures': true,
  'security.workspace.trust.enabled': false,
  'git.enabled': false,
  'remote.autoForwardPorts': false,
  'window.restoreWindows': 'none',
  'window.commandCenter': false,
  'editor.minimap.enabled': false,
  'editor.stickyScroll.enabled': false,
  'editor.accessibilitySupport': 'off',
  'terminal.integrated.shellIntegration.enabled': false,
  'terminal.integrated.gpuAcceleration': 'off', // its text is then in the page
};

export interface ServerOptions {
  readonly env: Environment;
  /** Put before its commands: `ip netns exec NAME`. */
  readonly prefix?: readonly string[];
  readonly settings?: Record<string, unknown>;
}

export class EditorServer {
  readonly workspace: string;
  readonly url: string;
  private readonly process: Process;

  private constructor(process: Process, url: string, workspace: string) {
    this.process = process;
    this.url = url;
    this.workspace = workspace;
  }

  get output(): string {
    return this.process.output;
  }

  /** A server below this folder, with a workspace that holds the programs of the tests. */
  static async start(folder: string, options: ServerOptions): Promise<EditorServer> {
    if (!existsSync(VSIX)) throw new Error(`${VSIX} is missing: make test-vscode builds it`);
    const workspace = path.join(folder, 'work');
    const data = path.join(folder, 'data');
    const home = path.join(folder, 'home');
    for (const made of [workspace, path.join(data, 'User'), home]) mkdirSync(made, { recursive: true });
    cpSync(PROGRAMS, workspace, { recursive: true, filter: (file) => !file.endsWith('__pycache__') });
    const settings = { ...SETTINGS, 'devkit.command': devkitCommand(folder), ...options.settings };
    writeFileSync(path.join(data, 'User', 'settings.json'), JSON.stringify(settings, null, 2));
    const config = path.join(folder, 'config.yaml');
    writeFileSync(config, 'bind-addr: 127.0.0.1:0\nauth: none\ncert: false\n');
    // An empty gallery, or it asks a public one.
    const gallery = { EXTENSIONS_GALLERY: '{"serviceUrl":""}', DO_NOT_TRACK: '1', VSCODE_IPC_HOOK_CLI: '' };
    const env = { ...options.env, ...gallery, HOME: home };
    const base = [...(options.prefix ?? []), process.execPath, CODE_SERVER, '--config', config];
    const places = ['--user-data-dir', data, '--extensions-dir', path.join(folder, 'extensions')];
    await run([...base, ...places, '--install-extension', VSIX, '--force'], { env }, 90);
    const quiet = ['--disable-telemetry', '--disable-update-check', '--disable-workspace-trust', '--disable-proxy'];
    // By default the extension host of a closed page lives for three hours more.
    const child = new Process(
      [...base, ...places, ...quiet, '--disable-getting-started-override', '--reconnection-grace-time', '5', workspace],
      { env },
    );
    const [, url] = await child.says(/HTTP server listening on (http:\S+?)\/?\s/);
    return new EditorServer(child, url ?? '', workspace);
  }

  /** The same server at another port, which leads to it. */
  at(port: number): EditorServer {
    return new EditorServer(this.process, `http://127.0.0.1:${port}`, this.workspace);
  }

  stop(): Promise<void> {
    return this.process.end();
  }
}

/** A `devkit` that is this checkout's, or the mutated copy's that PYTHONPATH names; see `mutants`. */
function devkitCommand(folder: string): string {
  const command = path.join(folder, 'devkit');
  writeFileSync(command, `#!/bin/sh\nexec "${PYTHON}" -m devkit "$@"\n`);
  chmodSync(command, 0o755);
  return command;
}
