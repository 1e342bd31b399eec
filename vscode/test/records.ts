/** Records as devkit prints them, for the tests; each takes what a test is about. */

import type {
  BreakpointState,
  CrashRecord,
  EvalResult,
  JobRecord,
  PsDocument,
  StackProcess,
  StopRecord,
  WorkerRecord,
} from "../src/model/records";
import type { ClusterView } from "../src/model/clusters";
import { OFF, type WatchState } from "../src/model/watch";

export const NOON = new Date(2026, 10, 20, 12, 0, 0);
export const SECOND = NOON.getTime() / 1000;

export function stop(some: Partial<StopRecord> = {}): StopRecord {
  const rank = some.rank === undefined ? 0 : some.rank;
  return {
    id: `a${rank}-1`,
    job_id: "01000000",
    actor: "wg",
    role: "Worker",
    rank,
    node_ip: "10.0.0.1",
    pid: 100 + (rank ?? 0),
    worker_id: `w${rank}`,
    file: "/home/me/job/train.py",
    line: 16,
    function: "Worker.step",
    reason: "breakpoint",
    exception: null,
    since: SECOND - 65,
    attached: 0,
    thread: "MainThread",
    breakpoint: "b1",
    breakpoints: ["b1"],
    ...some,
  };
}

export function crash(some: Partial<CrashRecord> = {}): CrashRecord {
  return {
    id: "c1",
    job_id: "01000000",
    role: "boom",
    rank: null,
    node_ip: "10.0.0.1",
    pid: 7,
    time: SECOND - 5,
    exception: { type: "IndexError", message: "list index out of range" },
    file: "/home/me/job/train.py",
    line: 22,
    function: "boom",
    root: null,
    kind: "task",
    worker_id: "w9",
    task_id: "t1",
    waited: [],
    supposed: false,
    handled: "",
    misfits: [],
    ...some,
  };
}

export function breakpoint(some: Partial<BreakpointState> = {}): BreakpointState {
  return { id: "b1", spec: "train.py:16 if k == 3", armed: 3, workers: 3, hits: 0, note: "", error: "", job_id: "", ...some };
}

export function worker(some: Partial<WorkerRecord> = {}): WorkerRecord {
  const rank = some.rank === undefined ? 0 : some.rank;
  return {
    job_id: "01000000",
    worker_id: `w${rank}`,
    node_id: "n1",
    node_ip: "10.0.0.1",
    host: "head",
    pid: 100 + (rank ?? 0),
    role: "Worker",
    actor: "wg",
    rank,
    python: "3.11.7",
    parent: 0,
    connected: true,
    ...some,
  };
}

export function job(some: Partial<JobRecord> = {}): JobRecord {
  return {
    job_id: "01000000",
    submission_id: "",
    status: "RUNNING",
    command: "/x/bin/python train.py",
    start_time: 0,
    end_time: null,
    message: "",
    exit_code: null,
    ...some,
  };
}

export function ps(some: Partial<PsDocument> = {}): PsDocument {
  return { stops: [], breakpoints: [], crashes: 0, gone: [], workers: [], ...some };
}

export function live(document: PsDocument): WatchState {
  return { ...OFF, phase: "live", run: 1, document };
}

export function cluster(some: Partial<ClusterView> = {}): ClusterView {
  return { key: "local", url: "", watch: live(ps()), crashes: [], jobs: [], ...some };
}

export function result(rank: number | null, value: string | null, error: string | null = null): EvalResult {
  return { id: `a${rank}-1`, role: "Worker", rank, value, error };
}

export function stacked(rank: number, some: Partial<StackProcess> = {}): StackProcess {
  return {
    role: "Worker",
    rank,
    node_ip: "10.0.0.1",
    pid: 100 + rank,
    worker_id: `w${rank}`,
    job_id: "01000000",
    parent: 0,
    threads: [{ name: "MainThread", frames: [{ file: "/home/me/job/train.py", line: 16, function: "Worker.step" }], stopped: false }],
    error: null,
    ...some,
  };
}
