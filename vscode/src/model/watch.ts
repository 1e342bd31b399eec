/**
 * The life of one `devkit ps --watch --wait --json`, as a pure table: (state, event) -> (state, actions).
 *
 * It prints what is stopped, and says so when there is nothing to be asked; it goes on by itself when there is again. A
 * process that ends all the same is started again after a pause that grows. Events carry the number of the run that
 * they belong to, so that what an old process still says changes nothing.
 */

import { clusterProblem, endedProblem, isErrorRecord, isOver, type Problem } from "./problems";
import type { PsDocument } from "./records";

export interface WatchState {
  readonly phase: "off" | "starting" | "live" | "waiting";
  readonly run: number;
  readonly document: PsDocument | null;
  readonly lastKnown: PsDocument | null; // what was shown before the cluster stopped answering; no longer certain
  readonly problem: Problem | null; // of the last attempt; shown until the next one has an answer
  readonly said: Problem | null; // what this run has said of itself so far
  readonly attempts: number; // that ended without a document, one after another
}

export type WatchEvent =
  | { readonly kind: "start" }
  | { readonly kind: "stop" }
  | { readonly kind: "retry" } // the user asks, or something has changed that may help
  | { readonly kind: "timer"; readonly run: number }
  | { readonly kind: "document"; readonly run: number; readonly document: unknown }
  | { readonly kind: "exit"; readonly run: number; readonly code: number | null; readonly stderr: string }
  | { readonly kind: "missing"; readonly run: number; readonly problem: Problem };

export type WatchAction =
  | { readonly kind: "spawn"; readonly run: number }
  | { readonly kind: "kill" }
  | { readonly kind: "wait"; readonly run: number; readonly milliseconds: number }
  | { readonly kind: "cancelWait" }
  | { readonly kind: "crashesChanged" };

type Step = readonly [WatchState, readonly WatchAction[]];

export const OFF: WatchState = {
  phase: "off",
  run: 0,
  document: null,
  lastKnown: null,
  problem: null,
  said: null,
  attempts: 0,
};

const FIRST_PAUSE = 1000; // milliseconds; doubled at each attempt
const LONGEST_PAUSE = 15_000;
const AWAY = 2000; // milliseconds until the stops of a hub that went away are no longer shown as certain
const KEPT = 60_000; // and until they go, where nothing is left that they could be of: as long as sessions look for it

export function pause(attempts: number): number {
  return Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.max(0, attempts - 1));
}

export function step(state: WatchState, event: WatchEvent): Step {
  switch (event.kind) {
    case "start":
      return state.phase === "off" ? spawn(state, []) : [state, []];
    case "stop":
      return [{ ...OFF, run: state.run + 1 }, ending(state)];
    case "retry":
      return state.phase === "off" ? [state, []] : spawn({ ...state, attempts: 0 }, ending(state));
    case "timer":
      return event.run === state.run ? pauseOver(state) : [state, []];
    default:
      return event.run === state.run && isRunning(state) ? heard(state, event) : [state, []];
  }
}

function isRunning(state: WatchState): boolean {
  return state.phase === "starting" || state.phase === "live";
}

function ending(state: WatchState): WatchAction[] {
  if (state.phase === "waiting") {
    return [{ kind: "cancelWait" }];
  }
  return isRunning(state) ? [{ kind: "kill" }] : [];
}

function spawn(state: WatchState, before: readonly WatchAction[]): Step {
  const run = state.run + 1;
  return [{ ...state, phase: "starting", run, said: null }, [...before, { kind: "spawn", run }]];
}

type Heard = Extract<WatchEvent, { kind: "document" | "exit" | "missing" }>;

function heard(state: WatchState, event: Heard): Step {
  switch (event.kind) {
    case "document":
      return read(state, event.document);
    case "missing":
      return wait(state, event.problem);
    case "exit":
      // A record on stdout has said why; else its last words do.
      return wait(state, state.said ?? endedProblem(event.code, event.stderr));
  }
}

function read(state: WatchState, document: unknown): Step {
  if (isErrorRecord(document)) {
    return complained(state, clusterProblem(document));
  }
  if (!isPs(document)) {
    return [state, []];
  }
  const known = state.document?.crashes ?? 0;
  const actions: WatchAction[] =
    document.crashes === known && state.phase === "live" ? [] : [{ kind: "crashesChanged" }];
  return [{ ...state, phase: "live", document, lastKnown: null, problem: null, attempts: 0 }, actions];
}

/**
 * What was shown stays for a moment: a hub that went away may be back at devkit's next look. Not until that look ends,
 * which takes half a minute where the hub was killed and nothing says so.
 */
function complained(state: WatchState, problem: Problem): Step {
  const next: WatchState = { ...state, phase: "starting", said: problem };
  return state.phase === "live"
    ? [next, [{ kind: "wait", run: state.run, milliseconds: AWAY }]]
    : lost(next, problem);
}

/** What was known is no longer certain. It goes for good when it has been found out that it is over. */
function lost(state: WatchState, problem: Problem): Step {
  const lastKnown = worthKeeping(state.document ?? state.lastKnown, problem);
  const actions: WatchAction[] =
    lastKnown && isOver(problem) ? [{ kind: "wait", run: state.run, milliseconds: KEPT }] : [];
  return [{ ...state, problem, document: null, lastKnown }, actions];
}

/** A job that has come to its end leaves nothing to wait for; one that was stopped somewhere may be back. */
function worthKeeping(document: PsDocument | null, problem: Problem): PsDocument | null {
  const isMissed = document?.stops.length || (!isOver(problem) && document?.workers.length);
  return isMissed ? document : null;
}

function pauseOver(state: WatchState): Step {
  if (state.phase === "waiting") {
    return spawn(state, []);
  }
  if (state.phase !== "starting" || state.said === null) {
    return [state, []];
  }
  if (state.document) {
    return lost(state, state.said);
  }
  return [isOver(state.said) ? { ...state, lastKnown: null } : state, []];
}

function wait(state: WatchState, problem: Problem): Step {
  // A watch that was fine and broke off is tried again at once, and what it showed stays until the answer.
  const wasFine = state.attempts === 0 && state.document !== null;
  const attempts = state.attempts + 1;
  const document = wasFine ? state.document : null;
  const lastKnown = wasFine ? null : worthKeeping(state.document ?? state.lastKnown, problem);
  const milliseconds = wasFine ? FIRST_PAUSE / 4 : pause(attempts);
  return [
    { ...state, phase: "waiting", document, lastKnown, problem, attempts },
    [{ kind: "wait", run: state.run, milliseconds }],
  ];
}

function isPs(document: unknown): document is PsDocument {
  const one = document as Partial<PsDocument> | null;
  return typeof one === "object" && one !== null && Array.isArray(one.stops) && Array.isArray(one.breakpoints);
}
