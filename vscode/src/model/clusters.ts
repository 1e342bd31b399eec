/** Which clusters there are: the one of this machine, which needs no address, and those that the user has added. */

import type { ProblemKind } from "./problems";
import type { JobRecord, CrashRecord } from "./records";
import type { Installed } from "./version";
import type { WatchState } from "./watch";

export const LOCAL = "local"; // the key of the cluster that devkit finds by itself

/** A cluster as the views see it. */
export interface ClusterView {
  readonly key: string; // LOCAL or the dashboard's URL
  readonly url: string; // of the dashboard; empty if it isn't known
  readonly watch: WatchState;
  readonly crashes: readonly CrashRecord[];
  readonly jobs: readonly JobRecord[];
}

export type UrlResult = { readonly url: string } | { readonly error: string };

/** The URL of a dashboard, in the one form that is kept; `head:8265` and a slash at the end are fine. */
export function dashboardUrl(text: string): UrlResult {
  const trimmed = text.trim();
  if (!trimmed) {
    return { error: "Enter the dashboard's URL, e.g. http://head:8265" };
  }
  if (/^ray:\/\//i.test(trimmed)) {
    return { error: "ray:// is a Ray Client address; enter the dashboard's URL instead, e.g. http://head:8265" };
  }
  let parsed: URL;
  try {
    parsed = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(trimmed) ? trimmed : `http://${trimmed}`);
  } catch {
    return { error: `${trimmed} is not a valid URL; use e.g. http://head:8265` };
  }
  if (parsed.protocol !== "http:" && parsed.protocol !== "https:") {
    return { error: "The dashboard's URL must start with http:// or https://" };
  }
  if (parsed.username || parsed.password) {
    return { error: "Don't put a password in the URL. The token is asked for next and kept in secret storage." };
  }
  return { url: `${parsed.protocol}//${parsed.host}${parsed.pathname.replace(/\/+$/, "")}` };
}

/** The keys of all clusters, in order, each once; what is no URL in the settings is left out and named. */
export function clusterKeys(urls: readonly string[], withLocal: boolean): { keys: string[]; wrong: string[] } {
  const keys = new Set<string>(withLocal ? [LOCAL] : []);
  const wrong: string[] = [];
  for (const text of urls) {
    const result = dashboardUrl(text);
    if ("url" in result) {
      keys.add(result.url);
    } else {
      wrong.push(text);
    }
  }
  return { keys: [...keys], wrong };
}

/** What devkit is given to find the cluster. */
export function addressOf(key: string): string | undefined {
  return key === LOCAL ? undefined : key;
}

/** The clusters worth showing: the local one is left out until there is one, and where it is listed by URL too. */
export function visible(all: readonly ClusterView[]): ClusterView[] {
  const others = all.filter((one) => one.key !== LOCAL);
  return all.filter((one) => one.key !== LOCAL || !isLocalHidden(one, others));
}

function isLocalHidden(local: ClusterView, others: readonly ClusterView[]): boolean {
  const known = local.watch.document ?? local.watch.lastKnown;
  if (known === null) {
    return isUnsaid(local.watch.problem?.kind, others.length > 0);
  }
  // Nodes are told apart for certain; drivers of two clusters may have the same id.
  const nodes = new Set(known.workers.map((worker) => worker.node_id));
  return others.some((other) => other.watch.document?.workers.some((worker) => nodes.has(worker.node_id)));
}

/** Whether the view's own text says it (`emptyState`), or the row of another cluster, which may be the same one. */
function isUnsaid(problem: ProblemKind | undefined, hasOthers: boolean): boolean {
  switch (problem) {
    case undefined: // devkit is still looking
    case "absent":
    case "missing":
      return true;
    case "idle":
    case "token":
      return hasOthers;
    default:
      return false;
  }
}

/** Whether devkit has not said anything of this cluster yet. */
export function isLooking({ watch }: ClusterView): boolean {
  return watch.phase !== "off" && watch.document === null && watch.problem === null;
}

/** What an empty view says: that there is no cluster only when this has been found out. */
export type EmptyState = "missing" | "old" | "looking" | "none" | "unwatched";

export function emptyState(installed: Installed["kind"] | undefined, all: readonly ClusterView[]): EmptyState {
  if (installed === "missing" || installed === "old") {
    return installed;
  }
  const local = all.find((one) => one.key === LOCAL);
  if (installed !== undefined && !local) {
    return "unwatched"; // by the setting devkit.localCluster
  }
  return local?.watch.problem?.kind === "absent" ? "none" : "looking";
}

/** How a cluster is called. */
export function clusterName(view: Pick<ClusterView, "key">): string {
  return view.key === LOCAL ? "This machine" : view.key.replace(/^https?:\/\//, "");
}
