"""Options that stand on many verbs, each checked on all of them: durations, and places to write to.

The verbs are found by walking the command line, so that one that is new is covered, or fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from devkit import cli
from devkit.durations import METAVAR, MOST
from devkit.errors import UsageError
from devkit.menu import GROUPS

NEVER = {"run", "submit", "break", "slurm"}  # have a duration that 0 makes endless
# Not written by devkit, or read: each with its reason.
OTHERS = {
    ("slurm", "--log"): "Slurm's own, on the nodes",
    ("submit", "--working-dir"): "read, and sent along",
    ("init", "--folder"): "read first, and written at once",
    ("debug-cluster", "--temp-dir"): "with --hosts it lies elsewhere; each node tries its own",
    ("debug-cluster", "--hosts"): "read",
}


WAITS_FOR_NOBODY = {
    "lint": "reads files",
    "agent show": "reads a file",
    "agent play": "waits for the person who plays",
    "agent replay": "runs the user's own code in this process, for a debugger",
    "vscode init": "writes files",
    "vscode install": "starts an editor's own installer",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(cli.app)))
OPTIONS = [(path, option) for path, command in COMMANDS.items() for option in command.params if option.opts]
DURATIONS = [(path, option.opts[0]) for path, option in OPTIONS if option.metavar == METAVAR]
PLACES = [
    (path, option.opts[0])
    for path, option in OPTIONS
    if {"FILE", "DIR"} & set((option.metavar or "").split("|"))
    if option.opts[0].startswith("--") and ((path or ("",))[-1], option.opts[0]) not in OTHERS
]


def parse(path: tuple[str, ...], *arguments: str) -> None:
    """The options of one command are read, and nothing is done."""
    COMMANDS[path].make_context("devkit", list(arguments), resilient_parsing=False)


def names(found: list[tuple[tuple[str, ...], str]]) -> list[str]:
    return [" ".join((*path, option)) for path, option in found]


def test_the_walk_finds_what_there_is() -> None:
    assert {("ps", "--timeout"), ("smoke", "--timeout"), ("hang", "--after"), ("slurm", "--queue-timeout")} <= {
        (path[-1], option) for path, option in DURATIONS
    }
    assert {("smoke", "--junit"), ("smoke", "--report"), ("logs", "--bundle"), ("kuberay", "--output")} <= {
        (path[-1], option) for path, option in PLACES
    }


def test_every_verb_that_waits_is_told_how_long() -> None:
    verbs = {" ".join(path): command for path, command in COMMANDS.items() if path and not hasattr(command, "commands")}
    silent = {verb for verb, command in verbs.items() if not any("timeout" in o.opts[0] for o in command.params)}
    assert silent == set(WAITS_FOR_NOBODY)


def test_every_fraction_is_a_duration() -> None:
    """A new option that takes a float is one, or says here what it is."""
    floats = [(path, option.opts[0]) for path, option in OPTIONS if option.type_descriptor.annotation is float]
    assert floats == DURATIONS


def test_every_seed_is_one_that_all_libraries_take() -> None:
    seeds = [(path, option) for path, option in OPTIONS if option.opts[0] == "--seed"]
    assert {path[-1] for path, _ in seeds} == {"smoke", "play"}
    for path, option in seeds:
        assert (option.min, option.max) == (0, 2**32 - 1)
        with pytest.raises(typer.BadParameter, match="4294967295"):
            parse(path, "--seed=4294967296", "frozen_lake")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1", "1e300", f"{MOST + 1:.0f}", "0"])
@pytest.mark.parametrize(("path", "option"), DURATIONS, ids=names(DURATIONS))
def test_a_duration_is_one_that_a_clock_can_wait(path: tuple[str, ...], option: str, value: str) -> None:
    if value == "0" and path[-1] in NEVER and option in ("--timeout", "--hang-timeout", "--queue-timeout"):
        pytest.skip("without end")
    with pytest.raises(UsageError, match=option) as caught:
        parse(path, f"{option}={value}")
    assert "number of seconds" in caught.value.hint


@pytest.mark.parametrize("line", ["ps --timeout inf", "doctor --timeout nan", "smoke --tiny --timeout 0"])
def test_such_a_one_is_two_lines_and_wrong_usage(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and line.split()[-1] in first
    assert second.startswith("hint: ")


@pytest.mark.parametrize(("path", "option"), PLACES, ids=names(PLACES))
def test_a_place_that_takes_nothing_is_refused_at_once(path: tuple[str, ...], option: str, tmp_path: Path) -> None:
    (tmp_path / "file.zip").write_text("kept")
    for place in ("/dev/full", "/proc/version.zip", str(tmp_path / "file.zip" / "x.zip"), str(tmp_path / ("x" * 300))):
        with pytest.raises(UsageError, match=f"{option} .* cannot be written"):
            parse(path, option, place)
    assert [each.name for each in tmp_path.iterdir()] == ["file.zip"]
    assert (tmp_path / "file.zip").read_text() == "kept"


@pytest.mark.parametrize(("path", "option"), PLACES, ids=names(PLACES))
def test_trying_a_place_leaves_it_as_it_was(path: tuple[str, ...], option: str, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "a.zip").write_text("kept")
    place = folder if option == "--report" else folder / "a.zip"
    parse(path, option, str(place))
    parse(path, option, str(place.with_name("new.zip")))
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("a.zip", "kept")]
    assert list(tmp_path.iterdir()) == [folder]


def test_folders_that_were_made_for_the_trial_are_gone(tmp_path: Path) -> None:
    for option in ("--junit", "--report"):
        parse(("smoke",), option, str(tmp_path / "a" / "b" / "c.xml"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--report", "--junit"])
def test_the_smoke_test_refuses_before_it_starts(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["smoke", "--tiny", option, "/dev/full"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {option} /dev/full cannot be written: ")
    assert second.startswith("hint: ")


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if getattr(command, "commands", None)])
def test_a_commands_line_in_the_table_is_whole_at_any_width(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (80, 81, 99, 120, 160, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main([*path, "--help"]) == 0
        shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        for name, command in COMMANDS[path].commands.items():
            about = command.help.split("\n\n")[0]
            assert f"{name} {' '.join(about.split())}" in shown, (columns, name)


def test_help_has_the_terminals_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    widest = {}
    for columns in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(["run", "--help"]) == 0
        widest[columns] = max(map(len, capsys.readouterr().out.splitlines()))
        assert widest[columns] <= columns
    assert widest[80] < widest[120]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "devkit")
def test_help_says_what_goes_in_and_no_python_type(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"<[\w\[]+|list\[|\bclass\b|\b(?:str|int|float|Path|TEXT|INTEGER)\b", out) == []
    takes = [each for each in COMMANDS[path].params if not getattr(each, "is_flag", False)]
    ours = [each for each in takes if not each.name.endswith("_completion")]
    assert [each.name for each in ours if not re.search("[A-Z]{2}|[A-Z]$|\\|", each.metavar or "")] == []
    assert re.findall(r"[{}]|default:\s+\d+\.0\]", out) == []


def test_a_default_that_help_shows_as_a_whole_number_is_read_as_a_float() -> None:
    hang = COMMANDS[("hang",)]
    after = hang.make_context("hang", []).params["after"]
    assert (after, type(after)) == (10.0, float)


def test_every_verb_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS[()].commands)


def test_every_command_takes_the_options_of_all() -> None:
    for path, command in COMMANDS.items():
        assert {"-v", "-q"} <= {name for option in command.params for name in option.opts}, path


def test_a_command_that_fails_without_ray_has_left_no_crash(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cli.main(["run", "--", "false"]) == 1
    assert capsys.readouterr().err == "devkit: the command ended with exit code 1\n"
