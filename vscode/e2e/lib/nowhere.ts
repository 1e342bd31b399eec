/**
 * A network in which nothing but the dashboard answers: a namespace of its own, where every other address is a hole
 * that says nothing, as behind a firewall. Two relays over Unix sockets lead in and out: in to the editor, out to the
 * dashboard. Needs root.
 */

import { spawnSync } from 'node:child_process';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import path from 'node:path';

import { type Environment, Process } from './processes.ts';
import { E2E } from './paths.ts';
import { until } from './until.ts';

const HOLE = ['tuntap', 'add', 'hole', 'mode', 'tun'];

/** Why there can't be one here; an empty text if there can. */
export function whyNot(): string {
  const name = `dkprobe${process.pid}`;
  const made = spawnSync('ip', ['netns', 'add', name]);
  const hole = spawnSync('ip', ['-n', name, ...HOLE]);
  spawnSync('ip', ['netns', 'del', name]);
  if (made.status !== 0) return 'no network namespace can be made here: it needs root';
  return hole.status === 0 ? '' : 'no tun device can be made here';
}

export class Nowhere {
  readonly prefix: readonly string[];
  private readonly name: string;
  private readonly folder: string;
  private readonly relays: Process[] = [];
  private readonly servers: Server[] = [];

  constructor(folder: string) {
    this.name = `dkv${process.pid}`;
    this.folder = folder;
    this.prefix = ['ip', 'netns', 'exec', this.name];
    ip('netns', 'add', this.name);
    const inside = (...words: string[]): void => ip('-n', this.name, ...words);
    inside('link', 'set', 'lo', 'up');
    // Whatever is sent elsewhere goes into a device that nobody reads.
    inside(...HOLE);
    inside('addr', 'add', '198.18.0.1/32', 'dev', 'hole');
    inside('link', 'set', 'hole', 'up');
    inside('route', 'add', 'default', 'dev', 'hole', 'src', '198.18.0.1');
  }

  /** Lets one port of this machine's 127.0.0.1 be reached at the same address inside. */
  async out(port: number, env: Environment): Promise<void> {
    const socket = path.join(this.folder, 'out.sock');
    this.servers.push(await listen(socket, () => createConnection(port, '127.0.0.1')));
    await this.relay([`tcp:${port}`, `unix:${socket}`], env);
  }

  /** Lets a port inside be reached from here; the port that leads there. */
  async in(port: number, env: Environment): Promise<number> {
    const socket = path.join(this.folder, 'in.sock');
    await this.relay([`unix:${socket}`, `tcp:${port}`], env);
    const server = await listen(0, () => createConnection(socket));
    this.servers.push(server);
    const address = server.address();
    return typeof address === 'object' && address ? address.port : 0;
  }

  private async relay(ends: readonly string[], env: Environment): Promise<void> {
    const relay = new Process([...this.prefix, process.execPath, path.join(E2E, 'lib', 'relay.ts'), ...ends], { env });
    this.relays.push(relay);
    await relay.says(/ready/);
  }

  /** Ends what runs inside by us, and the namespace. */
  async close(): Promise<void> {
    for (const relay of this.relays) await relay.end();
    for (const server of this.servers) server.close();
    await until('an empty namespace', () => spawnSync('ip', ['netns', 'pids', this.name]).stdout.toString().trim() === '');
    ip('netns', 'del', this.name);
  }
}

function ip(...words: string[]): void {
  const done = spawnSync('ip', words);
  if (done.status !== 0) throw new Error(`ip ${words.join(' ')}: ${done.stderr.toString()}`);
}

/** A server each of whose connections is joined to a new one. */
export async function listen(where: string | number, connect: () => Socket): Promise<Server> {
  const server = createServer((near) => {
    const far = connect();
    for (const [one, other] of [[near, far], [far, near]] as const) {
      one.pipe(other);
      one.on('error', () => other.destroy());
      one.on('close', () => other.destroy());
    }
  });
  await new Promise<void>((done, fail) => {
    server.once('error', fail);
    if (typeof where === 'number') server.listen(where, '127.0.0.1', done);
    else server.listen(where, done);
  });
  return server;
}
