/** Many ranks: breakpoints in the gutter of a running job, one session with each rank as a child, values side by side. */

import assert from 'node:assert/strict';

import { SMALL } from '../lib/browser.ts';
import { mark } from '../lib/paths.ts';
import { until } from '../lib/until.ts';
import { type Scene, scenario } from '../lib/world.ts';

const SCALED = mark('ranks.py', 'scaled');
const COUNT = mark('ranks.py', 'count');

/** The lines at which the ranks of a job are stopped, by rank. */
async function stoppedLines(scene: Scene, job: string): Promise<Record<string, number>> {
  const { stops } = await scene.cluster.ps(job);
  return Object.fromEntries(stops.map((stop) => [String(stop.rank), stop.line]));
}

/** The step that the job has come to. */
function step(output: string): number {
  return Number([...output.matchAll(/STEP (\d+)/g)].at(-1)?.[1] ?? -1);
}

scenario('a gutter breakpoint in a running job, on rank 1 only', async (scene) => {
  const job = scene.job(['ranks.py']);
  await job.process.says(/STEP 2/);
  const id = await job.id();
  await scene.open();
  await scene.view.show();
  await scene.view.act(/python ranks\.py/, 'Attach to All Ranks');
  await scene.debug.toolbar.waitFor();
  await scene.bench.open('ranks.py', SCALED);
  await scene.bench.gutterWith(SCALED, /Conditional/, '@[1]');
  const stop = await until('a stop of rank 1', async () => (await scene.cluster.ps(id)).stops[0]);
  await scene.bench.stopsAt(`ranks.py:${SCALED}`);
  assert.equal(stop.rank, 1);
  assert.deepEqual(await stoppedLines(scene, id), { 1: SCALED });
  assert.match(await scene.debug.icon('ranks.py', SCALED), /codicon-debug-breakpoint-conditional(?!-unverified)/);
  await scene.debug.variable(['Locals', 'loss'], /= nan$/);
  const [armed] = (await scene.cluster.ps()).breakpoints;
  assert.match(armed?.spec ?? '', /ranks\.py:\d+ @\[1\]/);
  await scene.shot('gutter-breakpoint-on-rank-1');

  // A session that ends takes its breakpoints along, and leaves the stop.
  await scene.debug.press('Disconnect');
  await until('no breakpoint in the job', async () => (await scene.cluster.ps()).breakpoints.length === 0);
  assert.deepEqual(await stoppedLines(scene, id), { 1: SCALED });
  const before = step(job.output);
  await scene.view.show();
  await scene.view.act(/Trainer.*ranks\.py/, 'Continue');
  await until('more steps', () => step(job.output) > before + 2);
});

scenario('a gutter breakpoint that nothing would arm offers a session', async (scene) => {
  const job = scene.job(['ranks.py']);
  await job.process.says(/STEP 2/);
  const id = await job.id();
  await scene.open();
  await scene.view.show();
  await scene.view.row(/python ranks\.py/).waitFor();
  await scene.bench.open('ranks.py', COUNT);
  await scene.bench.gutter(COUNT);
  await scene.bench.choose(/runs under devkit/, 'Attach to All Ranks');
  // A rank that has passed the line in this step waits for the others: not all of them need to stop.
  await until('a breakpoint in all processes of the job', async () => {
    const [one] = (await scene.cluster.ps()).breakpoints;
    return one !== undefined && one.workers >= 4 && one.armed === one.workers;
  });
  await until('a stop', async () => (await scene.cluster.ps(id)).stops.some((stop) => stop.line === COUNT));
  await scene.bench.stopsAt(`ranks.py:${COUNT}`);
  await scene.shot('offered-session');
});

scenario('all ranks as children of one session: step all, continue all, odd values', async (scene) => {
  const job = scene.job(['ranks.py'], ['--break', `ranks.py:${SCALED} if k == 3`]);
  const stops = await job.stops(3);
  const id = await job.id();
  assert.deepEqual(stops.map((stop) => stop.rank).sort(), [0, 1, 2]);
  await scene.open();
  await scene.view.show();
  await scene.view.act(/python ranks\.py/, 'Attach to All Ranks');
  for (const rank of [0, 1, 2]) await scene.debug.stackHas(new RegExp(`^rank ${rank} Trainer.*Paused`));
  await scene.bench.stopsAt(`ranks.py:${SCALED}`);
  await scene.debug.variable(['Locals', 'loss'], /=/);
  await scene.shot('all-ranks');

  await scene.bench.command('Ray DevKit: Add Expression...');
  await scene.bench.answer('Show on All Ranks', 'loss');
  const most = await scene.view.has(/^ranks 0,2\s*0\.25/);
  const odd = await scene.view.has(/^rank 1\s*nan/);
  assert.doesNotMatch((await most.getAttribute('aria-label')) ?? '', /differs/);
  assert.match((await odd.getAttribute('aria-label')) ?? '', /differs from the rest/);
  await scene.shot('cross-rank-values');

  await scene.bench.command('Ray DevKit: All Ranks: Step Over');
  await until('all ranks one line further', async () => {
    const lines = await stoppedLines(scene, id);
    assert.deepEqual(lines, { 0: COUNT, 1: COUNT, 2: COUNT });
    return true;
  });
  await scene.bench.stopsAt(`ranks.py:${COUNT}`);
  assert.equal(step(job.output), 2);
  await scene.bench.command('Ray DevKit: All Ranks: Continue');
  await until('step 3 and more', () => step(job.output) > 4);
  assert.deepEqual(await stoppedLines(scene, id), {});
});

scenario('eight ranks, and the one whose loss is nan is marked', async (scene) => {
  const job = scene.job(['ranks.py', '8', '5'], ['--break', `ranks.py:${SCALED} if k == 3`]);
  await job.stops(8);
  await scene.open();
  await scene.view.show();
  await scene.view.act(/python ranks\.py/, 'Attach to All Ranks');
  await scene.bench.stopsAt(`ranks.py:${SCALED}`);
  await scene.view.show();
  await scene.bench.command('Ray DevKit: Add Expression...');
  await scene.bench.answer('Show on All Ranks', 'loss');
  await scene.view.has(/^ranks 0-4,6[-,]7\s*0\.25/);
  const odd = await scene.view.has(/^rank 5\s*nan/);
  assert.match((await odd.getAttribute('aria-label')) ?? '', /differs from the rest/);
  await scene.bench.command('View: Hide Panel');
  await scene.shot('values-on-all-ranks', SMALL);
});
