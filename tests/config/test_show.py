"""What is printed: the configuration for stdout, notes and problems for stderr."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from trainer.config import (
    Note,
    Problem,
    check_command,
    config_text,
    fact_lines,
    load,
    note_lines,
    print_config,
    print_lines,
    problem_lines,
    tree,
)

Command = Callable[..., list[str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_aligned_line_per_key_with_its_origin() -> None:
    head, *lines = config_text(load(["trainer.nnodes=2"], "verl-0.2")).splitlines()
    assert head == "# dialect verl-0.2: asked for"
    lines = [line for line in lines if not line.startswith("# ")]  # what will be chosen: `test_chosen.py`
    assert len(lines) == len(tree.all_keys())
    said = {line.split(" = ")[0].strip(): line.split(" = ")[1] for line in lines}
    assert said["trainer.nnodes"].split("   # ")[1] == "command line"
    assert said["algorithm.use_kl_in_reward"].split() == ["True", "#", "dialect", "verl-0.2"]
    assert said["critic.ppo_epochs"].endswith("# follows actor_rollout_ref.actor.ppo_epochs")
    assert said["trainer.logger"].split()[0] == "[console,file]"
    assert len({line.index(" = ") for line in lines}) == 1
    assert len({line.index("   # ") for line in lines if len(line.split(" = ")[1].split("   # ")[0]) <= 40}) == 1


def test_plain_text_unless_it_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    resolved, plain, terminal = load([]), io.StringIO(), Terminal()
    print_config(resolved, plain)
    print_config(resolved, terminal)
    assert plain.getvalue() == config_text(resolved)
    assert "\x1b[" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    print_lines(["error: no"], quiet := Terminal())
    assert quiet.getvalue() == "error: no\n"


def test_problems_are_pairs_of_one_line_each() -> None:
    problems = [Problem("a", "a is\nodd", "make it even"), Problem("b", "b is odd", "halve\nit")]
    lines = ["error: a is odd", "hint: make it even", "error: b is odd", "hint: halve it"]
    assert list(problem_lines(problems)) == lines


def test_keys_with_one_reason_share_a_line() -> None:
    notes = [
        Note("inert", "a", "a has no effect: it rains"),
        Note("renamed", "c", "c is d here"),
        Note("inert", "b", "b has no effect: it rains"),
    ]
    assert list(note_lines(notes)) == ["note: c is d here", "note: a, b have no effect: it rains"]


def test_facts_are_of_fit_commands(command: Command) -> None:
    assert "total_steps = 60" in list(fact_lines(check_command(command())))
    assert list(fact_lines(check_command(command("trainer.nnodes=0")))) == []
