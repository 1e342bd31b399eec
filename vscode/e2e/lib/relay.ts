/** Joins two sockets: `relay.ts tcp:PORT unix:PATH` listens at the first and connects to the second. */

import { createConnection } from 'node:net';

import { listen } from './nowhere.ts';

function place(text: string | undefined): string | number {
  const [, kind, where] = /^(tcp|unix):(.+)$/.exec(text ?? '') ?? [];
  if (kind === undefined || where === undefined) throw new Error(`not a socket: ${text}`);
  return kind === 'tcp' ? Number(where) : where;
}

const [here, there] = [place(process.argv[2]), place(process.argv[3])];
await listen(here, () => (typeof there === 'number' ? createConnection(there, '127.0.0.1') : createConnection(there)));
console.log('ready');
