import { describe, expect, test } from "vitest";
import type { ClusterView } from "../src/model/clusters";
import { armed, clusterTree, placeOf } from "../src/model/clusterTree";
import { shortCommand } from "../src/model/jobTree";
import type { Node } from "../src/model/node";
import type { ProblemKind } from "../src/model/problems";
import type { JobRecord } from "../src/model/records";
import { OFF } from "../src/model/watch";
import { breakpoint, cluster, crash, job, live, NOON, ps, SECOND, stop, worker } from "./records";

const setting = { folders: ["/home/me/job"], now: NOON };

/** The tree as indented lines. */
function lines(nodes: readonly Node[], indent = ""): string[] {
  return nodes.flatMap((node) => [
    `${indent}${node.label} | ${node.description ?? ""}`,
    ...lines(node.children, `${indent}  `),
  ]);
}

function all(nodes: readonly Node[]): Node[] {
  return nodes.flatMap((node) => [node, ...all(node.children)]);
}

function tree(...views: ClusterView[]): Node[] {
  return clusterTree(views, setting);
}

const busy = cluster({
  watch: live(
    ps({
      stops: [stop({ rank: 1, attached: 2 }), stop({ rank: 0 })],
      breakpoints: [breakpoint({ hits: 2 })],
      workers: [
        worker({ rank: 0 }),
        worker({ rank: 1 }),
        worker({ rank: null, role: "driver" }),
        worker({ job_id: "", rank: null }),
      ],
      crashes: 2,
    }),
  ),
  crashes: [crash(), crash({ id: "c2", role: "driver", root: "c1", time: SECOND - 4 })],
  jobs: [job()],
});

test("clusters > jobs > stopped ranks, crashes; breakpoints", () => {
  expect(lines(tree(busy))).toEqual([
    "This machine | 2 paused",
    "  python train.py | 3 processes · job 01",
    "    Paused | 2",
    "      rank 0 · Worker | train.py:16 · 11:58:55",
    "      rank 1 · Worker | train.py:16 · 11:58:55",
    "    Crashes | 1",
    "      boom | train.py:22 · IndexError: list index out of range",
    "        driver | train.py:22 · IndexError: list index out of range",
    "  Breakpoints | 1",
    "    train.py:16 | if k == 3 · armed in 3 of 3, 2 hits",
  ]);
});

test("what a row has no room for is in its tooltip", () => {
  const nodes = all(tree(busy));
  const second = nodes.filter((node) => node.context === "stop")[1]?.tooltip;
  for (const part of ["Worker\\.step", "breakpoint", "since 11:58:55", "2 debuggers attached", "pid 101", "a1\\-1"]) {
    expect(second?.replace("`Worker.step`", "`Worker\\.step`")).toContain(part);
  }
  expect(nodes.find((node) => node.context === "crash")?.tooltip).toContain("11:59:55");
  expect(nodes.find((node) => node.context.startsWith("job"))?.tooltip).toContain("Job 01000000");
});

test("stops come by rank, whoever stopped first", () => {
  const stops = [9, 1, 10, 0].map((rank) => stop({ rank, since: SECOND - rank }));
  const rows = all(tree(cluster({ watch: live(ps({ stops })) }))).filter((node) => node.context === "stop");
  expect(rows.map((node) => node.subject.stop?.rank)).toEqual([0, 1, 9, 10]);
});

test("ids are unique, and the same at each drawing, so that a selection stays", () => {
  const ids = all(tree(busy)).map((node) => node.id);
  expect(new Set(ids).size).toBe(ids.length);
  expect(all(tree(busy)).map((node) => node.id)).toEqual(ids);
  const two = all(tree(busy, { ...busy, key: "http://head:8265" })).map((node) => node.id);
  expect(new Set(two).size).toBe(two.length);
});

test("a time that passes changes nothing in the tree", () => {
  const later = clusterTree([busy], { ...setting, now: new Date(NOON.getTime() + 5000) });
  expect(JSON.stringify(later)).toBe(JSON.stringify(tree(busy)));
});

test("nodes say what a click and the inline actions need", () => {
  const nodes = all(tree(busy));
  const job = nodes.find((node) => node.context.startsWith("job"));
  expect(job).toMatchObject({ context: "job.stopped.running", subject: { cluster: "local", job: "01000000" } });
  const first = nodes.find((node) => node.context === "stop");
  expect(first).toMatchObject({ click: "devkit.attachStop", subject: { stop: { id: "a0-1" }, place: { line: 16 } } });
  expect(nodes.find((node) => node.context === "crash")).toMatchObject({
    click: "devkit.openCrash",
    subject: { crash: { id: "c1" } },
  });
  expect(nodes.find((node) => node.context === "breakpoint")?.subject.place).toEqual({ file: "train.py", line: 16 });
});

