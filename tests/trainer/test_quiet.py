"""What libraries say of themselves: not in a run's log, unless it is an error or was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pace import stretched
from tests.trainer.runs import ROOT
from tests.trainer.stubbed import gpu_spec
from trainer.rollout import vllm
from trainer.rollout.server import PartSpec

PART = PartSpec(engine=0, node_rank=0, nodes=1, gpus="0", address="127.0.0.1:5000")

ENGINE = """
import sys, types
from dataclasses import replace
from tests.trainer.stubbed import spec_of
from trainer.rollout import server
from trainer.rollout.server import EngineServer, PartSpec

def start(spec, part):
    import logging
    from tqdm import tqdm
    for _ in tqdm(range(3), desc="Capturing batches"):
        pass
    logging.getLogger("engine").error("out of memory")
    return types.SimpleNamespace(version="1")

sys.modules["noisy"] = types.SimpleNamespace(start=start)
server.ADAPTERS["sglang"] = "noisy"
spec = spec_of("/m", options=eval(sys.argv[1]))
EngineServer(spec, PartSpec(engine=0, node_rank=0, nodes=1, gpus="0", address="127.0.0.1:5000")).start()
"""

# A rank, and the rendezvous that it opens, where nobody answers who 127.9.9.9 is: as in many a container.
RANK = """
import sys, types
sys.modules["trainer.roles"] = types.ModuleType("trainer.roles")  # models and all: takes seconds, opens no socket
from trainer.worker import PPOWorker, Seat

print(PPOWorker(Seat.alone(), "127.9.9.9").open_store(1, 60.0))
"""


def said(script: str, *words: str, before: tuple[str, ...] = (), **env: str) -> str:
    bare = {name: value for name, value in os.environ.items() if name not in ("TQDM_DISABLE", "TORCH_CPP_LOG_LEVEL")}
    command = [*before, sys.executable, "-c", script, *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**bare, **env}, capture_output=True, text=True, timeout=stretched(120), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_an_engine_has_no_progress_bars_and_its_errors_show() -> None:
    quiet = said(ENGINE, "{}")
    assert "Capturing batches" not in quiet and "out of memory" in quiet


@pytest.mark.parametrize(("options", "env"), [("{'log_level': 'info'}", {}), ("{}", {"TQDM_DISABLE": ""})])
def test_who_asks_for_more_than_errors_gets_it(options: str, env: dict[str, str]) -> None:
    assert "Capturing batches" in said(ENGINE, options, **env)


def test_vllm_shows_no_bars_of_its_own_making() -> None:
    """It says to tqdm itself whether a bar is shown."""
    assert vllm.arguments(gpu_spec("vllm"), PART)["use_tqdm_on_load"] is False
    loud = replace(gpu_spec("vllm"), options={"log_level": "info"})
    assert vllm.arguments(loud, PART)["use_tqdm_on_load"] is True


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/unshare").exists(), reason="needs a network of its own")
def test_a_rank_says_nothing_of_hosts_without_a_name() -> None:
    """Given torch, which warns of each socket whose host it finds no name for, no line of it is a run's."""
    alone = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
    resolver = {"RES_OPTIONS": "timeout:1 attempts:1"}
    assert "socket.cpp" in said(RANK, before=alone, TORCH_CPP_LOG_LEVEL="WARNING", **resolver)
    assert "socket.cpp" not in said(RANK, before=alone, **resolver)
