"""The command line: what it loads, what it says, and how it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from devkit import cli, console
from devkit.errors import DeadlineError, DevkitError
from devkit.menu import FIRST_STEPS, GROUPS
from devkit.smoke.options import SmokeOptions
from tests.pace import stretched

Run = Callable[[SmokeOptions], int]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=stretched(60), check=False
    )


@pytest.fixture
def smoke_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Puts a function in the place of the smoke run."""

    def install(run: Run) -> None:
        fake = ModuleType("devkit.smoke.run")
        fake.main = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "devkit.smoke.run", fake)

    return install


def raises(error: BaseException) -> Run:
    def run(options: SmokeOptions) -> int:
        raise error

    return run


class ForeignError(Exception):
    """Shaped like an error of `trainer.errors`."""

    hint = "look at\nrow 17"
    exit_code = 3


HEAVY = ("ray", "torch", "transformers", "numpy", "omegaconf", "trainer", "xml", "asyncio")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["smoke", "--help"], ["smoke"]])
def test_the_entry_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from devkit.cli import main; main(sys.argv[1:]); print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    loaded = {name.partition(".")[0] for name in python(code, *arguments).stderr.split()}
    assert loaded.isdisjoint(HEAVY)


def test_importing_devkit_loads_only_devkit() -> None:
    code = "import sys; before = set(sys.modules); import devkit; print(*sys.modules.keys() - before)"
    assert python(code).stdout.split() == ["devkit"]


def test_reading_logs_does_not_load_the_hub() -> None:
    code = "import sys, devkit.logs.collect, devkit.logs.follows; print(*sys.modules)"
    loaded = python(code).stdout.split()
    assert "devkit.logs.follows" in loaded
    assert {"devkit.debug.inworker.hub", "devkit.debug.inworker.hub_actor"}.isdisjoint(loaded)


def test_help_is_data() -> None:
    done = python("from devkit.cli import main; main()", "--help")
    assert "smoke" in done.stdout
    assert done.stderr == ""


def test_module_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "devkit", "--version"], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    assert done.stdout.startswith("devkit ")


def test_options_reach_the_run(smoke_run: Callable[[Run], None]) -> None:
    seen: list[SmokeOptions] = []
    smoke_run(lambda options: seen.append(options) or 0)  # type: ignore[func-returns-value]
    line = "--verbose smoke --tiny a.b=[1,2] +c=x --dialect verl-0.2 --json --keep --seed 7 --timeout 9.5 d=e"
    assert cli.main(line.split()) == 0
    assert seen == [
        SmokeOptions(
            overrides=("a.b=[1,2]", "+c=x", "d=e"),
            dialect="verl-0.2",
            json=True,
            keep=True,
            seed=7,
            timeout=9.5,
            verbose=True,
        )
    ]


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_the_runs(smoke_run: Callable[[Run], None], code: int) -> None:
    smoke_run(lambda options: code)
    assert cli.main(["smoke", "--tiny"]) == code


ERRORS = [
    (DevkitError("no folder", hint="make one"), 1, "no folder", "make one"),
    (DeadlineError("two workers still missing", hint="--timeout 60"), 4, "two workers still missing", "--timeout 60"),
    (ForeignError("bad\n  row"), 3, "bad row", "look at row 17"),
    (ValueError("odd"), 1, "ValueError: odd", "add --verbose for the traceback"),
    (ValueError(), 1, "ValueError", "add --verbose for the traceback"),
    (DevkitError("no folder", hint=""), 1, "no folder", "add --verbose for the traceback"),  # a hint is never empty
    (KeyboardInterrupt(), 130, "interrupted", "run the same command to start again"),
]


@pytest.mark.parametrize(("error", "code", "message", "hint"), ERRORS)
def test_an_error_is_two_lines(
    smoke_run: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
    hint: str,
) -> None:
    smoke_run(raises(error))
    assert cli.main(["smoke", "--tiny"]) == code
    out, err = capsys.readouterr()
    assert err.splitlines() == [f"error: {message}", f"hint: {hint}"]
    assert out == ""


@pytest.mark.parametrize(("error", "code", "message", "hint"), ERRORS)
def test_an_error_under_json_is_also_a_record(
    smoke_run: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
    hint: str,
) -> None:
    smoke_run(raises(error))
    assert cli.main(["smoke", "--tiny", "--json"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": message, "hint": hint, "exit_code": code}
    assert err.splitlines() == [f"error: {message}", f"hint: {hint}"]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("smok --tiny", "no such command: devkit smok", "did you mean: devkit smoke --tiny"),
        ("help nosuch", "no such command: devkit nosuch", "devkit --help lists the commands"),
        ("vscode instal", "no such command: devkit vscode instal", "did you mean: devkit vscode install"),
        ("train.py --lr 3", "no such command: devkit train.py", "did you mean: devkit run -- python train.py --lr 3"),
        ("python x.py", "no such command: devkit python", "did you mean: devkit run -- python x.py"),
        ("run nosuch.py --lr 3", "no such command: nosuch.py", "did you mean: devkit run -- python nosuch.py --lr 3"),
        (
            "run python x.py --log 3",
            "ambiguous option --log",
            "put devkit's options before the command; if it is the command's: devkit run -- python x.py --log 3",
        ),
        ("run", "no command to run", "for example: devkit run -- python job.py"),
        ("submit", "no command to run", "for example: devkit submit -- python job.py"),
        ("eval", "EXPR", "see devkit eval --help"),
        ("smoke", "devkit smoke needs a size", "devkit smoke --tiny runs on any machine"),
        ("smoke --tny", "no such option: --tny", "did you mean --tiny? see devkit smoke --help"),
        ("ps --quite", "no such option: --quite", "did you mean --quiet? see devkit ps --help"),
        ("ps --colour", "no such option: --colour", "see devkit ps --help"),
        ("smoke --tiny --seed many", "--seed", "see devkit smoke --help"),
        ("smoke --tiny --seed -1", "--seed", "see devkit smoke --help"),
        ("smoke --tiny --report", "--report", "see devkit smoke --help"),
        ("debug-cluster stop --keep", "--keep", "did you mean --keep-logs? see devkit debug-cluster stop --help"),
    ],
)
def test_wrong_usage_is_two_lines_and_code_2(
    capsys: pytest.CaptureFixture[str], line: str, message: str, hint: str
) -> None:
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second == f"hint: {hint}"
    assert out == ""


