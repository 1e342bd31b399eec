/** Somebody who has set nothing: no token, no address, no cluster that was started before. */

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import path from 'node:path';

import { User } from '../lib/cluster.ts';
import { mark } from '../lib/paths.ts';
import { EditorServer } from '../lib/server.ts';
import { until } from '../lib/until.ts';
import { scenario } from '../lib/world.ts';

const SCALED = mark('ranks.py', 'scaled');

scenario('a plain run beside an editor without a token: its job, a breakpoint, its values', async (scene) => {
  const folder = path.join(scene.cluster.folder, 'plain');
  mkdirSync(folder);
  const user = new User(folder);
  assert.deepEqual(Object.keys(user.environ).filter((name) => /^(RAY|DEVKIT)_/.test(name)), ['RAY_TMPDIR', 'RAY_USAGE_STATS_ENABLED']);
  scene.server = await EditorServer.start(folder, { env: user.environ });
  scene.later(() => scene.server.stop());
  await scene.open();
  await scene.view.show();
  const none = scene.page.getByText(/No Ray cluster is running here/).first();
  await none.waitFor();

  const job = scene.job(['ranks.py', '2', '1'], [], user); // it brings a Ray of its own
  const id = await job.id();
  await scene.view.has(/^This machine/);
  await scene.view.act(/python ranks\.py/, 'Attach to All Ranks');
  await scene.debug.toolbar.waitFor();
  await scene.bench.open('ranks.py', SCALED);
  await scene.bench.gutterWith(SCALED, /Conditional/, 'k % 20 == 0'); // armed everywhere before the next such step
  await until('both ranks at the breakpoint', async () => {
    const { stops } = await user.ps(id);
    assert.deepEqual(stops.map(({ rank, line }) => [rank, line]).sort(), [[0, SCALED], [1, SCALED]]);
    return true;
  });
  await scene.bench.stopsAt(`ranks.py:${SCALED}`);
  await scene.debug.variable(['Locals', 'loss'], /= (nan|0\.25)$/);
  await scene.bench.command('Ray DevKit: Add Expression...');
  await scene.bench.answer('Show on All Ranks', 'loss');
  await scene.view.has(/^rank 0\s*0\.25/);
  await scene.view.has(/^rank 1\s*nan/);
  await scene.shot('plain-run');

  await scene.debug.press('Disconnect');
  await until('no breakpoint in the job', async () => (await user.ps()).breakpoints.length === 0);
  await user.devkit(['continue', '--all']);
  const steps = job.output.length;
  await until('more steps', () => job.output.length > steps + 50);
  await job.end();
  await none.waitFor(); // nothing is left of its Ray
});
