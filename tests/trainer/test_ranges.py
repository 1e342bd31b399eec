"""Numbers on the trainer's command lines and of its environments: what is none, or beyond its limits, is refused."""

from __future__ import annotations

import bdb
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer import commands, replay
from trainer.agent.source import Source
from trainer.data.prepare import _parser
from trainer.errors import ConfigError


@pytest.mark.parametrize("word", ["nan", "-1", "inf", "-inf", "1e999", "x", "-0.1"])
def test_a_tolerance_is_a_number_from_0_on(word: str) -> None:
    """With nan all would be off, with inf all the same."""
    with pytest.raises(ConfigError, match="--tolerance"):
        replay.parse(["x.capsule", f"--tolerance={word}"])


def test_tolerances_that_are() -> None:
    assert [replay.parse(["x", f"--tolerance={word}"]).tolerance for word in ("0", "1e-3")] == [0.0, 0.001]
    assert replay.parse(["x"]).tolerance is None


@pytest.mark.parametrize("word", ["0", "-1", "9" * 30, "1.5"])
def test_a_limit_of_rows(word: str) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        _parser().parse_args(["gsm8k", "--output", "x", f"--limit={word}"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None])
@pytest.mark.parametrize("env", ["frozen_lake", "roll_frozen_lake", "sokoban"])
def test_a_penalty_is_a_finite_number(env: str, value: Any) -> None:
    with pytest.raises(ValueError, match="format_penalty"):
        Source(env).load()(format_penalty=value)


@pytest.mark.parametrize("env", ["roll_frozen_lake", "sokoban"])
def test_a_number_of_steps_is_one(env: str) -> None:
    Source(env).load()(max_steps=5, format_penalty=-0.1)
    for value in (math.nan, "5"):
        with pytest.raises(ValueError, match="max_steps"):
            Source(env).load()(max_steps=value)


# ---- the last resort


def broken() -> int:
    raise KeyError("what nobody\nthought of")


def test_what_nobody_thought_of_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.outcome(broken) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert "internal error: KeyError: " in lines[0] and "--verbose" in lines[1]


@pytest.mark.parametrize("given", [{"verbose": True}, {"long": True}])
def test_its_traceback_is_there_for_who_asks_and_of_what_takes_long(
    given: dict[str, bool], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Python's hook, which a debugger may have taken; and so may Ray or Typer, by another test of this process."""
    monkeypatch.setattr("sys.excepthook", sys.__excepthook__)
    assert commands.outcome(broken, **given) == 1
    *trace, error, hint = capsys.readouterr().err.splitlines()
    assert trace[0].startswith("Traceback") and "in broken" in "\n".join(trace)
    assert error.startswith("error: ") and hint.startswith("hint: ")
    seen: list[type] = []
    monkeypatch.setattr("sys.excepthook", lambda kind, *_rest: seen.append(kind))
    commands.outcome(broken, **given)
    assert seen == [KeyError]


def test_who_leaves_a_debugger_has_left() -> None:
    def left() -> int:
        raise bdb.BdbQuit

    with pytest.raises(bdb.BdbQuit):
        commands.outcome(left, long=True)


PROGRAM = """
import sys
from trainer.commands import outcome

def command():
    print("here")  # a breakpoint
    return 0

sys.exit(outcome(command))
"""


def test_pdb_ends_where_it_is_left_and_does_not_start_the_program_anew(tmp_path: Path) -> None:
    """As `python -m pdb -m trainer.main_ppo`; pdb begins anew whatever has ended by itself."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    line = PROGRAM[: PROGRAM.index("# a breakpoint")].count("\n") + 1
    words = [sys.executable, "-m", "pdb", "-c", f"b {line}", "-c", "c", str(program)]
    done = subprocess.run(words, input="q\nq\n", capture_output=True, text=True, timeout=120)
    assert "print(" in done.stdout, done.stdout
    assert "exited via" not in done.stdout and "internal error" not in done.stderr, done.stdout + done.stderr
