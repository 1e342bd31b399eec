"""Output that nobody can read or keep: one error line, or silence where the reader has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devkit.errors import CLOSED_PIPE
from tests.forks import CLOSED, Forks, forks
from tests.pace import stretched

FULL = "/dev/full"
LONG = "#!/bin/bash\n" + "ray start --head --dashboard-host 0.0.0.0 --num-cpus 1\n" * 160  # more than a buffer
VERBS = {
    "version": ["--version"],
    "help": ["--help"],
    "a verb's help": ["debug-cluster", "status", "--help"],
    "page": ["lint", "run.sh"],
    "record": ["lint", "--json", "run.sh"],
    "a file": ["launch", "slurm", "--nodes", "2", "--", "python", "x.py"],
}


# What the verbs import when they are called.
LOADED = (
    "devkit.cli",
    "devkit.lint.run",
    "devkit.lint.view",
    "devkit.launch.slurm_run",
    "typer.core",
    "pydantic.types",
)


@pytest.fixture(scope="module")
def python() -> Iterator[Forks]:
    with forks(*LOADED) as process:
        yield process


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def devkit(python: Forks, tmp_path: Path) -> Run:
    """`devkit(words, stdout=..., stderr=...)`: exit code and standard error."""
    (tmp_path / "run.sh").write_text(LONG)

    def run(words: Sequence[str], **how: Any) -> tuple[int, str]:
        done = python.run("devkit", words, folder=tmp_path, **how)
        return done.code, done.err

    return run


@pytest.fixture
def full() -> Iterator[int]:
    """A disk that takes nothing."""
    with open("/dev/full", "wb") as file:
        yield file.fileno()


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_full_is_one_error(verb: str, unbuffered: bool, devkit: Run, full: int) -> None:
    code, said = devkit(VERBS[verb], stdout=full, unbuffered=unbuffered)
    *_, error, hint = said.splitlines()
    assert error == "error: the output cannot be written: No space left on device", said
    assert hint.startswith("hint: ") and len(hint) > len("hint: ") and "Traceback" not in said
    assert code == 1


def test_a_disk_that_is_full_under_a_command_of_a_shell(tmp_path: Path) -> None:
    """Python's own start and end in it, too."""
    command = ["bash", "-c", f'"$@" >{FULL}', "-", sys.executable, "-m", "devkit", "--version"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=stretched(120))
    assert done.returncode == 1 and "the output cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("verb", ["version", "page", "record"])
def test_a_reader_that_has_gone_is_left_in_silence(verb: str, unbuffered: bool, devkit: Run, unread: int) -> None:
    assert devkit(VERBS[verb], stdout=unread, unbuffered=unbuffered) == (CLOSED_PIPE, "")


@pytest.mark.parametrize("verb", ["page", "record"])
def test_a_closed_output_is_one_error(verb: str, devkit: Run) -> None:
    code, said = devkit(VERBS[verb], stdout=CLOSED)
    assert code == 1
    assert said.splitlines()[-2] == "error: the output cannot be written: Bad file descriptor", said


@pytest.mark.parametrize("to", ["full", "closed"])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(to: str, devkit: Run, full: int) -> None:
    place = full if to == "full" else CLOSED
    assert devkit(["lint", "nothing.sh"], stderr=place)[0] == 2
    assert devkit(["lint", "nothing.sh", "--json"], stderr=place)[0] == 2
    assert devkit(["lint", "nothing.sh", "--json"], stdout=place)[0] == 2
