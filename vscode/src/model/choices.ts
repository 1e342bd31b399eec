/** What a user can choose to debug, when a configuration doesn't say it. */

import { addressOf, clusterName, isLooking, type ClusterView } from "./clusters";
import { count, inOrder, shortJob, shortPath, who } from "./naming";
import { reason, shortCommand } from "./jobTree";
import { isOver } from "./problems";
import { allConfiguration, crashConfiguration, stopConfiguration, type DevkitConfiguration } from "./sessions";

export interface Choice {
  readonly label: string;
  readonly description: string;
  readonly detail?: string;
  readonly configuration: DevkitConfiguration;
}

/** Jobs first, then stops, then crashes; the cluster is named where there are several. */
export function debugChoices(clusters: readonly ClusterView[], folders: readonly string[]): Choice[] {
  const live = clusters.filter((cluster) => cluster.watch.document);
  const choices = live.map((cluster) => choicesOf(cluster, live.length > 1 ? clusterName(cluster) : "", folders));
  return [
    ...choices.flatMap((one) => one.jobs),
    ...choices.flatMap((one) => one.stops),
    ...choices.flatMap((one) => one.crashes),
  ];
}

/** Why there is nothing to choose. That nothing runs is said only where devkit has looked and found nothing. */
export function nothingToDebug(clusters: readonly ClusterView[]): string {
  if (clusters.some(isLooking)) {
    return "Still looking for a Ray cluster. Try again in a moment.";
  }
  const silent = clusters.find(({ watch }) => watch.document === null && watch.problem && !isOver(watch.problem));
  if (silent) {
    return `Nothing to debug: ${clusterName(silent)} does not answer (${silent.watch.problem?.error}).`;
  }
  return "Nothing to debug: no job runs under devkit, and there are no crash snapshots.";
}

interface Choices {
  readonly jobs: Choice[];
  readonly stops: Choice[];
  readonly crashes: Choice[];
}

function choicesOf(cluster: ClusterView, name: string, folders: readonly string[]): Choices {
  const address = addressOf(cluster.key);
  const { stops = [], workers = [] } = cluster.watch.document ?? {};
  const alive = new Set(workers.filter((worker) => worker.connected && worker.job_id).map((worker) => worker.job_id));
  const jobs = [...alive]
    .sort()
    .reverse()
    .map((job): Choice => {
      const command = cluster.jobs.find((one) => one.job_id === job)?.command ?? "";
      const stopped = stops.filter((stop) => stop.job_id === job).length;
      return {
        label: `$(run-all) All ranks of ${command ? shortCommand(command, folders) : `job ${shortJob(job)}`}`,
        description: [`job ${shortJob(job)}`, stopped ? count(stopped, "rank") + " paused" : "no rank paused", name]
          .filter(Boolean)
          .join(" · "),
        configuration: allConfiguration(job, address),
      };
    });
  return {
    jobs,
    stops: [...stops].sort(inOrder).map((stop) => ({
      label: `$(debug-pause) ${who(stop)}`,
      description: [`${shortPath(stop.file, folders)}:${stop.line}`, reason(stop), name].filter(Boolean).join(" · "),
      configuration: stopConfiguration(stop, address),
    })),
    crashes: [...cluster.crashes]
      .filter((crash) => crash.root === null)
      .sort((a, b) => b.time - a.time)
      .map((crash) => ({
        label: `$(flame) ${who(crash)}: ${crash.exception.type}`,
        description: [`${shortPath(crash.file, folders)}:${crash.line}`, name].filter(Boolean).join(" · "),
        detail: crash.exception.message.split("\n")[0] ?? "",
        configuration: crashConfiguration(crash, address),
      })),
  };
}

const NO_ROLE = "worker"; // devkit's word for a process that has none yet

/** The roles of the processes that run, for who chooses where a breakpoint stops. */
export function knownRoles(clusters: readonly ClusterView[]): string[] {
  const workers = clusters.flatMap((cluster) => cluster.watch.document?.workers ?? []);
  const roles = workers.filter((worker) => worker.job_id).map((worker) => worker.role);
  return [...new Set(roles)].filter((role) => role && role !== NO_ROLE).sort();
}