test("an exception's stop says which; a lost worker says so", () => {
  const exception = { type: "ValueError", message: "bad\nvalue" };
  const view = cluster({
    watch: live(ps({ stops: [stop({ reason: "exception", exception })], workers: [worker({ connected: false })] })),
  });
  const node = all(tree(view)).find((one) => one.context === "stop");
  expect(node?.description).toBe("connection lost · train.py:16 · ValueError: bad value");
  expect(node?.icon?.id).toBe("debug-disconnect");
});

test("each job has its own, the newest first", () => {
  const stops = [stop(), stop({ id: "z-1", job_id: "02000000" })];
  const view = cluster({ watch: live(ps({ stops, workers: [worker(), worker({ job_id: "02000000" })] })) });
  const jobs = tree(view)[0]?.children ?? [];
  expect(jobs.map((job) => job.label)).toEqual(["Job 02", "Job 01"]);
  expect(
    jobs.map((job) =>
      all(job.children)
        .filter((node) => node.context === "stop")
        .map((node) => node.subject.stop?.id),
    ),
  ).toEqual([["z-1"], ["a0-1"]]);
});

test("a job that has ended keeps its crashes", () => {
  const view = cluster({ watch: live(ps({ crashes: 1 })), crashes: [crash()] });
  const [machine] = tree(view);
  expect(machine?.children[0]).toMatchObject({ label: "Job 01", description: "ended", context: "job.ended" });
});

describe("a job whose driver failed", () => {
  const failed = job({ status: "FAILED", exit_code: 1, message: "the driver ended with exit code 1" });
  const row = (jobs: JobRecord[], crashes = [crash()]): Node | undefined =>
    tree(cluster({ watch: live(ps({ crashes: 1 })), crashes, jobs }))[0]?.children[0];

  test("is FAILED, with its exit code", () => {
    expect(row([failed])).toMatchObject({ description: "FAILED, exit code 1 · job 01", icon: { id: "error" } });
    expect(row([failed])?.tooltip).toContain("the driver ended with exit code 1");
    expect(row([job({ status: "FAILED" })])?.description).toBe("FAILED · job 01");
    expect(row([job({ status: "SUCCEEDED" })])?.description).toBe("ended · job 01");
  });

  test("has a row also when nothing of it has crashed", () => {
    expect(row([failed], [])).toMatchObject({ label: "python train.py", description: "FAILED, exit code 1 · job 01" });
    expect(row([job({ status: "SUCCEEDED" })], [])?.label).toBe("No job");
  });
});

test("nothing is stopped: it says what to do next", () => {
  const calm = all(tree(cluster({ watch: live(ps({ workers: [worker()] })) })));
  expect(calm.find((node) => node.label === "No rank is paused")).toMatchObject({ click: "devkit.attachAll" });
  expect(lines(tree(cluster()))[1]).toContain("devkit run -- CMD");
});

test("stops that are over are told with the reason, except those that were continued", () => {
  const gone = { ...stop(), reason: "the worker died", time: SECOND - 3 };
  const view = cluster({ watch: live(ps({ gone: [gone, { ...gone, id: "x", reason: "continued" }] })) });
  expect(lines(tree(view))).toContain("    rank 0 · Worker | the worker died · 11:59:57");
  expect(lines(tree(view))).toContain("  No Longer Paused | 1");
});