def test_wrong_usage_under_json_is_also_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--json", "--tny"]) == 2
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert record["exit_code"] == 2
    assert "--tny" in record["error"]


@pytest.mark.parametrize(
    "line", ["--verbose smoke --tiny", "-v smoke --tiny", "smoke --tiny -v", "smoke --verbose --tiny"]
)
def test_verbose_shows_the_traceback(
    smoke_run: Callable[[Run], None], capsys: pytest.CaptureFixture[str], line: str
) -> None:
    smoke_run(raises(ValueError("odd")))
    assert cli.main(line.split()) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-2:] == [
        "error: ValueError: odd",
        "hint: add --verbose for the traceback",
    ]


@pytest.mark.parametrize("line", ["smoke --verbose --tiny --bad", "-v smok", "smoke --tiny -v --seed many"])
def test_a_mistake_on_the_command_line_has_no_traceback(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert cli.main(line.split()) != 0
    assert [each.partition(":")[0] for each in capsys.readouterr().err.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize("line", ["run -- false", "run -v -- false", "-q run false"])
def test_a_program_that_fails_has_said_so_and_devkit_adds_one_line(
    capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert cli.main(line.split()) == 1
    assert capsys.readouterr().err == "devkit: the command ended with exit code 1\n"


def test_a_program_that_fails_is_an_error_under_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--json", "--", "false"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record == {
        "command": ["false"],
        "returncode": 1,
        "error": "the command ended with exit code 1",
        "hint": "its own output says why",
        "exit_code": 1,
    }


@pytest.mark.parametrize("line", ["-q smoke --tiny", "smoke --tiny -q", "smoke --tiny --quiet"])
def test_quiet_leaves_results_and_errors(
    smoke_run: Callable[[Run], None], capsys: pytest.CaptureFixture[str], line: str
) -> None:
    def run(options: SmokeOptions) -> int:
        console.talk().print("by the way")
        console.result().print("the result")
        raise DevkitError("no folder", hint="make one")

    smoke_run(run)
    assert cli.main(line.split()) == 1
    out, err = capsys.readouterr()
    assert out == "the result\n"
    assert err.splitlines() == ["error: no folder", "hint: make one"]
    cli.main(["smoke", "--tiny"])
    assert "by the way" in capsys.readouterr().err


SPELLINGS = [
    ("-h", "--help"),
    ("help", "--help"),
    ("-V", "--version"),
    ("version", "--version"),
    ("help run", "run --help"),
    ("run -h", "run --help"),
    ("help debug-cluster stop", "debug-cluster stop --help"),
    ("launch", "launch --help"),
]


@pytest.mark.parametrize(("short", "long"), SPELLINGS)
def test_another_spelling_prints_the_same(capsys: pytest.CaptureFixture[str], short: str, long: str) -> None:
    assert cli.main(long.split()) == 0
    expected = capsys.readouterr()
    assert cli.main(short.split()) == 0
    assert capsys.readouterr() == expected
    assert expected.out and not expected.err


def test_devkit_alone_is_a_first_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb in its group and the first steps, without scrolling; the whole list is behind `--help`."""
    assert cli.main([]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) <= 22 and max(map(len, lines)) <= 80 and not err  # a terminal of 24 lines, with what was typed
    for title, names in GROUPS.items():
        assert [title, *names] in [line.split() for line in lines]
    typed = [step.split() for step in FIRST_STEPS]
    assert all(words[0] == "devkit" and any(words[1] in names for names in GROUPS.values()) for words in typed)
    assert "devkit --help" in out and "devkit help VERB" in out


def test_the_words_behind_a_command_are_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    """`devkit run CMD` needs no `--`; what the program prints says what it was given."""
    program = "import sys; print(sys.argv[1:])"
    for line in (
        ["run", sys.executable, "-c", program, "-v", "--lr", "3"],
        ["run", "--", sys.executable, "-c", program, "--log"],
    ):
        assert cli.main(line) == 0
    assert capfd.readouterr().out.splitlines() == ["['-v', '--lr', '3']", "['--log']"]


def test_a_long_error_stays_one_line(smoke_run: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    smoke_run(raises(DevkitError("x" * 50 + " " + "[y] " * 100, hint="z")))
    cli.main(["smoke", "--tiny"])
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.ray  # half a minute
def test_help_costs_what_a_bare_typer_program_costs() -> None:
    """CPU seconds, and the least of several runs: the figure that a busy machine disturbs least."""
    from benchmarks.cli_help import measure

    ours, theirs = measure(runs=5)
    assert min(t.cpu for t in ours) < 1.2 * min(t.cpu for t in theirs)
