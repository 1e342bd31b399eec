import { describe, expect, test } from "vitest";
import { outdated, type Node } from "../src/model/node";
import type { CheckResult, SmokeDocument, StackGroup, StacksDocument, StopRecord } from "../src/model/records";
import { checkItems, isSmoke, verdict } from "../src/model/smoke";
import { stacksTitle, stacksTree, stopsOf } from "../src/model/stacks";
import { groupsOf, noValues, valuesMarkdown, valueTree } from "../src/model/values";
import { OFF } from "../src/model/watch";
import { cluster, live, ps, result, stacked, stop } from "./records";

describe("values on all ranks", () => {
  test("equal ones stand together, and who differs from most is odd", () => {
    const groups = groupsOf([result(2, "nan"), result(0, "0.5"), result(1, "0.5"), result(3, "0.5")]);
    expect(groups).toEqual([
      { name: "ranks 0,1,3", text: "0.5", failed: false, odd: false },
      { name: "rank 2", text: "nan", failed: false, odd: true },
    ]);
  });

  test("nobody is odd where no group is the largest", () => {
    expect(groupsOf([result(0, "a"), result(1, "b")]).map((group) => group.odd)).toEqual([false, false]);
    expect(groupsOf([result(0, "a"), result(1, "a")]).map((group) => group.odd)).toEqual([false]);
  });

  test("an error is an outcome of its own, also when it reads like a value", () => {
    const groups = groupsOf([result(0, "x"), result(1, null, "x"), result(2, "x")]);
    expect(groups).toMatchObject([{ name: "ranks 0,2" }, { name: "rank 1", failed: true, odd: true }]);
  });

  const document = { results: [result(0, "1"), result(1, "1"), result(2, "7")], groups: [], odd: [] };

  test("the view marks them", () => {
    const [node] = valueTree([{ expression: "loss", document }]);
    expect(node).toMatchObject({
      label: "loss",
      description: "rank 2: 7 · ranks 0,1: 1",
      icon: { id: "warning" },
      expanded: true,
    });
    expect(node?.children.map((child) => child.icon?.id)).toEqual(["symbol-variable", "warning"]);
    expect(node?.subject.text).toBe("ranks 0,1: 1\nrank 2: 7");
  });

  test("a value that all have stands in one line", () => {
    const same = { ...document, results: document.results.slice(0, 2) };
    expect(valueTree([{ expression: "k", document: same }])[0]).toMatchObject({
      description: "1  (ranks 0,1)",
      icon: { id: "pass" },
      children: [],
    });
  });

  test("without stops, and with a problem", () => {
    expect(valueTree([{ expression: "k" }])[0]?.description).toBe("no rank is paused");
    expect(valueTree([{ expression: "k", problem: "not an expression: k =" }])[0]?.description).toBe(
      "not an expression: k =",
    );
  });

  test("that no rank is paused is not said of a cluster that was lost with paused ranks", () => {
    const lost = cluster({ watch: { ...OFF, phase: "starting", lastKnown: ps({ stops: [stop()] }) } });
    expect(noValues([lost])).toBe("the cluster does not answer");
    expect(noValues([cluster()])).toBeUndefined();
  });

  test("a hover's table survives what a value holds", () => {
    const text = valuesMarkdown("x", [result(0, "a|b\n<script>"), result(1, "c")]);
    expect(text.split("\n")).toHaveLength(4);
    expect(text).toContain("a\\|b \\<script\\>");
  });
});

