/** Processes that a test started: their output, and an end by their own id. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';

import { Fatal, until } from './until.ts';

const GRACE_MS = 15_000;
const KEPT = 200_000; // characters of output

export type Environment = Record<string, string>;

export interface SpawnOptions {
  readonly env: Environment;
  readonly cwd?: string;
}

/** A child process. Everything that it says is kept in `output`, errors too. */
export class Process {
  output = '';
  private readonly child: ChildProcess;
  private readonly name: string;

  constructor(command: readonly string[], options: SpawnOptions) {
    const [program, ...rest] = command;
    if (program === undefined) throw new Error('an empty command');
    this.name = command.slice(0, 4).join(' ');
    this.child = spawn(program, rest, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    const keep = (text: Buffer): void => {
      this.output = (this.output + text.toString()).slice(-KEPT);
    };
    this.child.stdout?.on('data', keep);
    this.child.stderr?.on('data', keep);
    this.child.on('error', (error) => keep(Buffer.from(`\n${error.message}\n`)));
  }

  get pid(): number {
    return this.child.pid ?? -1;
  }

  get alive(): boolean {
    return this.child.exitCode === null && this.child.signalCode === null && this.child.pid !== undefined;
  }

  /** The match, once the output has one. */
  async says(pattern: RegExp, seconds?: number): Promise<RegExpExecArray> {
    return until(
      `${this.name}: output like ${pattern}`,
      () => {
        const found = pattern.exec(this.output);
        if (!found && !this.alive) throw new Fatal(`${this.name} ended without it: ${this.output.slice(-1500)}`);
        return found;
      },
      seconds,
    );
  }

  /** The exit code, once it has ended by itself. */
  async ends(seconds?: number): Promise<number> {
    await until(`${this.name}: its end`, () => !this.alive, seconds);
    return this.child.exitCode ?? -1;
  }

  /** Ends it. Asks first, since a program under `devkit run` has things to put away. */
  async end(): Promise<void> {
    if (!this.alive) return;
    const ended = once(this.child, 'exit');
    this.child.kill('SIGTERM');
    const timer = setTimeout(() => this.child.kill('SIGKILL'), GRACE_MS);
    await ended;
    clearTimeout(timer);
  }
}

/** Runs a command to its end; its stdout. */
export async function run(command: readonly string[], options: SpawnOptions, seconds = 60): Promise<string> {
  const [program, ...rest] = command;
  if (program === undefined) throw new Error('an empty command');
  const child = spawn(program, rest, { ...options, stdio: ['ignore', 'pipe', 'pipe'], timeout: seconds * 1000 });
  let out = '';
  let errors = '';
  child.stdout.on('data', (text: Buffer) => (out += text.toString()));
  child.stderr.on('data', (text: Buffer) => (errors += text.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`${command.join(' ')}: exit ${code}\n${out.slice(-1500)}${errors.slice(-1500)}`);
  return out;
}
