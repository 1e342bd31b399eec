import { describe, expect, test } from "vitest";
import { clusterKeys, dashboardUrl, emptyState, isLooking, visible } from "../src/model/clusters";
import type { ProblemKind } from "../src/model/problems";
import { OFF } from "../src/model/watch";
import { cluster, live, ps, stop, worker } from "./records";

describe("a dashboard's URL", () => {
  test.each([
    ["http://head:8265", "http://head:8265"],
    [" head:8265/ ", "http://head:8265"],
    ["127.0.0.1:8265", "http://127.0.0.1:8265"],
    ["https://Ray.Example.com/cluster/", "https://ray.example.com/cluster"],
  ])("%s is taken as %s", (text, url) => expect(dashboardUrl(text)).toEqual({ url }));

  test.each([
    ["", "dashboard"],
    ["ray://head:10001", "Ray Client"],
    ["http://", "not a valid URL"],
    ["ftp://head", "http://"],
    ["http://me:pw@head", "password"],
  ])("%s is refused with a reason", (text, reason) =>
    expect(dashboardUrl(text)).toMatchObject({ error: expect.stringContaining(reason) as string }),
  );
});

test("each cluster is listed once, and what is no URL is named", () => {
  expect(clusterKeys(["head:8265", "http://head:8265/", "ray://x"], true)).toEqual({
    keys: ["local", "http://head:8265"],
    wrong: ["ray://x"],
  });
  expect(clusterKeys([], false).keys).toEqual([]);
});

const looking = cluster({ watch: { ...OFF, phase: "starting", run: 1 } });
const problem = (kind: ProblemKind): ReturnType<typeof cluster> =>
  cluster({ watch: { ...OFF, phase: "waiting", problem: { kind, error: "e", hint: "h" } } });

describe("the local cluster", () => {
  const other = cluster({ key: "http://head:8265", watch: live(ps({ workers: [worker()] })) });
  const keys = (...views: ReturnType<typeof cluster>[]): string[] => visible(views).map((view) => view.key);

  test("is hidden while devkit looks for it, and when there is none", () => {
    expect(keys(looking)).toEqual([]);
    expect(keys(problem("absent"))).toEqual([]);
  });

  test("is shown when it should be there and does not answer, also beside others", () => {
    expect(keys(problem("unreachable"))).toEqual(["local"]);
    expect(keys(problem("unreachable"), other)).toEqual(["local", "http://head:8265"]);
  });

  test("is shown as it was last seen while it is looked for again", () => {
    const lastKnown = ps({ stops: [stop()], workers: [worker({ node_id: "n2" })] });
    const gone = problem("absent");
    expect(keys({ ...gone, watch: { ...gone.watch, lastKnown } })).toEqual(["local"]);
    expect(keys({ ...gone, watch: { ...gone.watch, lastKnown } }, other)).toHaveLength(2);
  });

  test("is shown when something can be done about it", () => {
    expect(keys(problem("idle"))).toEqual(["local"]);
    expect(keys(problem("token"))).toEqual(["local"]);
    expect(keys(problem("failed"))).toEqual(["local"]);
  });

  test("is hidden where it is listed by its URL too", () => {
    expect(keys(cluster({ watch: live(ps({ workers: [worker()] })) }), other)).toEqual(["http://head:8265"]);
    expect(keys(cluster({ watch: live(ps({ workers: [worker({ node_id: "n2" })] })) }), other)).toHaveLength(2);
    expect(keys(problem("idle"), other)).toEqual(["http://head:8265"]);
  });

  test("another one is shown, whatever is wrong with it", () => {
    expect(keys({ ...problem("unreachable"), key: "http://head:8265" })).toEqual(["http://head:8265"]);
  });
});

describe("an empty view", () => {
  test("says that there is no cluster only when that was found out", () => {
    expect(emptyState("fine", [looking])).toBe("looking");
    expect(emptyState("fine", [problem("absent")])).toBe("none");
    for (const kind of ["unreachable", "idle", "failed", "token", "missing"] as const) {
      expect(emptyState("fine", [problem(kind)])).not.toBe("none");
    }
  });

  test("looks until it is known whether there is a devkit, and says so when there is none", () => {
    expect(emptyState(undefined, [])).toBe("looking");
    expect(emptyState("missing", [looking])).toBe("missing");
    expect(emptyState("old", [looking])).toBe("old");
  });

  test("does not judge a machine that it was told not to look at", () => {
    expect(emptyState("fine", [])).toBe("unwatched");
  });
});

test("progress shows until the first answer, whatever it is", () => {
  expect(isLooking(looking)).toBe(true);
  expect(isLooking(cluster())).toBe(false);
  expect(isLooking(problem("unreachable"))).toBe(false);
  expect(isLooking(cluster({ watch: OFF }))).toBe(false);
});
