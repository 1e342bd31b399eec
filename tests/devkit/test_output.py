"""Output that nobody can read or keep: one error line, or silence where the reader has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from devkit.errors import CLOSED_PIPE
from tests.pace import stretched

FULL = "/dev/full"
LONG = "#!/bin/bash\n" + "ray start --head --dashboard-host 0.0.0.0 --num-cpus 1\n" * 400  # more than a buffer
VERBS = {
    "version": ["--version"],
    "help": ["--help"],
    "a verb's help": ["debug-cluster", "status", "--help"],
    "page": ["lint", "run.sh"],
    "record": ["lint", "--json", "run.sh"],
    "a file": ["launch", "slurm", "--nodes", "2", "--", "python", "x.py"],
}


def devkit(words: Sequence[str], folder: Path, redirection: str, unbuffered: bool = False) -> tuple[int, str]:
    """Exit code and standard error, through the shell's redirection of `"$@"`."""
    (folder / "run.sh").write_text(LONG)
    command = ["bash", "-c", f'"$@" {redirection}', "-", sys.executable, "-m", "devkit", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(unbuffered), stderr=subprocess.PIPE, text=True, timeout=stretched(120)
    )
    return done.returncode, done.stderr


def environment(unbuffered: bool = False) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**own, "PYTHONUNBUFFERED": "1"} if unbuffered else own


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_full_is_one_error(verb: str, unbuffered: bool, tmp_path: Path) -> None:
    code, said = devkit(VERBS[verb], tmp_path, f">{FULL}", unbuffered)
    *_, error, hint = said.splitlines()
    assert error == "error: the output cannot be written: No space left on device", said
    assert hint.startswith("hint: ") and len(hint) > len("hint: ") and "Traceback" not in said
    assert code == 1


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("verb", ["version", "page", "record"])
def test_a_reader_that_has_gone_is_left_in_silence(verb: str, unbuffered: bool, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    (tmp_path / "run.sh").write_text(LONG)
    command = [sys.executable, "-m", "devkit", *VERBS[verb]]
    try:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(unbuffered),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=stretched(120),
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")


@pytest.mark.parametrize("verb", ["page", "record"])
def test_a_closed_output_is_one_error(verb: str, tmp_path: Path) -> None:
    code, said = devkit(VERBS[verb], tmp_path, ">&-")
    assert code == 1
    assert said.splitlines()[-2] == "error: the output cannot be written: Bad file descriptor", said


@pytest.mark.parametrize("to", [FULL, "&-"])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(to: str, tmp_path: Path) -> None:
    assert devkit(["lint", "nothing.sh"], tmp_path, f"2>{to}")[0] == 2
    assert devkit(["lint", "nothing.sh", "--json"], tmp_path, f"2>{to} >/dev/null")[0] == 2
    assert devkit(["lint", "nothing.sh", "--json"], tmp_path, f">{to}")[0] == 2
