"""The trainer's command lines as a shell sees them: whatever is wrong, one `error:`, one `hint:`, and the exit code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

import trainer.errors
from tests.forks import Forks, forks
from tests.pace import stretched
from tests.trainer.runs import ROOT
from trainer.config import resolve
from trainer.config.show import problem_lines

COMMANDS = ("main_ppo", "export", "replay", "data.prepare")


def run(
    command: str, words: Sequence[str], stdout: int | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **env}
    return subprocess.run(
        [sys.executable, "-m", f"trainer.{command}", *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        timeout=stretched(100),
        check=False,
    )


def one_error(said: str) -> str:
    lines = [line for line in said.splitlines() if not line.startswith("note:")]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], said
    assert all(line.partition(":")[2].strip() for line in lines)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def python() -> Iterator[Forks]:
    with forks(*(f"trainer.{command}" for command in COMMANDS)) as process:
        yield process


@pytest.mark.parametrize("command", COMMANDS)
def test_words_that_are_none_of_the_commands(command: str, python: Forks) -> None:
    done = python.run(f"trainer.{command}", ["--no-such-option"])
    assert done.code == 2
    assert "--no-such-option" in one_error(done.err) or "required" in one_error(done.err)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("main_ppo", ["--print-config"]),
        ("main_ppo", ["--help"]),
        ("replay", ["--help"]),
        ("export", ["--help"]),
        ("data.prepare", ["--help"]),
    ],
)
@pytest.mark.parametrize("unbuffered", [False, True])
def test_output_that_nobody_can_take(command: str, words: list[str], unbuffered: bool, python: Forks) -> None:
    """A full disk says so; a reader that has seen enough is no error."""
    with open("/dev/full", "wb") as full:
        done = python.run(f"trainer.{command}", words, stdout=full.fileno(), unbuffered=unbuffered)
    assert done.code == 1
    assert "cannot write the output: No space left on device" in one_error(done.err)

    reads, writes = os.pipe()
    os.close(reads)
    done = python.run(f"trainer.{command}", words, stdout=writes, unbuffered=unbuffered)
    os.close(writes)
    assert (done.code, done.err) == (0, "")


def test_a_full_disk_under_a_process_of_its_own() -> None:
    """Python's own start and end in it, too."""
    with open("/dev/full", "wb") as full:
        done = run("main_ppo", ["--help"], stdout=full.fileno())
    assert done.returncode == 1
    assert "cannot write the output: No space left on device" in one_error(done.stderr.decode())


def test_output_that_is_no_utf_8() -> None:
    if not str(ROOT).isascii():
        pytest.skip("Python itself does not start from such a folder in such a locale")
    plain = {"PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = run("main_ppo", ["--print-config", "trainer.project_name='größe 大'"], **plain)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"gr\u" in done.stdout or rb"gr\x" in done.stdout
    done = run("main_ppo", ["--check", "trainer.default_local_dir='größe 大'", "data.seed=-1"], **plain)
    assert done.returncode == 2 and b"Traceback" not in done.stderr


INTERRUPTED = """
import signal, sys
import trainer.{command} as module
def interrupted(*_args, **_kwargs):
    signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
module.{what} = interrupted
sys.exit(module.main(sys.argv[1:]))
"""
WORDS = {
    "export": ("export", ["x", "--output", "y"]),
    "replay": ("replay", ["x"]),
    "data.prepare": ("prepare", ["gsm8k", "--input", "x", "--output", "y"]),
    "main_ppo": ("resolve", []),
}


@pytest.mark.parametrize("command", WORDS)
def test_a_command_that_is_interrupted(command: str, python: Forks) -> None:
    what, words = WORDS[command]
    done = python.run(INTERRUPTED.format(command=command, what=what), words)
    assert done.code == 130
    assert one_error(done.err).startswith("error: interrupted")


# -------------------------------------------------------------------------------------------------------------- hints


@pytest.mark.parametrize("word", ["nokey=1", "zzzzzz.qqqqqq=1", "a.b.c.d=2", "~nokey"])
def test_a_key_that_is_like_no_other_has_a_hint(word: str) -> None:
    lines = list(problem_lines(resolve([word]).problems))
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    assert "--print-config" in lines[1]


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the package that makes one of its errors, or a problem of a command."""
    kinds = {name for name, value in vars(trainer.errors).items() if isinstance(value, type)} | {
        "Problem",
        "WorkerFailed",
    }
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_every_error_has_a_hint() -> None:
    """It cannot be made without one; here: nor with one that says nothing."""
    calls = list(raised())
    assert len(calls) > 100
    for place, call in calls:
        hints = [keyword.value for keyword in call.keywords if keyword.arg == "hint"]
        hints += call.args[2:3] if isinstance(call.func, ast.Name) and call.func.id == "Problem" else []
        texts = [each.value for hint in hints for each in ast.walk(hint) if isinstance(each, ast.Constant)]
        assert "" not in texts, f"{place}: an empty hint"
    with pytest.raises(TypeError, match="hint"):
        trainer.errors.TrainerError("alone")  # type: ignore[call-arg]
