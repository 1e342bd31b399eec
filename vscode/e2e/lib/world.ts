/** What all scenarios share: one cluster, one code-server. Each has a browser of its own, and jobs that end with it. */

import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test, type TestContext } from 'node:test';

import { Browser } from './browser.ts';
import { Cluster, Job, type User } from './cluster.ts';
import { Debugging } from './debugging.ts';
import { DevkitView } from './devkitView.ts';
import { SHOTS } from './paths.ts';
import { EditorServer } from './server.ts';
import { Workbench } from './workbench.ts';

const SCENARIO_SECONDS = 400; // on a quiet machine it takes 15; with eight busy processes per core 150

/** Whether what takes minutes is to run as well: `run --slow`. */
export function isSlowWanted(): boolean {
  return process.env['DEVKIT_E2E_SLOW'] === '1';
}

/** The shared part. It starts with the first scenario. */
class Shared {
  readonly cluster = new Cluster();
  private servers: Promise<EditorServer> | undefined;
  private started: Promise<void> | undefined;

  up(): Promise<void> {
    this.started ??= this.cluster.start();
    return this.started;
  }

  /** The editor of a user of this machine: the cluster's token is in its environment. */
  server(): Promise<EditorServer> {
    this.servers ??= EditorServer.start(path.join(this.cluster.folder, 'editor'), { env: this.cluster.environ });
    return this.servers;
  }

  async down(): Promise<void> {
    if (this.started === undefined) return;
    const server = await this.servers?.catch(() => undefined);
    await server?.stop();
    await this.started.catch(() => undefined); // one that has started in part is stopped too
    await this.cluster.stop();
  }
}

const shared = new Shared();

after(() => shared.down());

let playing: Scene | undefined;

// Whoever interrupts a run leaves nothing behind. The runner's own listeners would end the process before that is done.
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.removeAllListeners(signal);
  process.once(signal, () => {
    const closed = playing?.close() ?? Promise.resolve();
    void closed.catch(() => undefined).then(() => shared.down()).finally(() => process.exit(1));
  });
}

/** What a scenario has in hand. */
export class Scene {
  readonly cluster: Cluster;
  server!: EditorServer;
  private readonly context: TestContext;
  private readonly slug: string;
  private readonly jobs: Job[] = [];
  private readonly closing: (() => Promise<void>)[] = [];
  private browser: Browser | undefined;

  constructor(cluster: Cluster, context: TestContext) {
    this.cluster = cluster;
    this.context = context;
    this.slug = context.name.replace(/[^a-z0-9]+/gi, '-').toLowerCase().slice(0, 50);
  }

  get page(): Browser['page'] {
    if (this.browser === undefined) throw new Error('no browser is open');
    return this.browser.page;
  }

  get bench(): Workbench {
    return new Workbench(this.page);
  }

  get debug(): Debugging {
    return new Debugging(this.page);
  }

  get view(): DevkitView {
    return new DevkitView(this.page);
  }

  /** Opens the editor, or the one of another server. */
  async open(server = this.server): Promise<void> {
    this.browser = await Browser.open(server.url);
  }

  /** Closes the browser and opens it again, as a user does who comes back. */
  async reopen(server = this.server): Promise<void> {
    this.browser = await this.browser?.reopen(server.url);
  }

  /** Starts a program under `devkit run`, in the workspace of the editor; on the cluster, unless another user does. */
  job(program: readonly string[], options: readonly string[] = [], user: User = this.cluster): Job {
    const job = new Job(user, this.server.workspace, program, options);
    this.jobs.push(job);
    return job;
  }

  /** Something of this scenario's own that has to be put away. */
  later(close: () => Promise<void>): void {
    this.closing.unshift(close);
  }

  /** Keeps a picture, of a window of another size if one is given. */
  async shot(name: string, size?: { width: number; height: number }): Promise<void> {
    await this.browser?.shot(name, size);
  }

  /** A line of the report. */
  says(text: string): void {
    this.context.diagnostic(text);
  }

  /** A measured time, held against its target. Two cores that all share make it no hard limit here. */
  measured(what: string, milliseconds: number, target: number): void {
    this.says(`${what}: ${Math.round(milliseconds)} ms (target ${target} ms)${milliseconds > target ? ' OVER' : ''}`);
  }

  /** What there is to see after a failure. */
  async failed(): Promise<void> {
    await this.shot(`failed-${this.slug}`).catch(() => undefined);
    const texts = this.jobs.map((job) => job.output.slice(-4000));
    const listing = await this.cluster.devkit(['ps']).catch(String);
    writeFileSync(path.join(SHOTS, `failed-${this.slug}.txt`), [listing, ...texts].join('\n----\n'));
    this.says(`see vscode/e2e/shots/failed-${this.slug}.png and .txt`);
  }

  async close(): Promise<void> {
    await this.browser?.close();
    for (const close of this.closing) await close();
    await Promise.all(this.jobs.map((job) => job.end()));
  }

  async begin(): Promise<void> {
    await shared.up();
    this.server = await shared.server();
  }
}

export interface ScenarioOptions {
  /** Why it can't run here, when it can't. */
  readonly skip?: string | false;
  readonly seconds?: number;
}

/** A test. After a failure there is a screenshot. */
export function scenario(name: string, play: (scene: Scene) => Promise<void>, options: ScenarioOptions = {}): void {
  test(name, { timeout: (options.seconds ?? SCENARIO_SECONDS) * 1000, skip: options.skip ?? false }, async (context) => {
    const scene = new Scene(shared.cluster, context);
    playing = scene;
    try {
      await scene.begin();
      await play(scene);
    } catch (error) {
      await scene.failed();
      throw error;
    } finally {
      await scene.close();
    }
  });
}
