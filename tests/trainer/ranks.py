"""Ranks that are processes, without Ray: forked from one that has loaded what they need, once for all of a test run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

USERS = ("tests.trainer.test_engine_waits", "tests.trainer.test_push", "tests.trainer.test_teams")


def run_ranks(main: Callable[..., None], args: tuple[Any, ...], count: int) -> None:
    """`main(rank, *args)` in so many processes. Raises what the first to fail has raised."""
    assert main.__module__ in USERS, "it would be loaded by each rank anew"
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(USERS))
    mp.start_processes(main, args, count, start_method="forkserver")
