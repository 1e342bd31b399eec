/** The seam to the `devkit` command: where it is, whether it is fit, how it is run. No other file starts a process. */

import { spawn, type ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute } from "node:path";
import * as vscode from "vscode";
import { JsonLines, lastDocument } from "../model/jsonLines";
import { candidates, pythonBeside } from "../model/locate";
import { endedProblem, isErrorRecord, type Problem } from "../model/problems";
import { complaint, judge, installCommand, type Installed } from "../model/version";

export interface Where {
  readonly address?: string | undefined;
  readonly token?: string | undefined;
}

export interface RunOptions extends Where {
  readonly cancel?: vscode.CancellationToken;
  readonly onTalk?: (text: string) => void; // what it says on stderr
}

export type Answer<Document> =
  | { readonly ok: true; readonly document: Document; readonly exitCode: number }
  | { readonly ok: false; readonly problem: Problem };

export interface Running {
  readonly onDocument: (document: unknown) => void;
  readonly onExit: (code: number | null, stderr: string) => void;
}

const VERSION_SECONDS = 20;
const MOST_TALK = 20_000; // characters of stderr that are kept

export class Devkit implements vscode.Disposable {
  private readonly children = new Set<ChildProcess>();
  private checked: Promise<Installed> | undefined;
  private last: Installed | undefined;
  private found = "devkit";

  constructor(private readonly log: vscode.LogOutputChannel) {}

  dispose(): void {
    for (const child of this.children) {
      child.kill();
    }
  }

  /** The command as it is started. */
  get command(): string {
    return this.found;
  }

  /** The folder that devkit runs in: file names and its path mapping go from there. */
  get folder(): string {
    const first = vscode.workspace.workspaceFolders?.find((one) => one.uri.scheme === "file");
    return first?.uri.fsPath ?? homedir();
  }

  /** Looks for the command again at the next use: a setting has changed, or it may have been installed. */
  forget(): void {
    this.checked = undefined;
  }

  /** What was found at the last look; undefined before the first one has ended. */
  get installed(): Installed | undefined {
    return this.last;
  }

  /** Whether there is a devkit, and which. Asked once, until `forget`. */
  async check(): Promise<Installed> {
    this.checked ??= this.look();
    const installed = await this.checked;
    this.last = installed;
    if (installed.kind !== "fine") {
      this.checked = undefined;
    }
    return installed;
  }

  private async look(): Promise<Installed> {
    const setting = vscode.workspace.getConfiguration("devkit").get<string>("command", "");
    const folders = (vscode.workspace.workspaceFolders ?? []).map((one) => one.uri.fsPath);
    const selectedPython = await pythonOfExtension();
    const all = candidates({
      setting,
      folders,
      ...(selectedPython ? { selectedPython } : {}),
      home: homedir(),
      windows: process.platform === "win32",
    });
    this.found = all.find((one) => !isAbsolute(one) || existsSync(one)) ?? all[0] ?? "devkit";
    const installed = await this.askVersion();
    this.log.info(`${this.found}: ${JSON.stringify(installed)}`);
    return installed;
  }

  private askVersion(): Promise<Installed> {
    return new Promise((resolve) => {
      const child = spawn(this.found, ["--version"], { cwd: this.folder, timeout: VERSION_SECONDS * 1000 });
      let output = "";
      child.stdout.setEncoding("utf8").on("data", (piece: string) => (output += piece));
      child.on("error", (error: NodeJS.ErrnoException) =>
        resolve({ kind: "missing", why: error.code === "ENOENT" ? `${this.found} was not found` : error.message }),
      );
      child.on("close", () => resolve(judge(output)));
    });
  }

  /** What a child's environment has beside ours. A token goes this way, never on a command line. */
  environment(where: Where): Record<string, string> {
    return where.token ? { RAY_AUTH_MODE: "token", RAY_AUTH_TOKEN: where.token } : {};
  }

