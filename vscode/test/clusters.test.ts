import { describe, expect, test } from "vitest";
import { clusterKeys, dashboardUrl, visible } from "../src/model/clusters";
import { OFF } from "../src/model/watch";
import { cluster, live, ps, worker } from "./records";

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
    ["http://", "no URL"],
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

describe("the local cluster", () => {
  const problem = (kind: "unreachable" | "token" | "failed" | "idle"): ReturnType<typeof cluster> =>
    cluster({ watch: { ...OFF, phase: "waiting", problem: { kind, error: "e", hint: "h" } } });
  const other = cluster({ key: "http://head:8265", watch: live(ps({ workers: [worker()] })) });
  const keys = (...views: ReturnType<typeof cluster>[]): string[] => visible(views).map((view) => view.key);

  test("is hidden while there is none", () => {
    expect(keys(cluster({ watch: OFF }))).toEqual([]);
    expect(keys(problem("unreachable"))).toEqual([]);
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
