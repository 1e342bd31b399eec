import { expect, test } from "vitest";
import { clip, clock, count, members, rankList, shortJob, shortPath, who } from "../src/model/naming";
import { NOON, SECOND } from "./records";

const workers = [0, 1, 2, 3].map((rank) => ({ id: `s${rank}`, role: "Worker", rank }));

test("ranks are written short", () => {
  expect(rankList([5, 0, 1, 2, 2])).toBe("0-2,5");
  expect(rankList([0, 1])).toBe("0,1");
  expect(rankList([])).toBe("");
});

test("members are named as short as can be while nobody else is meant", () => {
  expect(members(workers.slice(0, 3), workers)).toBe("ranks 0-2");
  expect(members(workers.slice(3), workers)).toBe("rank 3");
  const mixed = [
    { id: "a", role: "Actor", rank: 0 },
    { id: "c", role: "Critic", rank: 0 },
    { id: "d", role: "driver", rank: null },
  ];
  expect(members(mixed)).toBe("Actor rank 0; Critic rank 0; driver");
  const twins = [
    { id: "x-1", role: "task", rank: null },
    { id: "y-1", role: "task", rank: null },
  ];
  expect(members(twins.slice(0, 1), twins)).toBe("task x-1");
});

test("one is named by rank and role", () => {
  expect(who({ role: "Worker", rank: 1 })).toBe("rank 1 · Worker");
  expect(who({ role: "", rank: null })).toBe("worker");
});

test("paths lose what says nothing", () => {
  expect(shortPath("/home/me/job/pkg/train.py", ["/home/me/job/"])).toBe("pkg/train.py");
  expect(shortPath("/home/me/jobs/train.py", ["/home/me/job"])).toBe("…/jobs/train.py");
  expect(shortPath("/tmp/ray/s/working_dir_files/_ray_pkg_0f3a/pkg/m.py")).toBe("pkg/m.py");
  expect(shortPath("/v/lib/python3.11/site-packages/torch/nn/module.py")).toBe("torch/nn/module.py");
  expect(shortPath("/v/lib/python3.11/threading.py")).toBe("threading.py");
});

test("a job's number loses the zeros that Ray writes behind it, and stays its own", () => {
  expect(["05000000", "00010000", "0a000000", "10000000", "00000000"].map(shortJob)).toEqual(["05", "0001", "0a", "10", "00"]);
  expect(shortJob("raysubmit_500")).toBe("raysubmit_500");
});

test("counts, times and long lines", () => {
  expect([count(1, "crash"), count(2, "crash"), count(0, "process")]).toEqual(["1 crash", "2 crashes", "0 processes"]);
  expect(clock(SECOND - 65, NOON)).toBe("11:58:55");
  expect(clock(SECOND - 86_400, NOON)).toBe("2026-11-19 12:00:00");
  expect(clip("a\n  b", 10)).toBe("a b");
  expect(clip("abcdef", 4)).toBe("abc…");
});
