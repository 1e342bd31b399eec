"""What the checks found so far, and the end of a run that is to stop at its first failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from devkit.logs import redact
from devkit.records import CheckResult, Status

if TYPE_CHECKING:  # it imports torch
    from devkit.smoke.checks.outcome import Outcome


# What comes before what it leads to, as a step goes: of several failures the first one is the nearest to the mistake.
CAUSES_FIRST = (
    *("command-settings", "data-rows", "data-limits", "settings", "steps"),
    *("data-order", "prompts", "prompt-tokens"),
    *("weight-sync", "ranks-equal", "draws-differ", "temperature", "top-p", "top-k", "validation", "validation-rows"),
    *("masks", "rollout-logprobs", "reference"),
    *("pipeline-rewards", "reward-truth", "reward-answer", "reward-text", "reward-calls", "reward-repeats", "rewards"),
    *("kl-in-reward", "advantages", "formulas"),
    *("forward", "mini-batches", "losses", "loss-gradient", "micro-batches", "first-mini-batch", "gradients"),
    *("learning-rate", "adamw", "optimizer-step"),
    *("policy-update", "critic-update", "learning"),
    *("metrics", "killed-rank", "resume", "export"),
)


# Of conversations with `--agent`.
OF_AGENTS = (
    *("steps", "weight-sync", "ranks-equal", "turns", "glue", "rollout-logprobs", "turn-rewards"),
    *("mask-proof", "first-mini-batch", "gradients", "learning", "killed-rank", "resume"),
)


class FirstFailure(Exception):
    """Under `--fail-fast`: a check failed, and what comes after it is left out."""


class Results:
    """Findings by the name of their check: a failure stays, whatever later steps show.

    They may quote what the program says, without its secrets: CI keeps them.
    """

    def __init__(self, *, fail_fast: bool = False, names: Sequence[str] = CAUSES_FIRST) -> None:
        """`names`: what is looked at, causes first."""
        self._fail_fast, self._names = fail_fast, names
        self._found: dict[str, CheckResult] = {}

    def add(self, name: str, look: Callable[[], Outcome]) -> None:
        """Carries out a check and keeps the first failure, else the latest finding."""
        started = time.perf_counter()
        outcome = look()
        seconds = time.perf_counter() - started
        status: Status = "skip" if outcome.ok is None else "pass" if outcome.ok else "fail"
        found, known = CheckResult(name, status, redact.text(outcome.detail), seconds), self._found.get(name)
        if known is not None:
            settled = known.status == "fail" or (status == "skip" and known.status == "pass")
            found = replace(known if settled else found, seconds=known.seconds + seconds)
        self._found[name] = found

    def failed(self, name: str, detail: str) -> None:
        """Something ended the run."""
        self._found[name] = CheckResult(name, "fail", redact.text(detail), 0.0)

    def complete(self, why: str) -> None:
        """At the end: what was never looked at says so."""
        for name in self._names:
            if name not in self._found:
                self._found[name] = CheckResult(name, "skip", why, 0.0)

    def settle(self) -> None:
        """Call it when all that can be seen at one point was looked at. Raises FirstFailure if the run is to end."""
        if self._fail_fast and any(result.status == "fail" for result in self._found.values()):
            raise FirstFailure

    @property
    def all(self) -> tuple[CheckResult, ...]:
        """Causes first; what ended the run, and is no check, comes last."""
        place = {name: number for number, name in enumerate(self._names)}
        return tuple(sorted(self._found.values(), key=lambda found: place.get(found.name, len(place))))
