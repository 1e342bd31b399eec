import { describe, expect, test } from "vitest";
import { debugChoices, knownRoles, nothingToDebug } from "../src/model/choices";
import { localCandidates } from "../src/model/places";
import {
  adapterArguments,
  allConfiguration,
  crashConfiguration,
  initialConfigurations,
  isParent,
  isWhole,
  launchConfiguration,
  parentName,
  stopConfiguration,
  threadOf,
  withChildEvents,
} from "../src/model/sessions";
import { formatTarget, parseTarget, rankProblem, roleProblem } from "../src/model/targets";
import { OFF, type WatchState } from "../src/model/watch";
import { cluster, crash, live, ps, stop, worker } from "./records";

const HEAD = "http://head:8265";

describe("configurations", () => {
  test("each means a command line", () => {
    expect(adapterArguments(stopConfiguration(stop(), HEAD))).toEqual(["dap", "--id", "a0-1", "--address", HEAD]);
    expect(adapterArguments(crashConfiguration(crash()))).toEqual(["dap", "--crash", "c1"]);
    expect(adapterArguments(allConfiguration("01000000", HEAD, "0,2:4"))).toEqual([
      ...["dap", "--all", "--job", "01000000", "--ranks", "0,2:4"],
      ...["--address", HEAD],
    ]);
    expect(adapterArguments(allConfiguration())).toEqual(["dap", "--all"]);
    expect(adapterArguments(launchConfiguration("train.py"))).toEqual(["dap", "--launch"]);
  });

  test("what says nothing of what to debug is asked about", () => {
    const attach = { type: "devkit", request: "attach", name: "x" };
    expect(isWhole(attach)).toBe(false);
    expect(isWhole({ ...attach, all: true })).toBe(true);
    expect(isWhole({ ...attach, id: "a-1" })).toBe(true);
    expect(isWhole({ ...attach, pipe: "/tmp/p" })).toBe(true);
    expect(isWhole({ ...attach, request: "launch" })).toBe(false);
    expect(isWhole({ ...attach, request: "launch", command: ["bash", "train.sh"] })).toBe(true);
    expect(initialConfigurations().every(isWhole)).toBe(true);
  });

  test("a session for many ranks is told from that of one", () => {
    expect(isParent(allConfiguration("01"))).toBe(true);
    expect(isParent(launchConfiguration("x.py"))).toBe(true);
    expect(isParent({ ...allConfiguration("01"), pipe: "/tmp/p" })).toBe(false);
    expect(isParent({ ...allConfiguration("01"), underParent: true })).toBe(false);
    expect(isParent(stopConfiguration(stop()))).toBe(false);
    expect(isParent(crashConfiguration(crash()))).toBe(false);
  });

  test("one that was started at a stop follows its thread", () => {
    expect(stopConfiguration(stop()).thread).toBe(`${stop().worker_id}/${stop().thread}`);
    expect(threadOf(stop({ thread: "Thread-1" }))).not.toBe(threadOf(stop()));
  });

  test("one over all ranks says how many of them are paused", () => {
    const workers = [worker(), worker({ rank: 1 }), worker({ rank: 2, connected: false }), worker({ rank: null })];
    const stops = [stop(), stop({ id: "x", worker_id: "other", job_id: "02000000" })];
    expect(parentName("01000000", ps({ workers, stops }))).toBe("Job 01: 1 of 2 ranks paused");
    expect(parentName("01000000", ps({ workers: [worker()] }))).toBe("Job 01: 0 of 1 rank paused");
    expect(parentName("02000000", ps({ workers, stops }))).toBe("Job 02: 1 paused");
  });

  test("only a parent tells of children", () => {
    expect(withChildEvents(allConfiguration("01"))).toEqual({ ...allConfiguration("01"), childEvents: true });
    expect(withChildEvents(launchConfiguration("x.py")).childEvents).toBe(true);
    expect(withChildEvents(stopConfiguration(stop()))).toEqual(stopConfiguration(stop()));
    expect(withChildEvents(crashConfiguration(crash()))).toEqual(crashConfiguration(crash()));
  });
});

