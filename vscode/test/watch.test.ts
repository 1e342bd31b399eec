import { describe, expect, test } from "vitest";
import { OFF, pause, step, type WatchAction, type WatchEvent, type WatchState } from "../src/model/watch";
import { ps, stop, worker } from "./records";

/** Plays events, and gives the last state with all actions of the last event. */
function play(...events: WatchEvent[]): { state: WatchState; actions: readonly WatchAction[] } {
  let state = OFF;
  let actions: readonly WatchAction[] = [];
  for (const event of events) {
    [state, actions] = step(state, event);
  }
  return { state, actions };
}

const start: WatchEvent = { kind: "start" };
const document = (run: number, crashes = 0): WatchEvent => ({
  kind: "document",
  run,
  document: ps({ stops: [stop()], crashes }),
});
const exit = (run: number, stderr = ""): WatchEvent => ({ kind: "exit", run, code: 1, stderr });
const refused = (run: number, exit_code = 3, error = "no Ray cluster found"): WatchEvent => ({
  kind: "document",
  run,
  document: { error, hint: "start one", exit_code },
});

describe("a watch that works", () => {
  test("starts one process, and shows its document", () => {
    expect(play(start).actions).toEqual([{ kind: "spawn", run: 1 }]);
    const { state, actions } = play(start, document(1));
    expect(state).toMatchObject({ phase: "live", problem: null, attempts: 0 });
    expect(state.document?.stops[0]?.id).toBe("a0-1");
    expect(actions).toEqual([{ kind: "crashesChanged" }]);
  });

  test("asks for crashes only when their number has changed", () => {
    expect(play(start, document(1, 2), document(1, 2)).actions).toEqual([]);
    expect(play(start, document(1, 2), document(1, 3)).actions).toEqual([{ kind: "crashesChanged" }]);
  });

  test("is not started twice", () => {
    expect(play(start, start).actions).toEqual([]);
  });

  test("ignores what is no document of ps", () => {
    const { state } = play(
      start,
      { kind: "document", run: 1, document: [1, 2] },
      { kind: "document", run: 1, document: null },
    );
    expect(state.phase).toBe("starting");
  });
});

describe("a watch that ends", () => {
  test("shows why, and waits longer each time", () => {
    const first = play(start, refused(1), exit(1));
    expect(first.state).toMatchObject({
      phase: "waiting",
      problem: { kind: "absent", error: "no Ray cluster found", hint: "start one" },
    });
    expect(first.actions).toEqual([{ kind: "wait", run: 1, milliseconds: 1000 }]);
    const second = play(start, refused(1), exit(1), { kind: "timer", run: 1 }, refused(2), exit(2));
    expect(second.actions).toEqual([{ kind: "wait", run: 2, milliseconds: 2000 }]);
    expect(pause(20)).toBe(15_000);
  });

  test("keeps the problem in view while it tries again", () => {
    const { state, actions } = play(start, refused(1), exit(1), { kind: "timer", run: 1 });
    expect(actions).toEqual([{ kind: "spawn", run: 2 }]);
    expect(state).toMatchObject({ phase: "starting", problem: { kind: "absent" } });
    expect(play(start, refused(1), exit(1), { kind: "timer", run: 1 }, document(2)).state.problem).toBeNull();
  });

  test("does not take an old run's words for its own", () => {
    const { state } = play(start, refused(1), exit(1), { kind: "timer", run: 1 }, exit(2, "Traceback\nMemoryError"));
    expect(state.problem).toMatchObject({ kind: "failed", error: "devkit exited with code 1: MemoryError" });
  });

  test("that was live is tried again soon, and shows the stops until then", () => {
    const { state, actions } = play(start, document(1), refused(1, 1, "the hub is gone"), exit(1));
    expect(actions).toEqual([{ kind: "wait", run: 1, milliseconds: 250 }]);
    expect(state.document?.stops).toHaveLength(1);
    const after = play(start, document(1), exit(1), { kind: "timer", run: 1 }, refused(2, 1, "no job runs"), exit(2));
    expect(after.state).toMatchObject({ document: null, problem: { kind: "idle" } });
    expect(after.actions).toMatchObject([{ milliseconds: 2000 }]);
  });

  test("that breaks off twice without a word shows the stops as last known", () => {
    const { state } = play(start, document(1), exit(1), { kind: "timer", run: 1 }, exit(2, "Killed"));
    expect(state).toMatchObject({ document: null, problem: { kind: "failed" } });
    expect(state.lastKnown?.stops).toHaveLength(1);
    const back = play(start, document(1), exit(1), { kind: "timer", run: 1 }, exit(2), { kind: "timer", run: 2 }, document(3));
    expect(back.state).toMatchObject({ phase: "live", lastKnown: null });
  });

  test("tells that there is no cluster from one that does not answer", () => {
    expect(play(start, refused(1)).state.problem?.kind).toBe("absent");
    const stale = "no Ray cluster found: /tmp/ray/ray_current_cluster names 10.0.0.1:6379, where nothing answers";
    expect(play(start, refused(1, 3, stale)).state.problem?.kind).toBe("absent");
    expect(play(start, refused(1, 3, "no dashboard answers at http://head:8265")).state.problem?.kind).toBe("unreachable");
  });

  test("tells a token from a missing cluster", () => {
    const asked = refused(1, 3, "the dashboard at http://head:8265 asks for a token");
    expect(play(start, asked, exit(1)).state.problem?.kind).toBe("token");
    const wrong = refused(1, 3, "the dashboard at http://head:8265 refuses the token of RAY_AUTH_TOKEN");
    expect(play(start, wrong, exit(1)).state.problem?.kind).toBe("token");
  });

  test("without a devkit waits too", () => {
    const problem = { kind: "missing", error: "no devkit", hint: "pip" } as const;
    const { state, actions } = play(start, { kind: "missing", run: 1, problem });
    expect(state).toMatchObject({ phase: "waiting", problem });
    expect(actions).toMatchObject([{ kind: "wait" }]);
  });
});

