/** Clusters that are elsewhere: the dashboard's URL and the token are all that an editor has. */

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import path from 'node:path';

import { environment } from '../lib/cluster.ts';
import { Nowhere, whyNot } from '../lib/nowhere.ts';
import { mark } from '../lib/paths.ts';
import { EditorServer } from '../lib/server.ts';
import { type Scene, scenario } from '../lib/world.ts';

/** An editor of somebody who has no part in this machine's clusters: another home, no token. */
async function stranger(scene: Scene, name: string, prefix: readonly string[] = []): Promise<EditorServer> {
  const folder = path.join(scene.cluster.folder, name);
  mkdirSync(folder);
  const env = environment(folder);
  const settings = { 'devkit.localCluster': false };
  const server = await EditorServer.start(folder, { env, prefix, settings });
  scene.later(() => server.stop());
  return server;
}

async function addCluster(scene: Scene, token: string): Promise<void> {
  await scene.bench.command('Ray DevKit: Add Cluster...');
  await scene.bench.answer('Add a Ray Cluster (1/2)', scene.cluster.dashboard);
  await scene.bench.answer('Add a Ray Cluster (2/2)', token);
}

scenario('a cluster with a token: a wrong one is told, the right one lets in', async (scene) => {
  const server = await stranger(scene, 'stranger');
  const job = scene.job(['counter.py']);
  await job.stops(1);
  await scene.open(server);
  await scene.view.show();
  await addCluster(scene, 'f'.repeat(64));
  await scene.view.has(/wrong token/);
  await scene.view.has(/^Wrong token.*refuses the token/);
  await scene.shot('wrong-token');

  await (await scene.view.has(/^Set Token/)).click();
  await scene.bench.answer('Set Token', scene.cluster.token);
  await (await scene.view.has(/Counter.*counter\.py:\d/)).click();
  await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'pause')}`);
  await scene.debug.variable(['Locals', 'number'], /= 21$/);
  await scene.debug.press('Continue');
  await job.process.says(/RESULT 63/);
});

scenario(
  'an editor that reaches nothing but the dashboard',
  async (scene) => {
    const nowhere = new Nowhere(scene.cluster.folder);
    scene.later(() => nowhere.close());
    const dashboard = Number(new URL(scene.cluster.dashboard).port);
    await nowhere.out(dashboard, scene.cluster.environ);
    const inside = await stranger(scene, 'nowhere', nowhere.prefix);
    const port = await nowhere.in(Number(new URL(inside.url).port), scene.cluster.environ);
    const job = scene.job(['counter.py']);
    await job.stops(1);
    await scene.open(inside.at(port));
    await scene.view.show();
    await addCluster(scene, scene.cluster.token);
    await (await scene.view.has(/Counter.*counter\.py:\d/)).click();
    await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'pause')}`);
    await scene.debug.variable(['Locals', 'batch', "'number'"], /= 21$/);
    assert.match(await scene.debug.evaluate('self.total + number'), /61$/);
    await scene.debug.press('Step Over');
    await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'next')}`);
    await scene.debug.variable(['Locals', 'batch', "'number'"], /= 21$/);
    await scene.shot('only-the-dashboard');
    await scene.debug.press('Continue');
    await job.process.says(/RESULT 63/);
  },
  { skip: whyNot() || false },
);
