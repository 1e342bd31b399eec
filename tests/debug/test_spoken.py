"""The last lines that a process wrote into the files that its output is kept in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.debug.inworker import spoken


@pytest.fixture
def error_output(tmp_path: Path) -> Iterator[Path]:
    """This process's standard error, for as long as the test lasts."""
    path = tmp_path / "worker.err"
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield path
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_the_last_lines_without_colours_tracebacks_and_our_own(error_output: Path) -> None:
    said = [":actor_name:Learner", "first", "\x1b[33mUserWarning: not writable\x1b[0m", "devkit: stopped", "last"]
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()", "    ^^^", "KeyError: 'x'"]
    os.write(2, "\n".join([*said, *trace, ""]).encode())
    assert spoken._lines(2, 3) == ["UserWarning: not writable", "last", "KeyError: 'x'"]


def test_a_choice_of_lines_is_not_called_the_last_ones(error_output: Path) -> None:
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1, in f']
    said = ["ValueError: no 44", "future: Task-69", *trace, "ValueError: no 38", "future: Task-77", *trace]
    os.write(2, "\n".join([*said, "ValueError: no 44", ""]).encode())
    chosen = [line for line in spoken.last_words(2) if line[0] in ("future: Task-77", "ValueError: no 44")]
    assert chosen == [("future: Task-77", False), ("ValueError: no 44", False)], "of two equal lines the last"
    os.write(2, b"step 7\nstep 8\n")
    assert spoken.last_words(2)[:2] == [("step 7", True), ("step 8", True)]


def test_of_much_only_whole_lines_and_secrets_are_hidden(error_output: Path) -> None:
    os.write(2, b"x" * 100_000 + b"\nAuthorization: Bearer abcdefgh12345\n" + b"y" * 500 + b"\n")
    secret, long = spoken._lines(2, 9)
    assert "abcdefgh" not in secret and long == "y" * spoken.LINE


def test_a_pipe_is_not_read() -> None:
    kept, (read, write) = os.dup(2), os.pipe()
    try:
        os.dup2(write, 2)
        assert spoken._lines(2, 3) == []
    finally:
        os.dup2(kept, 2)
        for each in (kept, read, write):
            os.close(each)
