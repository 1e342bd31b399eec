"""`devkit hang`: does the job move? If not, who is first to differ, and where."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from devkit import console
from devkit.errors import NoJobError
from devkit.hang import unwatched, view
from devkit.hang.case import PATIENCE
from devkit.hang.chains import judged
from devkit.hang.gather import Diagnosis, Sampler, choose_job, watch_until_decided
from devkit.hang.records import HangDocument


def main(
    *, job: str | None = None, after: float = PATIENCE, address: str | None = None, json: bool = False
) -> int:  # fmt: skip
    """Exit code 1 when nothing moves, 0 when it does."""
    from devkit.debug.address import resolve
    from devkit.debug.client import connect

    began = time.monotonic()
    cluster = resolve(address)
    try:
        with connect(cluster) as hub, cluster.tables_if_any() as tables:
            sampler = Sampler(hub, tables, choose_job(hub, tables, job))
            return run(sampler, after=after, json=json, began=began)
    except NoJobError:
        with cluster.dashboard_if_any() as dashboard:
            found = unwatched.look(dashboard, job) if dashboard is not None else None
        if found is None:
            raise
        return tell(found, time.monotonic() - began, json=json)


def run(sampler: Sampler, *, after: float = PATIENCE, json: bool = False, began: float | None = None) -> int:
    began = time.monotonic() if began is None else began
    found = watch_until_decided(sampler, after)
    return tell(found, time.monotonic() - began, json=json)


def tell(found: Diagnosis, seconds: float, *, json: bool = False) -> int:
    if json:
        console.emit(record(found, seconds))
    else:
        out = console.result()
        out.print(view.page(found, width=out.width if out.is_terminal else None), soft_wrap=True)
    return found.verdict.exit_code


def record(found: Diagnosis, seconds: float) -> HangDocument:
    """The document of `--json`."""
    from devkit.debug import stacks
    from devkit.debug.stack_groups import merge

    states = judged(found.first, found.last, 0.0).states
    raw = stack_documents(found.raw)
    document: Any = {
        **found.verdict.to_json(),
        "seconds": round(seconds, 3),
        "ranks": [view.progress(state).to_json() for state in states],
        "stacks": stacks.record(raw, merge(raw)),
    }
    return document  # type: ignore[no-any-return]


def stack_documents(raw: Mapping[str, Any]) -> list[Any]:
    """A sample as `devkit stacks` has it."""
    found = []
    for each in raw["ranks"]:
        who, facts = each["identity"], each.get("facts") or {}
        threads = [
            {name: thread[name] for name in ("name", "frames", "stopped")}
            for thread in (facts or each).get("threads") or ()
        ]
        keys = ("role", "node_ip", "pid", "worker_id", "job_id")
        rank = facts["rank"] if facts else who["rank"]
        error = None if threads else each.get("error") or each.get("fate")
        known = {key: who[key] for key in keys} | {"parent": who.get("parent", 0), "task": str(facts.get("task") or "")}
        known["call"] = str(facts.get("phase") or "")
        found.append({**known, "rank": rank, "threads": threads, "error": error})
    return found
