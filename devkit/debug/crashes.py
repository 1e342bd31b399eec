"""`devkit crashes`: the exceptions that left the program's code, and one of them in full."""

from __future__ import annotations

import time
from collections.abc import Sequence

from devkit import console
from devkit.debug.crash_page import crash_page
from devkit.debug.crash_table import crash_table
from devkit.debug.inworker.lineage import link
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.protocols import Document, Hub
from devkit.debug.targets import find_id


def main(
    show: str | None = None, *, everything: bool = False, address: str | None = None, json: bool = False
) -> int:  # fmt: skip
    """List the crashes, or `show` the one whose id is, or begins with, this."""
    from devkit.debug.client import connect

    with connect(address) as hub:
        return run_list(hub, json=json) if show is None else run_show(hub, show, everything=everything, json=json)


def run_list(hub: Hub, *, json: bool = False) -> int:
    crashes = all_crashes(hub)
    if json:
        console.emit({"crashes": [crash.to_json() for crash in crashes]})
        return 0
    result = console.result()
    width = result.width if result.is_terminal else None
    result.print(crash_table(crashes, time.time(), width=width), soft_wrap=True)
    return 0


def run_show(hub: Hub, wanted: str, *, everything: bool = False, json: bool = False) -> int:
    crashes = all_crashes(hub)
    known = find_id(wanted, [crash.id for crash in crashes], "crash")
    [record] = [crash for crash in crashes if crash.id == known]
    document = complete(hub.call("crash", id=known), record)
    if json:
        console.emit(document)
        return 0
    result = console.result()
    width = result.width if result.is_terminal else None
    page = crash_page(document, crashes, time.time(), width=width, everything=everything)
    result.print(page, soft_wrap=True)
    return 0


def all_crashes(hub: Hub, settle: float = 0.0) -> list[CrashRecord]:
    """Every crash, the oldest first; attempts and outer levels know their root.

    Of a worker that has just gone the hub is still finding out: it is given `settle` seconds for that.
    """
    records = [CrashRecord.from_json(each) for each in hub.call("crashes", settle=settle)["crashes"]]
    return link(sorted(records, key=lambda record: record.time))


def complete(document: Document, record: CrashRecord) -> Document:
    """The snapshot with the promised fields in it, and the root that the list has found."""
    frames: Sequence[Document] = document.get("frames") or []
    return {**document, **record.to_json(), "frames": list(frames)}
