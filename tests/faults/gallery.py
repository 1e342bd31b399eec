"""A fault, what devkit said of it, and after how long: checked by the tests, shown in docs/faults.md.

A test of a fault wears `@fault(TITLE, SYMPTOM)`, makes it for real, and asks a `Clinic` for the diagnosis. With
`DEVKIT_FAULTS_RECORD=FILE` what was said is written to that file as well, one line of JSON for each fault.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import launching
from tests.hosts.hosts import HOME, Host
from tests.hosts.launching import PYTHON

PROGRAMS = Path(__file__).with_name("programs")
RECORD = "DEVKIT_FAULTS_RECORD"
fault = pytest.mark.fault
Document = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What devkit said of one fault."""

    part: str  # the module's first line
    title: str
    symptom: str  # what a user sees without devkit
    command: str
    said: tuple[str, ...]  # the verdict first
    seconds: float  # from the symptom to the verdict


class Clinic:
    """Asks for a diagnosis and remembers it."""

    def __init__(self, part: str, title: str, symptom: str) -> None:
        self._part, self._title, self._symptom = part, title, symptom
        self._since = time.monotonic()
        self.told: Told | None = None

    def symptom(self) -> None:
        """The fault is there now: the time to the verdict counts from here."""
        self._since = time.monotonic()

    def hang(self, host: Host, env: Mapping[str, str], code: int = 1) -> Document:
        found = launching.document(host, "hang", code=code, env=env)
        self.note("devkit hang", [found["sentence"]])
        return found

    def first_error(self, host: Host, env: Mapping[str, str]) -> str:
        """The first error, and who and where."""
        page = launching.devkit(host, "logs", "--first-error", code=1, env=env).stdout
        block = page.partition("\n\n")[2].partition("\n\n")[0]
        assert block.startswith("first error: "), page
        self.note("devkit logs --first-error", [line.strip() for line in block.splitlines()])
        return block

    def doctor(self, host: Host, env: Mapping[str, str], rule: str, *words: str, code: int) -> Document:
        """The first finding of this rule."""
        return self.finding(launching.document(host, "doctor", *words, code=code, env=env), rule)

    def finding(self, found: Document, rule: str) -> Document:
        """The first finding of this rule in what the doctor said."""
        told: list[Document] = [each for each in found["findings"] if each["rule"] == rule]
        assert told, f"no {rule} among {[(each['rule'], each['what'], each['evidence']) for each in found['findings']]}"
        self.note("devkit doctor", [f"{told[0]['severity']}: {told[0]['what']}", f"fix: {told[0]['fix']}"])
        return told[0]

    def refusal(self, command: str, stderr: str) -> str:
        """The error and the hint of a command that was refused."""
        lines = stderr.splitlines()
        assert len(lines) >= 2 and lines[-2].startswith("error: ") and lines[-1].startswith("hint: "), stderr
        self.note(command, lines[-2:])
        return "\n".join(lines[-2:])

    def note(self, command: str, said: list[str]) -> None:
        took = time.monotonic() - self._since
        self.told = Told(self._part, self._title, self._symptom, command, tuple(said), round(took, 1))

    def took(self, seconds: float) -> None:
        """How long it was, where one look has told of several faults."""
        assert self.told is not None
        self.told = replace(self.told, seconds=round(seconds, 1))

    def keep(self) -> None:
        """Adds it to the record, if one is wanted."""
        if self.told is not None and RECORD in os.environ:
            said = tuple(_without_paths(line) for line in self.told.said)
            with Path(os.environ[RECORD]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(replace(self.told, said=said)), ensure_ascii=False) + "\n")


def _without_paths(line: str) -> str:
    """Without this machine's folders."""
    return line.replace(f"{PROGRAMS}/", "").replace(PYTHON, "/opt/venv/bin/python").replace(f"{HOME}/", "~/")
