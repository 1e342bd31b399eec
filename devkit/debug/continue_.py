"""`devkit continue`: let stopped ranks run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devkit import console
from devkit.debug.evaluate import stops_of
from devkit.debug.inworker import wire
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, name_members
from devkit.debug.protocols import Hub
from devkit.debug.targets import ALL, ask_what_became_of, counted, select
from devkit.errors import UsageError
from devkit.palette import CAUTION


def main(
    targets: Sequence[str] = (),
    *,
    everything: bool = False,
    job: str | None = None,
    address: str | None = None,
    json: bool = False,
) -> int:
    """Resume the stops that are named, or all; 1 when one of them could not be resumed."""
    from devkit.debug.client import connect

    if everything and targets:
        raise UsageError("--all and IDs cannot be combined", hint="use one of them")
    with connect(address) as hub:
        return run(hub, targets, everything=everything, job=job, json=json)


def run(
    hub: Hub, targets: Sequence[str] = (), *, everything: bool = False, job: str | None = None, json: bool = False
) -> int:
    stops = stops_of(hub, job, named=bool(targets))
    ask_what_became_of(hub, stops, targets)
    wanted = chosen(stops, targets, everything)
    answer = hub.call("continue", ids=None if everything and job is None else [stop.id for stop in wanted])
    continued = set(answer["continued"])
    if json:
        console.emit(answer)
    else:
        _tell(stops, wanted, continued, answer.get("failed") or {})
    return 0 if continued.issuperset(stop.id for stop in wanted) else 1


def chosen(stops: Sequence[StopRecord], targets: Sequence[str], everything: bool) -> list[StopRecord]:
    """The stops that are meant; without a word, the only one. Raises UsageError when that leaves a choice."""
    if everything:
        return select(stops, ALL)
    if targets:
        ids = {stop.id for target in targets for stop in select(stops, target)}
        return [stop for stop in stops if stop.id in ids]
    if len(stops) > 1:
        ids_shown = ", ".join(stop.id for stop in stops[:5])
        hint = f"devkit ps lists them: {ids_shown}{', ...' if len(stops) > 5 else ''}"
        raise UsageError(f"{counted(stops)} are paused; name one or pass --all", hint=hint)
    return list(stops)


def _tell(
    stops: Sequence[StopRecord], wanted: Sequence[StopRecord], continued: set[str], failed: Mapping[str, str]
) -> None:
    everyone = [Who(stop.role, stop.rank, stop.id) for stop in stops]
    asked = [Who(stop.role, stop.rank, stop.id) for stop in wanted]
    running = [who for who in asked if who.id in continued]
    if running:
        console.result().print(f"continued: {name_members(running, everyone)}", soft_wrap=True)
    for who in asked:
        if who.id not in continued:
            reason = failed.get(who.id, "no longer stopped")
            yet = " yet" if reason.startswith(wire.LATE) else ""  # it has been told, and does so once it gets to it
            console.talk().print(f"not continued{yet}: {name_members([who], everyone)}: {reason}", style=CAUTION)