describe("stacks of all ranks", () => {
  const frame = { file: "/home/me/job/train.py", line: 16, function: "Worker.step" };
  const group = (ranks: number[], some: Partial<StackGroup> = {}): StackGroup => ({
    role: "Worker",
    ranks,
    pids: ranks.map((rank) => 100 + rank),
    frames: [frame],
    stopped: false,
    ...some,
  });
  const document: StacksDocument = {
    ranks: [stacked(2), stacked(0), stacked(1), stacked(3)],
    groups: [group([0, 1, 3]), group([2], { frames: [{ ...frame, line: 99, function: "barrier" }] })],
    odd: [2],
  };
  const texts = (nodes: readonly Node[]): string[] => nodes.map((node) => `${node.label} | ${node.description ?? ""}`);

  test("equal ones are merged, and the odd rank comes first", () => {
    const nodes = stacksTree(document, ["/home/me/job"]);
    expect(texts(nodes)).toEqual(["Worker rank 2 | differs from the rest", "Worker ranks 0,1,3 | 3 processes"]);
    expect(nodes[0]?.icon?.id).toBe("warning");
    expect(texts(nodes[0]?.children ?? [])).toEqual(["barrier | train.py:99", "All threads | "]);
  });

  test("a frame opens its line", () => {
    const child = stacksTree(document, [])[1]?.children[0];
    expect(child).toMatchObject({ click: "devkit.openPlace", subject: { place: { file: frame.file, line: 16 } } });
  });

  test("all threads of each process are there, by rank", () => {
    const threads = stacksTree(document, [])[1]?.children.at(-1);
    expect(threads?.children.map((one) => one.label)).toEqual([
      "rank 0 · Worker",
      "rank 1 · Worker",
      "rank 3 · Worker",
    ]);
    expect(threads?.children[0]?.children[0]).toMatchObject({
      label: "MainThread",
      children: [{ label: "Worker.step" }],
    });
  });

  test("the largest group is never odd, though another role's rank of that number is", () => {
    const critic = group([2, 5], { role: "Critic", pids: [202, 205] });
    const nodes = stacksTree({ ...document, groups: [...document.groups, critic] }, []);
    expect(nodes.filter((node) => node.icon?.id === "warning").map((node) => node.label)).toEqual(["Worker rank 2"]);
  });

  test("who is idle, and who gave no stack", () => {
    const nodes = stacksTree(
      { ranks: [stacked(0, { error: "no answer within 15 s" }), stacked(1)], groups: [], odd: [] },
      [],
    );
    expect(texts(nodes)).toEqual(["rank 0 · Worker | no stack: no answer within 15 s", "Idle | rank 1 · Worker"]);
    expect(stacksTree({ ...document, groups: [group([0], { frames: [] })] }, [])[0]?.description).toContain("idle");
  });

  test("are old when a rank has stopped or gone on, or when the cluster is out of reach", () => {
    const now = cluster({ watch: live(ps({ stops: [stop(), stop({ rank: 1 })] })) });
    const with_ = (...stops: StopRecord[]): ReturnType<typeof cluster> => cluster({ watch: live(ps({ stops })) });
    const taken = stopsOf(now, undefined);
    expect(stopsOf(with_(stop({ rank: 1 }), stop({ attached: 1 })), undefined)).toBe(taken); // the same two
    expect(stopsOf(with_(stop()), undefined)).not.toBe(taken);
    const again = stop({ id: "a0-2" }); // it went on and has stopped at the same place
    expect(stopsOf(with_(again, stop({ rank: 1 })), undefined)).not.toBe(taken);
    expect(stopsOf(cluster({ watch: { ...now.watch, document: null } }), undefined)).not.toBe(taken);
    expect(stopsOf(with_(stop({ id: "z", job_id: "02000000" })), "01000000")).toBe(stopsOf(with_(), "01000000"));
  });

  test("say when they were taken, above all when they are old", () => {
    expect(stacksTitle("job 05", "03:22:16", false)).toBe("03:22:16 · job 05");
    expect(stacksTitle("job 05", "03:22:16", true)).toBe("as of 03:22:16, outdated · job 05");
    const old = outdated(stacksTree(document, []));
    expect(old.every((node) => node.outdated && node.icon?.color === "disabledForeground")).toBe(true);
    expect(old[1]?.children[0]?.click).toBe("devkit.openPlace");
  });

  test("ids are unique", () => {
    const all = (nodes: readonly Node[]): string[] => nodes.flatMap((node) => [node.id, ...all(node.children)]);
    const ids = all(stacksTree(document, []));
    expect(new Set(ids).size).toBe(ids.length);
  });
});

describe("the smoke test", () => {
  const check = (name: string, status: CheckResult["status"]): CheckResult => ({
    name,
    status,
    detail: `${name} detail`,
    seconds: 0.25,
  });
  const record: SmokeDocument = {
    ...{ verdict: "fail", seconds: 18.04, phases: {}, steps: [], artifacts: {}, kept: {}, cut: [] },
    checks: [check("masks", "pass"), check("weight-sync", "fail"), check("gpu", "skip"), check("masks", "pass")],
  };

  test("each check is an item, in order, with its detail", () => {
    expect(checkItems(record).map((item) => item.id)).toEqual(["masks", "weight-sync", "gpu", "masks#2"]);
    expect(checkItems(record)[1]).toEqual({
      id: "weight-sync",
      label: "weight-sync",
      status: "fail",
      message: "weight-sync detail",
      milliseconds: 250,
    });
  });

  test("the verdict names what failed", () => {
    expect(verdict(record)).toBe("fail in 18.0 s: 2 passed, 1 failed: weight-sync, 1 skipped");
  });

  test("another document is no record", () => {
    expect([isSmoke(record), isSmoke(null), isSmoke({ error: "x" }), isSmoke([])]).toEqual([true, false, false, false]);
  });
});
