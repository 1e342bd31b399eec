"""Ranks that are forked from one process for many runs are found by the mark of their own run."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

from tests.trainer.runs import ROOT, marked
from tests.trainer.warm_ranks import MARK, UNWORN

FORKS = """
import os, sys, time
from tests.trainer.warm_ranks import wear
child = os.fork()
if child == 0:
    wear(sys.argv[1])
    print(os.getpid(), flush=True)
    if os.fork() == 0:
        print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def test_a_fork_and_what_it_forks_wear_the_mark_of_their_run() -> None:
    mark = uuid.uuid4().hex
    assert len(mark) == len(UNWORN)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), MARK: UNWORN}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKS, mark], env=environ, text=True, **pipes) as process:
        forked = [int(process.stdout.readline()) for _ in range(2)]
        assert sorted(marked(mark)) == sorted(forked)
        assert process.pid in marked(UNWORN)
        process.stdin.close()
