/** Programs that the editor itself starts: the current file under devkit, and the smoke test. */

import assert from 'node:assert/strict';

import { mark } from '../lib/paths.ts';
import { allWords, words } from '../lib/workbench.ts';
import { until } from '../lib/until.ts';
import { isSlowWanted, scenario } from '../lib/world.ts';

const GREETED = mark('local.py', 'greeted');

scenario('the current file, run from the editor: stops at a breakpoint of the gutter, ends in its terminal', async (scene) => {
  await scene.open();
  await scene.bench.open('local.py', GREETED);
  await scene.bench.gutter(GREETED);
  await scene.bench.command('Ray DevKit: Run the Current File');
  await scene.debug.stackHas(/greet.*Paused/);
  await scene.bench.stopsAt(`local.py:${GREETED}`);
  await scene.debug.variable(['Locals', 'text'], /= 'hello world'$/);
  await scene.shot('run-the-current-file');
  const stop = await until('the stop in the cluster', async () => (await scene.cluster.ps()).stops.find((one) => one.line === GREETED));
  assert.equal(stop.reason, 'breakpoint');
  await scene.debug.press('Continue');
  await scene.bench.terminalSays(/SAID hello world/);
  await scene.debug.toolbar.waitFor({ state: 'hidden' }); // the session ends with its program
  await until('no breakpoint in the cluster', async () => (await scene.cluster.ps()).breakpoints.length === 0);
});

scenario(
  'the smoke test in the Test Explorer',
  async (scene) => {
    await scene.open();
    await scene.bench.command('Ray DevKit: Smoke Test');
    const rows = scene.page.locator('.test-explorer .monaco-list-row');
    const root = rows.filter({ hasText: /devkit smoke --tiny/ }).first();
    await until('the verdict', async () => /pass in/.test(await words(root)), 300);
    await until('the checks, each passed', async () => {
      if ((await root.getAttribute('aria-expanded')) !== 'true') await root.locator('.monaco-tl-twistie').click();
      const states = await rows.evaluateAll((all) => all.map((row) => row.getAttribute('aria-label') ?? ''));
      if (states.length < 10 || !states.every((state) => /Passed|Skipped/i.test(state))) throw new Error(JSON.stringify(states));
      return true;
    });
    assert.ok((await allWords(rows)).some((text) => /masks/.test(text)));
    await scene.shot('smoke-test');
  },
  { skip: isSlowWanted() ? false : 'slow: vscode/e2e/run --slow', seconds: 400 },
);
