"""What the processes of a job tell each other: short notes in Ray's key-value store, which go when the driver ends."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from . import threads
from .core import asking
from .hub_place import KV_NAMESPACE, gcs

KV_SECONDS = 2.0
MOST = 500  # notes that are read
MOST_BYTES = 4000  # of one
FIRST_PAUSE, LAST_PAUSE = 0.02, 1.0  # seconds between two looks

Document = dict[str, Any]


def put(kind: str, name: str, document: Document) -> None:
    """In place of what this job has told by this kind and name."""
    text = json.dumps(document).encode()
    if len(text) <= MOST_BYTES:
        gcs().internal_kv_put(_key(kind, name), text, True, KV_NAMESPACE, timeout=KV_SECONDS)


def get(kind: str, name: str) -> Document | None:
    text = gcs().internal_kv_get(_key(kind, name), KV_NAMESPACE, timeout=KV_SECONDS)
    return json.loads(text) if text else None


def every(kind: str) -> list[Document]:
    """Of one kind."""
    keys = gcs().internal_kv_keys(_key(kind, ""), KV_NAMESPACE, timeout=KV_SECONDS)[:MOST]
    found = gcs().internal_kv_multi_get(keys, KV_NAMESPACE, timeout=KV_SECONDS) if keys else {}
    return [json.loads(found[key]) for key in sorted(found)]


def forget(kind: str) -> None:
    gcs().internal_kv_del(_key(kind, ""), True, KV_NAMESPACE, timeout=KV_SECONDS)


def _key(kind: str, name: str) -> bytes:
    return f"note:{job()}:{kind}:{name}".encode()


def job() -> str:
    """The job that this process works for. Raises AttributeError without Ray."""
    return str(_worker().current_job_id.hex())


def is_connected() -> bool:
    return bool(getattr(_worker(), "connected", False))


def _worker() -> Any:
    return getattr(sys.modules.get("ray._private.worker"), "global_worker", None)


class Soon:
    """A call that a thread of ours makes after `wake`: the first time at once, then after pauses that grow.

    Not in forked children, which do not have the thread. The call ends it by False.
    """

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self._call, self._name = call, name
        self._awake = threading.Event()
        self._is_awake = False  # as that has it, without a lock
        self._started = self._ended = False
        _all.add(self)

    def wake(self) -> None:
        """Raises RuntimeError when the system gives no more threads."""
        if self._is_awake or self._ended:
            return
        self._is_awake = True
        self._awake.set()
        if not self._started:
            self._started = True
            threads.start(self._run, self._name)

    def end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        pause = 0.0
        while not self._ended:
            self._awake.wait()
            self._awake.clear()
            self._is_awake = False
            with asking() as is_open:
                if not is_open or self._call() is False:
                    self._ended = True
            pause = min(max(2 * pause, FIRST_PAUSE), LAST_PAUSE)
            time.sleep(pause)


_all: weakref.WeakSet[Soon] = weakref.WeakSet()


def _forked() -> None:
    for each in list(_all):
        each.end()


os.register_at_fork(after_in_child=_forked)

__all__ = ["Soon", "every", "forget", "get", "is_connected", "job", "put"]
