/** What the view says when there is nothing to list, and of what has ended: never more than devkit knows. */

import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { environment } from '../lib/cluster.ts';
import { PYTHON } from '../lib/paths.ts';
import { EditorServer } from '../lib/server.ts';
import { until } from '../lib/until.ts';
import { scenario } from '../lib/world.ts';

scenario('an empty view: it looks, it has found nothing, it cannot reach what there should be', async (scene) => {
  const folder = path.join(scene.cluster.folder, 'newcomer');
  mkdirSync(folder);
  // devkit as ever, but that its first look lasts until we say so, and that it learns of a cluster meanwhile.
  const around = path.join(folder, 'around.sh');
  const command = path.join(folder, 'held-devkit');
  const hold = `case $1 in ps) while [ ! -e "${around}" ]; do sleep 0.1; done; . "${around}";; esac`;
  writeFileSync(command, `#!/bin/sh\n${hold}\nexec "${PYTHON}" -m devkit "$@"\n`);
  chmodSync(command, 0o755);
  const server = await EditorServer.start(folder, { env: environment(folder), settings: { 'devkit.command': command } });
  scene.later(() => server.stop());
  await scene.open(server);
  await scene.view.show();
  const text = (words: RegExp): Promise<void> => scene.page.getByText(words).first().waitFor();
  const none = /No Ray cluster is running here/;
  await text(/Looking for a Ray cluster/);
  assert.equal(await scene.page.getByText(none).count(), 0);
  await scene.shot('view-looking');

  writeFileSync(around, '');
  await text(none);
  assert.equal(await scene.page.getByText(/Looking for a Ray cluster/).count(), 0);

  writeFileSync(around, 'export RAY_ADDRESS=http://127.0.0.1:9\n');
  await scene.bench.command('Ray DevKit: Refresh');
  await scene.view.has(/^This machine.*not reachable/);
  await scene.view.has(/^Not reachable.*127\.0\.0\.1:9/);
  assert.equal(await scene.page.getByText(none).count(), 0);
  await scene.shot('view-unreachable');

  const { RAY_AUTH_TOKEN: token, RAY_ADDRESS: address } = scene.cluster.environ;
  writeFileSync(around, `export RAY_AUTH_TOKEN=${token} RAY_ADDRESS=${address}\n`);
  await (await scene.view.has(/^Retry/)).click();
  await until('a cluster that answers', async () => {
    const rows = await scene.view.texts();
    if (rows.some((row) => /reachable|Retry/.test(row))) throw new Error(`it has ${JSON.stringify(rows)}`);
    return rows.some((row) => /^This machine/.test(row));
  });
});

scenario('a job that failed is FAILED, with its exit code', async (scene) => {
  const gate = path.join(scene.cluster.folder, 'may-fail');
  await scene.open();
  await scene.view.show();
  const job = scene.job(['fails.py', gate]);
  await job.process.says(/WAITS/);
  await scene.view.has(/python fails\.py.*process/);
  writeFileSync(gate, '');
  await job.process.ends();
  await scene.view.has(/python fails\.py.*FAILED, exit code 3/);
  await scene.shot('failed-job');
});
