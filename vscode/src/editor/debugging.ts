/** Debug sessions: who is asked what to debug, how the adapter is started, and what is told when something stops. */

import * as vscode from "vscode";
import { LOCAL, type ClusterView } from "../model/clusters";
import { debugChoices, nothingToDebug } from "../model/choices";
import {
  adapterArguments,
  CHILD_EVENT,
  initialConfigurations,
  isWhole,
  launchConfiguration,
  LOST_EVENT,
  TYPE,
  withChildEvents,
  type DevkitConfiguration,
} from "../model/sessions";
import type { Clusters } from "./clusters";
import type { Devkit } from "./devkit";
import { report, say } from "./messages";
import type { Tokens } from "./tokens";

/** What a session of ours was started with. */
export function configurationOf(session: vscode.DebugSession): DevkitConfiguration & vscode.DebugConfiguration {
  return session.configuration as DevkitConfiguration & vscode.DebugConfiguration;
}

/** The key of the cluster that a session is for; a child is where its parent is. */
export function clusterOf(session: vscode.DebugSession): string {
  return session.parentSession ? clusterOf(session.parentSession) : (configurationOf(session).address ?? LOCAL);
}

/** Starts a session and shows the Run view: an exception's stop does not open it by itself. */
export async function startSession(configuration: DevkitConfiguration): Promise<boolean> {
  const folder = vscode.workspace.workspaceFolders?.[0];
  const started = await vscode.debug.startDebugging(folder, configuration);
  if (started) {
    await vscode.commands.executeCommand("workbench.view.debug");
  }
  return started;
}

export class Configurations implements vscode.DebugConfigurationProvider {
  constructor(
    private readonly devkit: Devkit,
    private readonly clusters: Clusters,
  ) {}

  provideDebugConfigurations(): vscode.DebugConfiguration[] {
    return initialConfigurations() as vscode.DebugConfiguration[];
  }

  async resolveDebugConfiguration(
    _folder: vscode.WorkspaceFolder | undefined,
    given: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | null | undefined> {
    if (given["underParent"]) {
      return given; // a child: its parent has said all
    }
    const installed = await this.devkit.check();
    if (installed.kind !== "fine") {
      void report(this.devkit.missing(installed));
      return undefined;
    }
    return isWhole(given as Partial<DevkitConfiguration>) ? given : this.complete(given);
  }

  /** F5 without a launch.json means the file that is open; else the user is asked. */
  private async complete(given: vscode.DebugConfiguration): Promise<vscode.DebugConfiguration | undefined> {
    const isPython = vscode.window.activeTextEditor?.document.languageId === "python";
    const isBare = !given.type && !given.request;
    return isBare && isPython ? (launchConfiguration("${file}") as vscode.DebugConfiguration) : this.choose(given);
  }

  /** After all questions and variables, so that it is not written into a launch.json. */
  resolveDebugConfigurationWithSubstitutedVariables(
    _folder: vscode.WorkspaceFolder | undefined,
    given: vscode.DebugConfiguration,
  ): vscode.DebugConfiguration {
    return withChildEvents(given as DevkitConfiguration & vscode.DebugConfiguration);
  }

  private async choose(given: vscode.DebugConfiguration): Promise<vscode.DebugConfiguration | undefined> {
    const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
    const views = this.clusters.views.filter(within(given["address"] as string | undefined));
    const choices = debugChoices(views, folders);
    if (!choices.length) {
      say(nothingToDebug(views));
      return undefined;
    }
    const chosen = await vscode.window.showQuickPick(choices, { title: "What to debug", matchOnDescription: true });
    return chosen && { ...given, ...chosen.configuration };
  }
}

function within(address: string | undefined): (view: ClusterView) => boolean {
  return (view) => address === undefined || view.key === address;
}

export class Adapters implements vscode.DebugAdapterDescriptorFactory {
  constructor(
    private readonly devkit: Devkit,
    private readonly tokens: Tokens,
  ) {}

  async createDebugAdapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
    const configuration = configurationOf(session);
    if (configuration.pipe) {
      // Its parent's process serves it: 64 ranks don't start 64 interpreters.
      return new vscode.DebugAdapterNamedPipeServer(configuration.pipe);
    }
    const token = await this.tokens.get(clusterOf(session));
    return new vscode.DebugAdapterExecutable(this.devkit.command, adapterArguments(configuration), {
      cwd: session.workspaceFolder?.uri.fsPath ?? this.devkit.folder,
      env: this.devkit.environment({ token }),
    });
  }
}

interface Message {
  readonly type: string;
  readonly event?: string;
}

/** The session that a child, or a child's child, belongs to. */
function rootOf(session: vscode.DebugSession): vscode.DebugSession {
  return session.parentSession ? rootOf(session.parentSession) : session;
}

/** Tells when a session of ours has stopped somewhere, and logs how adapters end. */
export class Trackers implements vscode.DebugAdapterTrackerFactory, vscode.Disposable {
  private readonly stopped = new WeakSet<vscode.DebugSession>(); // roots
  private readonly emitter = new vscode.EventEmitter<vscode.DebugSession>();
  readonly onDidStop = this.emitter.event;

