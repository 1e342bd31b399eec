"""For tests of arming: modules written for one test, and what was hit in them."""

from __future__ import annotations

import importlib
import queue
import re
import sys
import textwrap
import threading
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from devkit.debug.inworker.arming import Arming
from devkit.debug.inworker.records import Breakpoint
from tests.pace import stretched

DEADLINE = stretched(20.0)


class Armory:
    """`write` a module, `arm` its marks (`# @name` at the end of a line), `load` it, and look at `hits`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hits: list[tuple[str, str, int]] = []  # mark, function, line
        self.seen: queue.Queue[dict[str, Any]] = queue.Queue()  # the locals at each hit
        self.errors: list[tuple[str, str]] = []
        self.changes = 0
        self.lines: dict[str, int] = {}
        self.path = folder / "none.py"
        self._loaded: list[str] = []
        self.arming = Arming(self._hit, lambda name, error: self.errors.append((name, error)))
        self.arming.on_change = self._changed
        self.arming.install()

    def _changed(self) -> None:
        self.changes += 1

    def _hit(self, names: tuple[str, ...], frame: FrameType) -> None:
        for name in names:
            self.hits.append((name, frame.f_code.co_name, frame.f_lineno))
            self.seen.put({**frame.f_locals, "hit": name, "thread": threading.get_ident()})

    def write(self, text: str, name: str) -> Path:
        self.path = self.folder / f"{name}.py"
        self.path.parent.mkdir(exist_ok=True)
        text = textwrap.dedent(text)
        self.path.write_text(text)
        lines = enumerate(text.splitlines(), 1)
        self.lines = {mark: number for number, line in lines for mark in re.findall(r"# @(\w+)$", line)}
        return self.path

    def load(self, name: str = "") -> ModuleType:
        name = name or self.path.stem
        self._loaded.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def point(self, mark: str, condition: str = "", **fields: Any) -> Breakpoint:
        place: dict[str, Any] = {"paths": (str(self.path),), "line": self.lines.get(mark, 0)}
        if "module" in fields:
            place = {}
        return Breakpoint(mark, mark, condition=condition, **{**place, **fields})

    def arm(self, *marks: str, condition: str = "", **fields: Any) -> None:
        for mark in marks or self.lines:
            self.arming.add(self.point(mark, condition, **fields))

    def places(self, mark: str) -> int:
        return self.arming.state(mark).places

    def note(self, mark: str) -> str:
        return self.arming.state(mark).note

    def marks(self) -> list[str]:
        """Of the hits so far; each was in its own line."""
        found, self.hits = self.hits, []
        assert all(line == self.lines[mark] for mark, _, line in found if mark in self.lines), (found, self.lines)
        return [mark for mark, _, _ in found]

    def wait(self, mark: str) -> dict[str, Any]:
        """The locals at the next hit of a mark."""
        while True:
            found = self.seen.get(timeout=DEADLINE)
            if found["hit"] == mark:
                return found

    def close(self) -> None:
        self.arming.uninstall()
        for name in self._loaded:
            sys.modules.pop(name, None)
