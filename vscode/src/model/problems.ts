/** What can be wrong with a cluster or a command, in one line and with what to do about it. */

import type { ErrorRecord } from "./records";

/**
 * missing: devkit can't be started; absent: devkit has looked, and there is no cluster; token: it is asked for, or
 * refused; unreachable: there should be a cluster, and it does not answer; idle: the cluster is there and nothing in it
 * runs under devkit; failed: anything else.
 */
export type ProblemKind = "missing" | "absent" | "token" | "unreachable" | "idle" | "failed";

export interface Problem {
  readonly kind: ProblemKind;
  readonly error: string;
  readonly hint: string;
}

const UNREACHABLE = 3; // devkit's exit codes; also that there is no job
const NO_CLUSTER = "no Ray cluster found";
const NO_JOB = "no job of this cluster";
const NOT_FINE = 1;
const ABOUT_TOKENS = /asks for a token|refuses the token|is RAY_AUTH_TOKEN/;

export function isErrorRecord(document: unknown): document is ErrorRecord {
  const one = document as Partial<ErrorRecord> | null;
  return typeof one === "object" && one !== null && typeof one.error === "string" && typeof one.exit_code === "number";
}

/** What an error record of `devkit ps` says about a cluster. */
export function clusterProblem(record: ErrorRecord): Problem {
  return { kind: kindOf(record), error: record.error, hint: record.hint };
}

function kindOf(record: ErrorRecord): ProblemKind {
  if (record.exit_code === UNREACHABLE) {
    if (record.error.startsWith(NO_CLUSTER)) {
      return "absent";
    }
    if (record.error.startsWith(NO_JOB)) {
      return "idle";
    }
    return ABOUT_TOKENS.test(`${record.error} ${record.hint}`) ? "token" : "unreachable";
  }
  // So an older `ps` said that a dashboard answered and no job of the cluster has a hub.
  return record.exit_code === NOT_FINE ? "idle" : "failed";
}

/** Whether a token was given and is wrong; else it is missing. */
export function isRefused(problem: Problem): boolean {
  return problem.kind === "token" && problem.error.includes("refuses");
}

/** Whether nothing is left of a job, or of its cluster; else they are only out of reach. */
export function isOver(problem: Problem): boolean {
  return problem.kind === "absent" || problem.kind === "idle";
}

/** Of a process that ended without a record: its last words. */
export function endedProblem(code: number | null, stderr: string): Problem {
  const words = stderr.trim().split("\n");
  const error = words.findLast((line) => line.startsWith("error: "))?.slice("error: ".length);
  const hint = words.findLast((line) => line.startsWith("hint: "))?.slice("hint: ".length);
  const last = words.at(-1)?.trim() || "no output";
  return {
    kind: "failed",
    error: error ?? `devkit ${code === null ? "was killed by a signal" : `exited with code ${code}`}: ${last}`,
    hint: hint ?? "see the Ray DevKit log",
  };
}