describe("what there is to debug", () => {
  const view = cluster({
    key: HEAD,
    watch: live(ps({ stops: [stop({ rank: 1 }), stop()], workers: [worker(), worker({ job_id: "", rank: 9 })] })),
    crashes: [crash(), crash({ id: "c2", root: "c1" })],
  });

  test("jobs, then stops by rank, then crashes without what they caused", () => {
    const choices = debugChoices([view], ["/home/me/job"]);
    expect(choices.map((choice) => choice.label)).toEqual([
      "$(run-all) All ranks of job 01",
      "$(debug-pause) rank 0 · Worker",
      "$(debug-pause) rank 1 · Worker",
      "$(flame) boom: IndexError",
    ]);
    expect(choices[0]).toMatchObject({
      description: "job 01 · 2 ranks paused",
      configuration: { all: true, address: HEAD },
    });
    expect(choices[1]).toMatchObject({
      description: "train.py:16 · breakpoint",
      configuration: { id: "a0-1", address: HEAD },
    });
  });

  test("the cluster is named where there are several", () => {
    const choices = debugChoices([view, cluster({ watch: live(ps({ stops: [stop()] })) })], []);
    expect(choices.filter((choice) => choice.description.endsWith("· This machine"))).toHaveLength(1);
    expect(choices.at(-2)?.configuration.address).toBeUndefined();
  });

  test("why there is nothing, as far as it is known", () => {
    const said = (some: Partial<WatchState>): string =>
      nothingToDebug([cluster({ watch: { ...OFF, phase: "starting", ...some } })]);
    const problem = { error: "the hub went away", hint: "" };
    expect(said({})).toContain("Still looking");
    expect(said({ problem: { ...problem, kind: "unreachable" } })).toContain("does not answer (the hub went away)");
    expect(said({ problem: { ...problem, kind: "absent" } })).toContain("no job runs under devkit");
    expect(said({ document: ps() })).toContain("no job runs under devkit");
  });

  test("nothing where no cluster is connected", () => {
    expect(debugChoices([cluster({ watch: { ...view.watch, document: null } })], [])).toEqual([]);
  });

  test("the roles that run", () => {
    expect(
      knownRoles([
        view,
        cluster({ watch: live(ps({ workers: [worker({ role: "Critic" }), worker({ role: "worker" }), worker()] })) }),
      ]),
    ).toEqual(["Critic", "Worker"]);
  });
});

describe("targets in a condition", () => {
  test.each([
    ["@[1]", { role: "", ranks: "1", condition: "" }],
    ["@Worker[0, 2:4] if step == 3", { role: "Worker", ranks: "0,2:4", condition: "step == 3" }],
    ["@Work* if x", { role: "Work*", ranks: "", condition: "x" }],
    ["step == 3", { role: "", ranks: "", condition: "step == 3" }],
    ["", { role: "", ranks: "", condition: "" }],
    ["a @ b == 0", { role: "", ranks: "", condition: "a @ b == 0" }],
  ])("%s", (text, target) => {
    expect(parseTarget(text)).toEqual(target);
    expect(parseTarget(formatTarget(target))).toEqual(target);
  });

  test("nothing behind the @, or something that is no target", () => {
    expect(parseTarget("@ if x")).toBeUndefined();
    expect(parseTarget("@[] if x")).toBeUndefined();
    expect(parseTarget("@Worker[1] x == 2")).toBeUndefined();
  });

  test("ranks are checked while they are typed", () => {
    for (const fine of ["", "1", "0, 2:4", ":", "::2", "4:"]) {
      expect(rankProblem(fine)).toBeUndefined();
    }
    for (const wrong of ["x", "-1", "1,,2", "1-3", "1:2:3:4", "0:4:0"]) {
      expect(rankProblem(wrong)).toBeTypeOf("string");
    }
    expect(roleProblem("Work*")).toBeUndefined();
    expect(roleProblem("a b")).toBeTypeOf("string");
  });
});

test("a worker's file is looked for as it is, then by its end in the workspace", () => {
  expect(localCandidates("/tmp/ray/s/working_dir_files/_ray_pkg_0f3a/pkg/m.py", ["/home/me/job"])).toEqual([
    "/tmp/ray/s/working_dir_files/_ray_pkg_0f3a/pkg/m.py",
    "/home/me/job/pkg/m.py",
    "/home/me/job/m.py",
  ]);
  expect(localCandidates("pkg/m.py", ["/a", "/b/"])).toEqual(["/a/pkg/m.py", "/a/m.py", "/b/pkg/m.py", "/b/m.py"]);
});
