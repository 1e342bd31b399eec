"""An all-reduce of one rank, in a process of its own: torch takes seconds to import, and a hang can be ended.

A program: jobs come on stdin, one JSON line each, and results go to stdout.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

ELEMENTS = 1 << 20  # float32: 4 MiB, as a bucket of gradients
ROUNDS = 3
NICE = 5  # importing torch is not to slow down what is measured meanwhile
CHECKED = ("flash_attn",)  # compiled against one torch; only an import shows whether it is this one


def main() -> None:
    os.nice(NICE)
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - whatever a broken torch raises is the finding
        _say({"status": "failed", "detail": f"import torch: {_words(error)}"})
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # A process that is killed leaves its folder: none is made where NCCL writes nothing into it.
    own = tempfile.TemporaryDirectory(prefix="devkit-nccl-", ignore_cleanup_errors=True) if gpus else nullcontext("")
    with own as folder:
        log = os.path.join(folder, "log")
        if gpus:
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log, NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH")
        _say({"status": "ready", "gpus": gpus})
        for line in sys.stdin:
            _say(_run(json.loads(line), log))


def _run(job: dict[str, Any], log: str) -> dict[str, Any]:
    try:
        done = _all_reduce(job)
    except Exception as error:  # noqa: BLE001 - the error of a collective is what this is for
        return {"status": "failed", "detail": f"{job['backend']}: {_words(error)}"}
    transport = _transport(log) if job["backend"] == "nccl" else ""
    return {"status": "done", "transport": transport, "import_errors": _import_errors(), **done}


def _all_reduce(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    begun = time.monotonic()
    device = torch.device("cpu")
    if job["backend"] == "nccl":
        device = torch.device("cuda", job["gpu"])
        torch.cuda.set_device(device)
    dist.init_process_group(
        job["backend"],
        init_method=f"tcp://{job['host']}:{job['port']}",
        rank=job["rank"],
        world_size=job["world"],
        timeout=timedelta(seconds=job["seconds"]),
    )
    tensor = torch.full((ELEMENTS,), 1.0, device=device)
    dist.all_reduce(tensor)  # the first one also connects
    wrong = not bool((tensor == job["world"]).all())
    init_s = time.monotonic() - begun
    best = min(_timed(dist, torch, tensor) for _ in range(ROUNDS))
    dist.destroy_process_group()
    if wrong:
        raise RuntimeError("the sum is wrong")
    share = 2 * (job["world"] - 1) / job["world"]
    return {"init_s": round(init_s, 3), "mb_per_s": round(share * ELEMENTS * 4 / best / 1e6, 1)}


def _timed(dist: Any, torch: Any, tensor: Any) -> float:
    begun = time.perf_counter()
    dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _transport(log: str) -> str:
    """How NCCL's ranks are connected, by its own log."""
    try:
        with open(log, errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    return transport_of(text)


def transport_of(text: str) -> str:
    """
    >>> transport_of("x [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0")
    'NET/Socket'
    """
    found = re.findall(r" via (NET/\w+|P2P|SHM)", text)
    return ", ".join(sorted(set(found)))


def _import_errors() -> dict[str, str]:
    errors = {}
    for name in CHECKED:
        if find_spec(name) is not None:
            try:
                __import__(name)
            except Exception as error:  # noqa: BLE001 - an extension for another torch raises anything
                errors[name] = _words(error)
    return errors


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