  constructor(private readonly log: vscode.LogOutputChannel) {}

  dispose(): void {
    this.emitter.dispose();
  }

  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const name = `session "${session.name}"`;
    const trace = (arrow: string, message: Message): void => {
      if (this.log.logLevel === vscode.LogLevel.Trace) {
        this.log.trace(`${name} ${arrow} ${JSON.stringify(message)}`);
      }
    };
    return {
      onWillReceiveMessage: (message: Message) => trace("<-", message),
      onDidSendMessage: (message: Message) => {
        trace("->", message);
        if (message.type === "event" && message.event === "stopped") {
          this.showFirst(rootOf(session));
          this.emitter.fire(session);
        }
      },
      onError: (error) => this.log.error(`${name}: ${error.message}`),
      onExit: (code, signal) => this.log.info(`${name}: the adapter ended, ${signal ?? `exit code ${code}`}`),
    };
  }

  /** The first stop shows the Run view; later ones leave the view that the user has chosen, such as the values. */
  private showFirst(root: vscode.DebugSession): void {
    if (!this.stopped.has(root)) {
      this.stopped.add(root);
      void vscode.commands.executeCommand("workbench.view.debug");
    }
  }
}

/**
 * A child for a rank that has stopped. Started here and not by the editor for its adapter, so that it lives and ends
 * with its parent: whoever disconnects while one rank is in view means all. One console has what all ranks print, and
 * a stop does not take the user away from the view that is open.
 */
async function startChild(session: vscode.DebugSession, configuration: vscode.DebugConfiguration): Promise<void> {
  await vscode.debug.startDebugging(session.workspaceFolder, configuration, {
    parentSession: session,
    lifecycleManagedByParent: true,
    consoleMode: vscode.DebugConsoleMode.MergeWithParent,
    suppressSaveBeforeStart: true,
    suppressDebugView: true,
  });
}

/** Starts the children of each parent: the first one alone, so that its line is in view soonest, then all others. */
function childStarter(): vscode.Disposable {
  const firsts = new WeakMap<vscode.DebugSession, Promise<void>>();
  return vscode.debug.onDidReceiveDebugSessionCustomEvent(({ event, session, body }) => {
    if (event !== CHILD_EVENT || session.type !== TYPE) {
      return;
    }
    const start = (): Promise<void> => startChild(session, body as vscode.DebugConfiguration);
    const first = firsts.get(session);
    if (first) {
      void first.then(start);
    } else {
      firsts.set(
        session,
        start().catch(() => undefined),
      ); // what went wrong, the editor has said
    }
  });
}

/** One message for all ranks, where the adapter would have one line for each. It tries again by itself for a minute. */
function lossTeller(clusters: Clusters): vscode.Disposable[] {
  const over = new WeakSet<vscode.DebugSession>();
  const tell = async (session: vscode.DebugSession): Promise<void> => {
    const retry = "Retry";
    const disconnect = "Disconnect";
    const text = "Lost the connection to the Ray cluster. Paused ranks stay paused; reconnecting…";
    const chosen = await vscode.window.showWarningMessage(text, retry, disconnect);
    if (chosen === disconnect) {
      await vscode.debug.stopDebugging(session);
    } else if (chosen === retry) {
      clusters.retry(clusterOf(session));
      if (over.has(session) && configurationOf(session).request === "attach") {
        await startSession(configurationOf(session));
      }
    }
  };
  return [
    vscode.debug.onDidTerminateDebugSession((session) => over.add(session)),
    vscode.debug.onDidReceiveDebugSessionCustomEvent(({ event, session }) => {
      if (event === LOST_EVENT && session.type === TYPE) {
        void tell(session);
      }
    }),
  ];
}

export function registerDebugging(
  devkit: Devkit,
  clusters: Clusters,
  tokens: Tokens,
  trackers: Trackers,
): vscode.Disposable[] {
  const configurations = new Configurations(devkit, clusters);
  const { Dynamic } = vscode.DebugConfigurationProviderTriggerKind;
  return [
    vscode.debug.registerDebugConfigurationProvider(TYPE, configurations),
    vscode.debug.registerDebugConfigurationProvider(TYPE, dynamic(clusters), Dynamic),
    vscode.debug.registerDebugAdapterDescriptorFactory(TYPE, new Adapters(devkit, tokens)),
    vscode.debug.registerDebugAdapterTrackerFactory(TYPE, trackers),
    childStarter(),
    ...lossTeller(clusters),
  ];
}

/** What runs now, in the list of the Run view. */
function dynamic(clusters: Clusters): vscode.DebugConfigurationProvider {
  return {
    provideDebugConfigurations: () =>
      debugChoices(clusters.views, []).map((choice) => ({ ...choice.configuration }) as vscode.DebugConfiguration),
  };
}