  /** Runs a verb with `--json` and gives its document. */
  async json<Document>(words: readonly string[], options: RunOptions = {}): Promise<Answer<Document>> {
    const installed = await this.check();
    if (installed.kind !== "fine") {
      return { ok: false, problem: this.missing(installed) };
    }
    return new Promise((resolve) => {
      const child = this.start([...words, "--json"], options);
      let output = "";
      let talk = "";
      child.stdout?.setEncoding("utf8").on("data", (piece: string) => (output += piece));
      child.stderr?.setEncoding("utf8").on("data", (piece: string) => {
        talk = (talk + piece).slice(-MOST_TALK);
        options.onTalk?.(piece);
      });
      const cancelled = options.cancel?.onCancellationRequested(() => child.kill("SIGINT"));
      child.on("error", (error) => resolve({ ok: false, problem: cannotStart(this.found, error) }));
      child.on("close", (code) => {
        cancelled?.dispose();
        resolve(answerOf<Document>(lastDocument(output), code, talk));
      });
    });
  }

  /** A verb that prints a document for each piece of news, until it is killed. */
  stream(words: readonly string[], where: Where, running: Running): { kill(): void } {
    const child = this.start([...words, "--json"], where);
    const lines = new JsonLines();
    let talk = "";
    const take = (found: ReturnType<JsonLines["push"]>): void => {
      for (const line of found) {
        if (line.kind === "document") {
          running.onDocument(line.document);
        } else {
          this.log.warn(`devkit ${words.join(" ")} printed something that is not JSON: ${line.text.slice(0, 200)}`);
        }
      }
    };
    child.stdout?.setEncoding("utf8").on("data", (piece: string) => take(lines.push(piece)));
    child.stderr?.setEncoding("utf8").on("data", (piece: string) => (talk = (talk + piece).slice(-MOST_TALK)));
    child.on("error", (error) => running.onExit(null, `error: ${cannotStart(this.found, error).error}`));
    child.on("close", (code) => {
      take(lines.end());
      running.onExit(code, talk);
    });
    return { kill: () => child.kill() };
  }

  private start(words: readonly string[], where: Where): ChildProcess {
    const address = where.address ? ["--address", where.address] : [];
    const all = [...words, ...address];
    this.log.debug(`${this.found} ${all.join(" ")}`);
    const child = spawn(this.found, all, {
      cwd: this.folder,
      env: { ...process.env, NO_COLOR: "1", ...this.environment(where) },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.children.add(child);
    child.on("close", () => this.children.delete(child));
    child.on("error", () => this.children.delete(child));
    return child;
  }

  missing(installed: Exclude<Installed, { kind: "fine" }>): Problem {
    return { kind: "missing", error: complaint(installed, this.found), hint: this.installCommand() };
  }

  /** The command that installs devkit, or a newer one, where it is looked for. */
  installCommand(): string {
    const python = pythonBeside(this.found, process.platform === "win32");
    return installCommand(python && existsSync(python) ? python : undefined);
  }
}

function cannotStart(command: string, error: Error): Problem {
  return {
    kind: "missing",
    error: `could not start ${command}: ${error.message}`,
    hint: "check the setting devkit.command",
  };
}

function answerOf<Document>(document: unknown, code: number | null, talk: string): Answer<Document> {
  if (isErrorRecord(document)) {
    return { ok: false, problem: { kind: "failed", error: document.error, hint: document.hint } };
  }
  if (document === undefined || code === null) {
    return { ok: false, problem: endedProblem(code, talk) };
  }
  return { ok: true, document: document as Document, exitCode: code };
}

interface PythonApi {
  readonly environments?: { getActiveEnvironmentPath(): { readonly path: string } };
}

/** The interpreter that the Python extension has selected, if that extension is there and running. */
async function pythonOfExtension(): Promise<string | undefined> {
  const extension = vscode.extensions.getExtension<PythonApi>("ms-python.python");
  const path = extension?.isActive ? extension.exports.environments?.getActiveEnvironmentPath().path : undefined;
  return path && isAbsolute(path) ? path : undefined;
}
