"""A program without Ray under `devkit run`: it runs as it is, and whoever asked for more is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devkit.debug.aftermath import NOT_WATCHED, tell_no_ray
from devkit.debug.launch import DebugOptions, asked_of_ray
from devkit.errors import UsageError
from tests.debug.conftest import environment
from tests.forks import Forks, forks

DEVKIT = [sys.executable, "-m", "devkit"]
# What its verbs import when they are called.
LOADED = ("devkit.debug.launch", "devkit.debug.crashes", "devkit.logs.run", "devkit.logs.view")
NOTHING = "devkit: the command started no Ray, so there was nothing to debug"
FINE, FAILS = "print('trained')", "raise SystemExit(7)"


@pytest.fixture(scope="module")
def python() -> Iterator[Forks]:
    with forks("devkit.cli", *LOADED) as process:
        yield process


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(python: Forks, tmp_path: Path) -> Run:
    """`run("crashes", "show")`: exit code, output and errors of that command of devkit; `address`: RAY_ADDRESS."""

    def command(*words: str, address: str | None = None) -> tuple[int, str, str]:
        named = {} if address is None else {"RAY_ADDRESS": address}
        done = python.run("devkit", words, env={**environment(tmp_path), **named})
        return done.code, done.out, done.err

    return command


def test_a_plain_program_is_told_once(run: Run) -> None:
    code, out, err = run("run", "--", sys.executable, "-c", FINE)
    assert (code, out, err.splitlines()) == (0, "trained\n", [NOTHING])


def test_one_that_fails_stays_a_failure(run: Run) -> None:
    code, _, err = run("run", "--break", "json:dumps", "--", sys.executable, "-c", FAILS)
    assert code not in (0, 2) and "exit code 7" in err
    assert "devkit: the command started no Ray, so --break did nothing" in err
    assert "cluster" not in err and "devkit crashes" not in err


RAISES = """
def score(answer, weights):
    return sum(weights[letter] for letter in answer)


print(score("ab", {"a": 1}))
"""


def test_an_error_of_one_that_has_no_ray_is_kept_with_its_values(run: Run, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(RAISES)
    code, _, err = run("run", "--", sys.executable, str(tmp_path / "early.py"))
    assert code == 1 and "KeyError: 'b'" in err and "devkit crashes shows the snapshots that it left" in err
    code, out, err = run("crashes", "show")
    assert code == 0 and "KeyError" in out and "weights" in out and "driver" in out, out + err
    code, out, err = run("logs", "--first-error")
    assert "first error: KeyError: 'b'" in out and "early.py:3 in" in out, out + err
    assert "job  (" not in out, "it has no id"
    code, out, _ = run("crashes", "--json")
    assert [each["exception"]["type"] for each in json.loads(out)["crashes"]] == ["KeyError"]


def test_with_post_mortem_off_none_is_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(RAISES)
    run("run", "--post-mortem", "off", "--", sys.executable, str(tmp_path / "early.py"))
    assert "no crash" in "".join(run("crashes")[1:])


def test_who_waits_for_the_watchdog_is_told_that_it_has_nothing_to_watch_yet(tmp_path: Path) -> None:
    waits = "import sys; sys.stdin.read()"
    words = [*DEVKIT, "run", "--hang-timeout", "0.2", "--", sys.executable, "-c", waits]
    with subprocess.Popen(words, env=environment(tmp_path), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stderr is not None and program.stderr.readline().decode().rstrip() == NOT_WATCHED
        program.communicate(b"")


def test_what_was_asked_for_and_could_not_be_done_is_an_error(run: Run) -> None:
    code, out, err = run("run", "--break", "json:dumps", "--", sys.executable, "-c", FINE)
    assert (code, out) == (2, "trained\n")
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "error",
        "hint",
    ] and "so --break did nothing" in err
    assert "ray.init" in err and "cluster" not in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (DebugOptions(("x",), hang_timeout=60.0), "so --hang-timeout did nothing"),
        (DebugOptions(("x",), specs=("a:b",), hang_timeout=60.0), "so --break and --hang-timeout did nothing"),
    ],
)
def test_each_option_that_did_nothing_is_named(options: DebugOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tell_no_ray(0, asked_of_ray(options))
    tell_no_ray(1, asked_of_ray(options))
    tell_no_ray(0, asked_of_ray(DebugOptions(("x",), timeout=5.0)))


@pytest.mark.ray
def test_a_program_that_comes_to_ray_is_none(run: Run) -> None:
    # given what Ray calls in `ray.init` before it looks for a cluster, and a program that then ends
    hooked = "import os; from ray._private.worker import load_class; load_class(os.environ['RAY_RUNTIME_ENV_HOOK'])({})"
    code, _, err = run("run", "--break", "json:dumps", "--", sys.executable, "-c", hooked)
    assert code == 0 and err == "", err


@pytest.mark.ray
def test_while_it_runs_nobody_is_sent_to_a_cluster(run: Run, tmp_path: Path) -> None:
    waits = "import sys; print('here', flush=True); sys.stdin.read()"
    words = [*DEVKIT, "run", "--", sys.executable, "-c", waits]
    environ = environment(tmp_path)
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "here\n"
        code, _, err = run("ps")
        assert code == 3 and f"`{sys.executable} -c" in err and "under devkit run has started none" in err
        assert "debug-cluster" not in err
        program.communicate("")
    assert "debug-cluster" in run("ps")[2], "it is forgotten with its end"


DEAD = "127.0.0.1:9"  # discard: nobody has listened there for decades
NAMED = f"no Ray answers at {DEAD}: connection refused"
UNSET = "RAY_ADDRESS names it: start its head, or unset RAY_ADDRESS"


def test_a_program_is_not_sent_to_a_cluster_that_is_gone(run: Run) -> None:
    """Ray would try for minutes before it says so."""
    code, out, err = run("run", "--", sys.executable, "-c", "import ray; ray.init()", address=DEAD)
    assert (code, out, err.splitlines()) == (3, "", [f"error: {NAMED}", f"hint: {UNSET}"])


@pytest.mark.parametrize(
    "words",
    [
        ("sh", "-c", "echo trained"),
        (sys.executable, "-c", FINE),
        (sys.executable, "-c", f"{FINE}\nif 0:\n    import ray; ray.init(address='local')"),
    ],
    ids=["a script", "no Ray", "a Ray of its own"],
)
def test_what_may_need_no_cluster_is_told_and_runs(run: Run, words: tuple[str, ...]) -> None:
    code, out, err = run("run", "--", *words, address=DEAD)
    assert (code, out, err.splitlines()) == (0, "trained\n", [f"devkit: {NAMED}; {UNSET}", NOTHING])


@pytest.mark.parametrize("address", ["auto", "local", "ray://127.0.0.1:9", "http://127.0.0.1:9"])
def test_other_kinds_of_addresses_are_left_to_ray(run: Run, address: str) -> None:
    assert run("run", "--", sys.executable, "-c", FINE, address=address)[:2] == (0, "trained\n")
