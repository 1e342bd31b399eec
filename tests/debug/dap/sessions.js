// Sessions with `devkit dap`, driven by Microsoft's client for tests of debug adapters.
// node sessions.js NAME: one of the scenarios below. Its options come by the environment.
"use strict";
const assert = require("assert");
const path = require("path");
const { createRequire } = require("module");
const fromProject = createRequire(path.join(process.env.DEVKIT_TEST_NODE, "package.json"));
const { DebugClient } = fromProject("@vscode/debugadapter-testsupport");

const line = (mark) => Number(JSON.parse(process.env.DEVKIT_TEST_LINES)[mark]);
const file = process.env.DEVKIT_TEST_FILE;

// What the client's own `launch` does, with `attach`.
async function begin(client, options) {
  const response = await client.initializeRequest();
  assert.strictEqual(response.body.supportsConfigurationDoneRequest, true);
  client._supportsConfigurationDoneRequest = true;
  return client.attachRequest(options);
}

async function locals(client, frame) {
  const scopes = await client.scopesRequest({ frameId: frame.id });
  const reference = scopes.body.scopes[0].variablesReference;
  const variables = await client.variablesRequest({ variablesReference: reference });
  return Object.fromEntries(variables.body.variables.map((each) => [each.name, each]));
}

const scenarios = {
  async attach(client) {
    const [, , stopped] = await Promise.all([
      client.configurationSequence(),
      begin(client, { justMyCode: false }),
      client.assertStoppedLocation("breakpoint", { path: file, line: line("pause") }),
    ]);
    const top = stopped.body.stackFrames[0];
    assert.strictEqual((await locals(client, top)).step.value, "17");
    const sum = await client.evaluateRequest({ expression: "step + 1", frameId: top.id, context: "watch" });
    assert.strictEqual(sum.body.result, "18");
    const threads = await client.threadsRequest();
    const threadId = threads.body.threads[0].id;
    await Promise.all([
      client.nextRequest({ threadId }),
      client.assertStoppedLocation("step", { path: file, line: line("batch") }),
    ]);
    await assert.rejects(client.evaluateRequest({ expression: "nothing_of_this_name" }), /nothing_of_this_name/);
    await client.disconnectRequest();
  },

  async all(client) {
    const stops = [];
    const both = new Promise((resolve) =>
      client.on("stopped", (event) => stops.push(event.body.threadId) === 2 && resolve()),
    );
    await Promise.all([
      client.configurationSequence(),
      begin(client, {}),
      both,
    ]);
    const threads = await client.threadsRequest();
    assert.deepStrictEqual(threads.body.threads.map((each) => each.name), ["Worker[0]", "Worker[1]"]);
    for (const [rank, thread] of threads.body.threads.entries()) {
      const stack = await client.stackTraceRequest({ threadId: thread.id });
      client.assertPath(stack.body.stackFrames[0].source.path, file);
      const frameId = stack.body.stackFrames[0].id;
      const value = await client.evaluateRequest({ expression: "model.rank", frameId });
      assert.strictEqual(value.body.result, String(rank));
    }
    const moved = await client.customRequest("devkitAll", { command: "next" });
    assert.strictEqual(moved.body.results.length, 2);
    await client.disconnectRequest();
  },

  async crash(client) {
    const [, , stopped] = await Promise.all([
      client.configurationSequence(),
      client.launch({}),
      client.assertStoppedLocation("exception", { path: file, line: line("forward") }),
    ]);
    const variables = await locals(client, stopped.body.stackFrames[0]);
    assert.strictEqual(variables.scale.value, "2");
    const info = await client.exceptionInfoRequest({ threadId: 1 });
    assert.strictEqual(info.body.exceptionId, "TypeError");
    await assert.rejects(client.continueRequest({ threadId: 1 }), /the process is gone/);
    await Promise.all([client.disconnectRequest(), client.waitForEvent("terminated")]);
  },

  async error(client) {
    await assert.rejects(client.initializeRequest(), /error: no stop has the id 'nope'/);
  },
};

async function main() {
  const client = new DebugClient(process.env.DEVKIT_TEST_PYTHON, process.env.DEVKIT_TEST_ADAPTER, "devkit", undefined, true);
  client.defaultTimeout = 20000;
  await client.start();
  const ended = new Promise((resolve) => client._adapterProcess.on("exit", resolve));
  await scenarios[process.argv[2]](client);
  client.outputStream.end();
  console.log(JSON.stringify({ code: await ended }));
}

setTimeout(() => {
  console.error(`${process.argv[2]} did not end`);
  process.exit(2);
}, 40000).unref();

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
