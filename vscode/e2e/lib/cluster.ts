/** A debug cluster of two simulated nodes with a token, and programs under `devkit run`. */

import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import path from 'node:path';

import { type Environment, Process, run } from './processes.ts';
import { PACKAGES, PYTHON } from './paths.ts';
import { until } from './until.ts';

const OTHERS = /^(RAY_|DEVKIT_|VSCODE_|PYTHON|COLUMNS$|CI$|NODE_)/;

/** What `devkit ps --json` says of a stop, as far as the tests look. */
export interface Stop {
  readonly id: string;
  readonly job_id: string;
  readonly role: string;
  readonly rank: number | null;
  readonly line: number;
  readonly file: string;
  readonly reason: string;
  readonly since: number;
  readonly pid: number;
  readonly attached: number;
}

export interface Listing {
  readonly stops: readonly Stop[];
  readonly breakpoints: readonly { id: string; spec: string; armed: number; workers: number; hits: number }[];
  readonly crashes: number;
  readonly workers: readonly { job_id: string; pid: number; connected: boolean }[];
}

/** Of somebody who has set nothing and has an empty home. No other Ray of this machine is seen. */
function untouched(folder: string): Environment {
  const kept = Object.entries(process.env).filter(([name]) => !OTHERS.test(name)) as [string, string][];
  return {
    ...Object.fromEntries(kept),
    HOME: path.join(folder, 'home'),
    RAY_TMPDIR: folder,
    RAY_USAGE_STATS_ENABLED: '0',
    PYTHONPATH: PACKAGES,
  };
}

/** The same, with clusters that ask for a token. */
export function environment(folder: string, extra: Environment = {}): Environment {
  return { ...untouched(folder), DEVKIT_HOME: path.join(folder, 'dk'), RAY_AUTH_MODE: 'token', ...extra };
}

/** Somebody who types commands in a folder. */
export class User {
  readonly folder: string;
  readonly environ: Environment;

  constructor(folder: string, environ = untouched(folder)) {
    this.folder = folder;
    this.environ = environ;
    mkdirSync(environ['HOME'] ?? '', { recursive: true });
  }

  devkit(args: readonly string[], seconds?: number): Promise<string> {
    return run([PYTHON, '-m', 'devkit', ...args], { env: this.environ, cwd: this.folder }, seconds);
  }

  async ps(job?: string): Promise<Listing> {
    const listing = JSON.parse(await this.devkit(['ps', '--json'])) as Listing;
    return { ...listing, stops: listing.stops.filter((stop) => job === undefined || stop.job_id === job) };
  }
}

/** The one of the tests, and who has started it. */
export class Cluster extends User {
  readonly token: string;
  dashboard = '';

  constructor() {
    const folder = mkdtempSync('/tmp/dkv'); // Ray's sockets need a short path
    const token = randomBytes(32).toString('hex');
    super(folder, environment(folder, { RAY_AUTH_TOKEN: token }));
    this.token = token;
  }

  async start(): Promise<void> {
    const options = ['--nodes', '2', '--num-cpus', '8', '--auth', 'token', '--port', '0', '--dashboard-port', '0'];
    const record = await this.devkit(['debug-cluster', ...options, '--timeout', '90', '--json'], 100);
    const started = JSON.parse(record) as { dashboard_url: string; gcs_address: string };
    this.dashboard = started.dashboard_url;
    this.environ['RAY_ADDRESS'] = started.gcs_address; // another Ray may run on this machine
  }

  async stop(): Promise<void> {
    await this.devkit(['debug-cluster', 'stop']);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A program of `programs/` under `devkit run`. */
export class Job {
  readonly process: Process;
  private readonly user: User;
  private known = '';

  constructor(user: User, cwd: string, program: readonly string[], options: readonly string[] = []) {
    this.user = user;
    const command = [PYTHON, '-m', 'devkit', 'run', ...options, '--', PYTHON, ...program];
    this.process = new Process(command, { env: user.environ, cwd });
  }

  get output(): string {
    return this.process.output;
  }

  /** Its id, once it has called `ray.init`. */
  async id(): Promise<string> {
    this.known ||= (await this.process.says(/debugging job (\w+)/))[1] ?? '';
    return this.known;
  }

  /** Its stops, once there are so many. */
  async stops(count: number): Promise<readonly Stop[]> {
    const id = await this.id();
    return until(`${count} stops of job ${id}`, async () => {
      const { stops } = await this.user.ps(id);
      return stops.length >= count ? stops : null;
    });
  }

  end(): Promise<void> {
    return this.process.end();
  }
}