describe("a cluster with a problem", () => {
  const broken = (kind: ProblemKind): Node[] => {
    const problem = { kind, error: "it does not answer", hint: "is it up?" };
    return tree(cluster({ key: "http://head:8265", watch: { ...OFF, phase: "waiting", problem } }));
  };

  test("shows error and hint", () => {
    expect(lines(broken("unreachable")).slice(0, 3)).toEqual([
      "head:8265 | not reachable",
      "  Not reachable | it does not answer",
      "  is it up? | ",
    ]);
  });

  test("says of a token what this editor can do about it", () => {
    expect(lines(broken("token"))).toEqual([
      "head:8265 | token required",
      "  Token required | it does not answer",
      "  Set Token... | ",
    ]);
  });

  test("keeps the rows that were last known, greyed, below the error and its remedy", () => {
    const problem = { kind: "unreachable", error: "the hub went away", hint: "is it up?" } as const;
    const watch = { ...busy.watch, phase: "starting" as const, document: null, lastKnown: busy.watch.document, problem };
    const [machine] = tree({ ...busy, watch });
    expect(lines(machine?.children ?? []).slice(0, 6)).toEqual([
      "Not reachable | the hub went away",
      "is it up? | ",
      "Retry | ",
      "python train.py | 3 processes · job 01",
      "  Paused | 2",
      "    rank 0 · Worker | train.py:16 · 11:58:55",
    ]);
    const kept = all(machine?.children.slice(3) ?? []);
    expect(kept.every((node) => node.outdated && node.context === "outdated")).toBe(true);
    // Nothing can be done with a rank that is out of reach; its source can be opened.
    expect(new Set(kept.map((node) => node.click))).toEqual(new Set([undefined, "devkit.openPlace"]));
    expect(all(machine?.children.slice(0, 3) ?? []).some((node) => node.outdated)).toBe(false);
  });

  test("tells a token that is refused from one that is missing", () => {
    const described = (error: string): string | undefined =>
      tree(cluster({ watch: { ...OFF, phase: "waiting", problem: { kind: "token", error, hint: "" } } }))[0]
        ?.description;
    expect(described("the dashboard at http://head:8265 refuses the token of RAY_AUTH_TOKEN")).toBe("wrong token");
    expect(described("the dashboard at http://head:8265 asks for a token")).toBe("token required");
  });

  test("offers what helps", () => {
    const action = (kind: ProblemKind): string | undefined =>
      all(broken(kind)).find((node) => node.context === "action")?.click;
    expect(action("token")).toBe("devkit.setToken");
    expect(action("unreachable")).toBe("devkit.reconnect");
    expect(action("failed")).toBe("devkit.reconnect");
    expect(action("idle")).toBe("devkit.runFile");
  });

  test("that is connected to again shows its stops meanwhile", () => {
    const view = { ...busy, watch: { ...busy.watch, phase: "waiting" as const } };
    expect(tree(view)[0]?.description).toBe("2 paused · reconnecting…");
    expect(all(tree(view)).filter((node) => node.context === "stop")).toHaveLength(2);
  });
});

test("a breakpoint that nobody has is never silent", () => {
  expect(armed(breakpoint({ armed: 0, note: "module not loaded yet" }))).toBe("armed in 0 of 3: module not loaded yet");
  expect(armed(breakpoint({ armed: 0, workers: 0, note: "no worker has joined yet" }))).toBe(
    "armed in 0 of 0: no worker has joined yet",
  );
  const some = { armed: 2, hits: 1, note: "module not loaded yet" };
  expect(armed(breakpoint(some))).toBe("armed in 2 of 3, 1 hit (not in 1 other process: module not loaded yet)");
  const driver = { role: "driver", rank: null };
  expect(armed(breakpoint({ ...some, missing: [driver] }))).toBe(
    "armed in 2 of 3, 1 hit (not in the driver: module not loaded yet)",
  );
  const ranks = [1, 2, 3].map((rank) => ({ role: "Worker", rank }));
  expect(armed(breakpoint({ ...some, workers: 6, missing: [driver, ...ranks] }))).toBe(
    "armed in 2 of 6, 1 hit (not in ranks 1-3 and the driver: module not loaded yet)",
  );
  const view = cluster({
    watch: live(ps({ breakpoints: [breakpoint({ armed: 0 }), breakpoint({ id: "b2", error: "NameError: k" })] })),
  });
  const [first, second] = all(tree(view)).filter((node) => node.context === "breakpoint");
  expect(first?.icon?.id).toBe("debug-breakpoint-unverified");
  expect(second).toMatchObject({ icon: { id: "warning" }, description: "condition failed: NameError: k" });
  expect(first?.description).toBe("armed in 0 of 3 · if k == 3");
});

test("a breakpoint's file is written as the reader knows it", () => {
  const view = cluster({ watch: live(ps({ breakpoints: [breakpoint({ spec: "/home/me/job/pkg/m.py:9 @[1]" })] })) });
  const node = all(tree(view)).find((one) => one.context === "breakpoint");
  expect(node).toMatchObject({
    label: "m.py:9",
    description: "@[1] · armed in 3 of 3",
    subject: { place: { file: "/home/me/job/pkg/m.py", line: 9 } },
  });
});

test("file and line of a SPEC", () => {
  expect(placeOf("pkg/train.py:88 @Worker[1,4:8] if step == 3")).toEqual({ file: "pkg/train.py", line: 88 });
  expect(placeOf("trainer.ppo:actor_loss")).toBeUndefined();
});

test("a command without its interpreter's folder", () => {
  expect(shortCommand("/x/.venv/bin/python -m trainer.main_ppo a=1")).toBe("python -m trainer.main_ppo a=1");
  expect(shortCommand("python /home/me/job/pkg/run.py /data/x", ["/home/me/job"])).toBe("python pkg/run.py /data/x");
});
