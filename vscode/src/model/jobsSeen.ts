/** When to ask for the list of jobs: the news of `devkit ps` have their processes, and neither command nor end. */

import type { CrashRecord, JobRecord, PsDocument } from "./records";

/** The jobs that the view has had a sign of, each with whether it runs. */
export type JobsSeen = ReadonlyMap<string, boolean>;

export function jobsSeen(before: JobsSeen, document: PsDocument, crashes: readonly CrashRecord[]): JobsSeen {
  const now = new Map([...before.keys(), ...crashes.map((crash) => crash.job_id)].map((job) => [job, false]));
  for (const worker of document.workers) {
    now.set(worker.job_id, worker.connected || now.get(worker.job_id) === true);
  }
  now.delete(""); // the hub's own processes, and drivers before `ray.init`
  return now;
}

/** Whether a job has come or ended. */
export function isNews(before: JobsSeen, now: JobsSeen): boolean {
  return [...now].some(([job, runs]) => before.get(job) !== runs);
}

const AGAIN = [2000, 8000]; // milliseconds

/**
 * How long to wait before the next question; undefined: there is none to ask. How a driver has ended is known a moment
 * after its processes are gone, and until then Ray takes it for a success.
 */
export function nextQuestion(asked: number, seen: JobsSeen, jobs: readonly JobRecord[]): number | undefined {
  const certain = new Set(jobs.filter((one) => /^(FAILED|STOPPED)$/.test(one.status)).map((one) => one.job_id));
  const isOpen = [...seen].some(([job, runs]) => !runs && !certain.has(job));
  return isOpen ? AGAIN[asked - 1] : undefined;
}
