"""One script that is started on every machine, as ROLL's are: MASTER_ADDR, WORLD_SIZE and RANK say which one this is.

`devkit debug-cluster --from-env` makes one Ray of them. The run is that of rank 0; the other machines lend it their
part of the Ray, and have nothing else to do until it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from trainer.address import knock, running_cluster
from trainer.errors import ClusterError

BRING_UP = "devkit debug-cluster --from-env, on every machine, starts Ray by MASTER_ADDR, WORLD_SIZE and RANK"
LOOK_S = 2.0  # between two looks at the cluster
MISSED = 3  # looks in a row that find nobody: it has ended


def rank_among(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Which machine of how many this is; None where it is alone, or where RANK counts processes, as torchrun's does.

    >>> rank_among({"WORLD_SIZE": "2", "RANK": "1"}), rank_among({"WORLD_SIZE": "1", "RANK": "0"})
    ((1, 2), None)
    """
    rank, size = environ.get("RANK", "").strip(), environ.get("WORLD_SIZE", "").strip()
    if "LOCAL_RANK" in environ or not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size) > 1):
        return None
    return int(rank), int(size)


def lends_only(note: Callable[[str], None]) -> bool:
    """Whether this machine is not the one whose run it is. Then it returns when the Ray of all machines has ended.

    Raises ClusterError where no Ray runs here that the machine could take part by.
    """
    found = rank_among(os.environ)
    if found is None or found[0] == 0:
        return False
    rank, size = found
    address = running_cluster()
    if address is None:
        raise ClusterError(f"RANK={rank} of {size} machines, and no Ray runs on this one", hint=BRING_UP)
    note(f"RANK={rank}: the run is that of RANK=0, and this machine takes part by its Ray, until {address} ends")
    _until_gone(address)
    return True


def _until_gone(address: str) -> None:
    missed = 0
    while missed < MISSED:
        try:
            knock(address)
            missed = 0
        except OSError:
            missed += 1
        time.sleep(LOOK_S)
