"""What `devkit smoke` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LAKE, SEARCH = "lake", "search"
AGENTS = (LAKE, SEARCH)  # of --agent


@dataclass(frozen=True)
class SmokeOptions:
    """The options of one call, as the command line gave them.

    >>> SmokeOptions(overrides=("actor_rollout_ref.rollout.n=4",)).seed
    0
    """

    overrides: tuple[str, ...] = ()  # KEY=VALUE of a full run, in Hydra's grammar
    command: tuple[str, ...] = ()  # what would start the full run, such as `bash run.sh`; its overrides come first
    agent: str | None = None  # conversations with one of AGENTS, in place of single turns
    rollout: str = "hf"  # the engine that generates
    dialect: str | None = None  # None: told from the keys
    json: bool = False  # one record on stdout
    junit: Path | None = None  # where the JUnit file goes
    report: Path | None = None  # where the report folder goes
    keep: bool = False  # keep the working folder
    fail_fast: bool = False  # stop after the first failed check
    seed: int = 0
    timeout: float | None = None  # seconds for the whole run; None: no deadline
    verbose: bool = False
