/** What crashed: paused at the exception, and read from its snapshot when the worker is dead. */

import assert from 'node:assert/strict';

import { mark } from '../lib/paths.ts';
import { until } from '../lib/until.ts';
import { scenario } from '../lib/world.ts';

const RAISES = mark('divide.py', 'raises');

scenario('a pause after an exception that nobody catches', async (scene) => {
  const job = scene.job(['divide.py'], ['--post-mortem', 'pause']);
  await scene.open();
  await scene.view.show();
  await (await scene.view.has(/divide.*ZeroDivisionError/)).click();
  await scene.bench.stopsAt(`divide.py:${RAISES}`);
  assert.match(await scene.debug.exception(/divide.*divide\.py/), /ZeroDivisionError/);
  await scene.debug.variable(['Locals', 'numerator'], /= 40$/);
  await scene.debug.variable(['Locals', 'denominator'], /= 0$/);
  assert.match(await scene.debug.evaluate('numerator + 2'), /42$/);
  await scene.shot('post-mortem');
  assert.doesNotMatch(job.output, /CAUGHT/);
  await scene.debug.press('Continue');
  await job.process.says(/CAUGHT/);
});

scenario('a crash snapshot after the worker died: frames and variables to read', async (scene) => {
  const job = scene.job(['divide.py', 'snapshot']);
  assert.equal(await job.process.ends(), 0);
  const id = await job.id();
  await until('an end of its workers', async () => {
    const { workers } = await scene.cluster.ps();
    return workers.every((worker) => worker.job_id !== id || !worker.connected);
  });
  await scene.open();
  await scene.view.show();
  await (await scene.view.has(/divide.*ZeroDivisionError/)).click();
  await scene.bench.stopsAt(`divide.py:${RAISES}`);
  await scene.debug.stackHas(/divide.*divide\.py/);
  await scene.debug.variable(['Locals', 'numerator'], /= 40$/);
  await scene.debug.variable(['Locals', 'password'], /redacted/);
  // To read: a double click begins no edit.
  await scene.debug.named('numerator').dblclick();
  await scene.debug.variable(['Locals', 'denominator'], /= 0$/);
  assert.equal(await scene.page.locator('.debug-variables .monaco-inputbox').count(), 0);
  await scene.shot('crash-snapshot');
});
