"""A hub in memory: the one seam between the verbs and a cluster."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from devkit.debug.protocols import Channel, Document
from devkit.errors import DevkitError

NOW = 1_000_000.0


def stop(number: int, rank: int | None = None, **changes: Any) -> Document:
    """A stop of `Worker[rank]`, a few seconds old."""
    return {
        "id": f"s{number}",
        "job_id": "02000000",
        "actor": "",
        "role": "Worker",
        "rank": rank,
        "node_ip": "10.0.0.5",
        "pid": 4000 + number,
        "worker_id": f"w{number}",
        "file": "/job/train.py",
        "line": 88,
        "function": "update",
        "reason": "breakpoint",
        "exception": None,
        "since": time.time() - 12,
        "attached": 0,
        "thread": "MainThread",
        "breakpoint": "b1",
        **changes,
    }


def ps_document(**changes: Any) -> Document:
    return {"stops": [], "breakpoints": [], "crashes": 0, "gone": [], "workers": [], **changes}


class FakeHub:
    """Answers each operation by a document or a function, and keeps what it was asked."""

    def __init__(self, channels: Callable[[str], Channel] | None = None, **answers: Any) -> None:
        self.answers = {"ends": {"ends": {}, "over": []}, **answers}
        self.asked: list[tuple[str, Document]] = []
        self.news: list[Document] = []
        self._channels = channels

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document:
        self.asked.append((op, arguments))
        name = "continue_" if op == "continue" else op
        answer = self.answers[name]
        if isinstance(answer, DevkitError):
            raise answer
        return dict(answer(**arguments)) if callable(answer) else dict(answer)

    def channel(self, worker_id: str, only: str | None = None) -> Channel:
        assert self._channels is not None
        return self._channels(worker_id)

    def watch(self) -> Iterator[Document]:
        yield from self.news

    def close(self) -> None: ...


def printed(text: Any, width: int = 500) -> str:
    """What a terminal of that width would show, without colours."""
    page = Console(file=io.StringIO(), width=width, color_system=None, markup=False, highlight=False)
    page.print(text, soft_wrap=True)
    assert isinstance(page.file, io.StringIO)
    return page.file.getvalue()
