/** One stop: clicked in the list, looked at, stepped, continued; and found again after the browser was closed. */

import assert from 'node:assert/strict';

import { mark } from '../lib/paths.ts';
import { until } from '../lib/until.ts';
import { scenario } from '../lib/world.ts';

scenario('a stop in an actor: click, line, stack, variables, step, continue', async (scene) => {
  await scene.open();
  await scene.view.show();
  const job = scene.job(['counter.py']);
  const row = await scene.view.has(/Counter.*counter\.py:13/);
  const seen = Date.now();
  const [stop] = await job.stops(1);
  assert.ok(stop);
  scene.measured('a new stop is in the view after', seen - stop.since * 1000, 1000);
  await scene.shot('view-stop');

  const clicked = Date.now();
  await row.click();
  await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'pause')}`);
  scene.measured('from the click to the stopped line', Date.now() - clicked, 1500);
  await scene.debug.stackHas(/Counter\.add.*counter\.py/);
  await scene.debug.variable(['Locals', 'number'], /= 21$/);
  await scene.debug.variable(['Locals', 'batch', "'twice'", '1'], /= 21$/);
  await scene.debug.variable(['Locals', 'self', 'total'], /= 40$/);
  assert.match(await scene.debug.evaluate('self.total + number'), /61$/);
  await scene.shot('stop-in-an-actor');

  // A second click leads to the same session.
  await scene.view.show();
  await row.click();
  await scene.debug.stackHas(/Counter\.add.*counter\.py/);
  await scene.debug.press('Step Over');
  await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'next')}`);
  assert.deepEqual((await job.stops(1)).map(({ attached }) => attached), [1]);
  await scene.debug.press('Step Over');
  await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'last')}`);
  await scene.debug.variable(['Locals', 'self', 'total'], /= 61$/);
  assert.doesNotMatch(job.output, /RESULT/);
  await scene.debug.press('Continue');
  await job.process.says(/RESULT 63/);
  assert.equal(await job.process.ends(), 0);
  await scene.view.show();
  await until('a list without the stop', async () => {
    const rows = await scene.view.texts();
    // Not a crash of a driver that an earlier scenario has ended.
    if (rows.some((row) => /Counter.*counter\.py:\d/.test(row))) throw new Error(`it has ${JSON.stringify(rows)}`);
    return true;
  });
});

scenario('browser closed at a stop and opened again: the stop is there, with the same variables', async (scene) => {
  const job = scene.job(['counter.py']);
  const [stop] = await job.stops(1);
  assert.ok(stop);
  for (const open of [() => scene.open(), () => scene.reopen()]) {
    await open();
    await scene.view.show();
    await (await scene.view.has(/Counter.*counter\.py:13/)).click();
    await scene.bench.stopsAt(`counter.py:${mark('counter.py', 'pause')}`);
    await scene.debug.variable(['Locals', 'number'], /= 21$/);
    await scene.debug.variable(['Locals', 'self', 'total'], /= 40$/);
  }
  const now = await job.stops(1);
  assert.deepEqual([now[0]?.id, now[0]?.since], [stop.id, stop.since]); // not another stop at the same place
  await scene.shot('stop-after-reopening');
  await scene.debug.press('Continue');
  await job.process.says(/RESULT 63/);
});
