"""What `devkit dap --launch` and the `devkit run` that it starts tell each other: files that only this user can read.

wish.json   to the run: breakpoints with all that belongs to them, and variables of the environment. A terminal shows
            its command lines, and its shell keeps them: a token has no place there
run.json    from the run: which process it is, and which one its program
job.json    from the run: the job that its program became, once it has called `ray.init`
end.json    from the run: the program's exit code, or why there is none
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devkit.debug import processes
from devkit.debug.inworker import private
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.runs import Run
from devkit.errors import DevkitError

FOLDER = "DEVKIT_EDITOR"  # names the folder to `devkit run`

Document = dict[str, Any]


@dataclass(frozen=True)
class RunProcess:
    """The `devkit run`, and its program."""

    pid: int
    start: str  # of `processes.started`
    program: int  # its pid

    @property
    def lives(self) -> bool:
        return processes.started(self.pid) == self.start


@dataclass(frozen=True)
class End:
    """How it ended. A code below 0 is a signal's."""

    code: int
    error: str = ""  # why the program did not even start


class Exchange:
    """One folder, for one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.breakpoints: tuple[Breakpoint, ...] = ()  # that the run is to begin with

    # ---- the adapter's side

    def wish(self, points: Sequence[Breakpoint], environ: Mapping[str, str | None]) -> None:
        self._write("wish", {"breakpoints": [each.to_json() for each in points], "environ": dict(environ)})

    def process(self) -> RunProcess | None:
        found = self._read("run")
        return None if found is None else RunProcess(**found)

    def job(self) -> Run | None:
        found = self._read("job")
        return None if found is None else Run(**found)

    def end(self) -> End | None:
        found = self._read("end")
        return None if found is None else End(**found)

    # ---- the run's side

    @classmethod
    def given(cls, environ: MutableMapping[str, str]) -> Exchange | None:
        """What lies in the folder that the environment names. The program hears of none; the wish is read once."""
        folder = environ.pop(FOLDER, "")
        if not folder:
            return None
        found = cls(Path(folder))
        wish = found._read("wish") or {}
        private.remove(found.folder / "wish.json")  # there may be a token in it
        for name, value in wish.get("environ", {}).items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        found.breakpoints = tuple(Breakpoint.from_json(each) for each in wish.get("breakpoints", ()))
        return found

    def started(self, program: int) -> None:
        pid = os.getpid()
        self._write("run", asdict(RunProcess(pid, processes.started(pid) or "", program)))

    def joined(self, run: Run) -> None:
        self._write("job", asdict(run))

    def ended(self, code: int, error: str = "") -> None:
        """What is told first counts."""
        if self._read("end") is None:
            self._write("end", asdict(End(code, error)))

    # ---- common

    def _write(self, name: str, document: Document) -> None:
        """All at once, for a reader that comes at any time. An editor that has gone took the folder along."""
        with suppress(FileNotFoundError):
            private.write(self.folder / f"{name}.json", json.dumps(document), make=False)

    def _read(self, name: str) -> Document | None:
        try:
            document: Document = json.loads(private.read(self.folder / f"{name}.json"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DevkitError(
                f"{self.folder} can't be trusted: {error.strerror}", hint=f"start the program again; {FOLDER} names it"
            ) from None
        return document
