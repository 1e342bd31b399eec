"""What a driver finds out itself before its own Ray ends with it: how those ended whom no hub has met."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import fates, unmet
from .crash_files import list_folder, store
from .hooks import crash_folder
from .hub_place import error_log, is_own
from .identity import identify
from .kernel import killed_for_memory
from .lastwords import last_words, lives
from .lineage import is_of_a_death
from .records import Identity
from .vanished import vanished
from .words import say

LOOK_SECONDS = 0.25
GONE_SECONDS = 3.0  # for Ray to hear of a process that is gone

Document = dict[str, Any]


def alone(waited: Sequence[str], seconds: float) -> None:
    """Keeps a record of each death that is in no file yet.

    `waited` are tasks of which this driver was told that who ran them has died: unless something is known that may be
    why, Ray is asked for that until it knows, for so many seconds.
    """
    try:
        folder, begun = crash_folder(), time.monotonic()
        while True:
            crashes = list_folder(folder)
            known = {each.worker_id for each in crashes if each.kind == "exit"}
            explained = any(not is_of_a_death(each.exception["type"]) for each in crashes)
            for who, fate, seen in _deaths(() if explained else waited):
                if who.worker_id not in known and not is_own(who.to_json()):
                    _keep(folder, who, fate, seen)
                    known.add(who.worker_id)
                    explained = True
            spent = time.monotonic() - begun
            late = bool(waited) and not explained and spent < seconds
            if not late and not (spent < GONE_SECONDS and _are_gone(known)):
                return
            time.sleep(LOOK_SECONDS)
    except Exception as error:  # noqa: BLE001 - the program ends as it would have; what is missing is told
        say(f"how this job's processes ended could not be found out: {error!r}")


def _are_gone(known: set[str]) -> bool:
    """Whether a process that no hub has met runs no more, and Ray may not have heard of it yet."""
    unknown = [Identity.from_json(each["identity"]) for each in unmet.found()]
    gone = [who for who in unknown if who.job_id and who.worker_id not in known and not lives(who.pid)]
    return any(fates.fate(who.worker_id, who.node_id, who.job_id) is None for who in gone)


def _deaths(waited: Sequence[str]) -> Iterator[tuple[Identity, Document, Document | None]]:
    """Of those that have left a file, then of those that ran what was waited for; each with its fate."""
    for document in unmet.found():
        who = Identity.from_json(document["identity"])
        fate = fates.fate(who.worker_id, who.node_id, who.job_id)
        if fate is not None and fate.get("crashed"):
            yield who, fate, document["seen"]
    if waited:
        for fate in fates.deaths(list(dict.fromkeys(waited)), identify().job_id):
            yield Identity.from_json(fate["identity"]), fate, None


def _keep(folder: Path, who: Identity, fate: Document, seen: Document | None) -> None:
    words = last_words(error_log(who.to_json())) or killed_for_memory(who.pid, who.role)
    document = vanished(who, words, fate["reason"], task=fate.get("task"), died=fate.get("time"), seen=seen)
    store(document, folder)