describe("a watch that waits by itself", () => {
  const idle = refused(1, 3, "no job of this cluster runs under devkit");

  test("shows what is wrong while it runs, and the stops of the next job", () => {
    expect(play(start, idle).state).toMatchObject({ phase: "starting", problem: { kind: "idle" }, document: null });
    const { state, actions } = play(start, idle, document(1, 1));
    expect(state).toMatchObject({ phase: "live", problem: null });
    expect(actions).toEqual([{ kind: "crashesChanged" }]);
  });

  test("keeps the stops when the hub goes away, until it is known to be gone", () => {
    const away = refused(1, 3, "the hub went away");
    expect(play(start, document(1), away).state).toMatchObject({ phase: "starting", problem: null });
    expect(play(start, document(1), away).state.document?.stops).toHaveLength(1);
    expect(play(start, document(1), away, idle).state).toMatchObject({ problem: { kind: "idle" }, document: null });
    expect(play(start, document(1), away, document(1)).state).toMatchObject({ phase: "live", problem: null });
  });

  test("keeps them as last known after a moment where the next look takes long, or finds the same again", () => {
    const away = refused(1, 3, "the hub went away");
    const over: WatchEvent = { kind: "timer", run: 1 };
    expect(play(start, document(1), away).actions).toEqual([{ kind: "wait", run: 1, milliseconds: 2000 }]);
    const { state, actions } = play(start, document(1), away, over);
    expect(state).toMatchObject({ phase: "starting", document: null, problem: { error: "the hub went away" } });
    expect(state.lastKnown?.stops).toHaveLength(1);
    expect(actions).toEqual([]);
    const back = play(start, document(1), away, document(1), over).state;
    expect(back).toMatchObject({ phase: "live", problem: null });
    expect(back.document?.stops).toHaveLength(1);
    expect(play(start, document(1), away, { kind: "retry" }, over).state.document?.stops).toHaveLength(1);
  });
});

describe("what was last known", () => {
  const over: WatchEvent = { kind: "timer", run: 1 };
  const away = refused(1, 3, "the hub went away");
  const none = refused(1);
  const running: WatchEvent = { kind: "document", run: 1, document: ps({ workers: [worker()] }) };

  test("stays as long as the cluster is only out of reach", () => {
    const { state } = play(start, document(1), away, over, over, { kind: "retry" });
    expect(state.lastKnown?.stops).toHaveLength(1);
    expect(play(start, running, away, over).state.lastKnown?.workers).toHaveLength(1);
  });

  test("goes a minute after it was found out that there is no cluster any more", () => {
    const { state, actions } = play(start, document(1), away, none);
    expect(state.lastKnown?.stops).toHaveLength(1);
    expect(actions).toEqual([{ kind: "wait", run: 1, milliseconds: 60_000 }]);
    expect(play(start, document(1), away, none, over).state).toMatchObject({ lastKnown: null, problem: { kind: "absent" } });
  });

  test("goes at once when a job without stops has come to its end", () => {
    expect(play(start, running, away, none).state).toMatchObject({ document: null, lastKnown: null });
  });

  test("gives way to what is so now", () => {
    expect(play(start, document(1), away, over, running).state).toMatchObject({ phase: "live", lastKnown: null });
  });
});

describe("retry and stop", () => {
  test("a retry ends what runs or waits, and begins the count anew", () => {
    expect(play(start, document(1), { kind: "retry" }).actions).toEqual([{ kind: "kill" }, { kind: "spawn", run: 2 }]);
    const waiting = play(start, refused(1), exit(1), { kind: "retry" });
    expect(waiting.actions).toEqual([{ kind: "cancelWait" }, { kind: "spawn", run: 2 }]);
    expect(waiting.state.attempts).toBe(0);
    expect(play({ kind: "retry" }).actions).toEqual([]);
  });

  test("what an old process still says changes nothing", () => {
    const before = play(start, { kind: "retry" }).state;
    expect(play(start, { kind: "retry" }, document(1)).state).toEqual(before);
    expect(play(start, { kind: "retry" }, exit(1)).state).toEqual(before);
    expect(play(start, refused(1), exit(1), { kind: "retry" }, { kind: "timer", run: 1 }).actions).toEqual([]);
    expect(play(start, { kind: "retry" }, refused(2), exit(2), { kind: "timer", run: 1 }).actions).toEqual([]);
  });

  test("a stop ends the process, and nothing starts afterwards", () => {
    expect(play(start, document(1), { kind: "stop" }).actions).toEqual([{ kind: "kill" }]);
    expect(play(start, refused(1), exit(1), { kind: "stop" }, { kind: "timer", run: 1 }).actions).toEqual([]);
    expect(play(start, { kind: "stop" }, document(1)).state.document).toBeNull();
  });
});
