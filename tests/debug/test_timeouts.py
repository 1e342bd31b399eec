"""Time-outs become a day while somebody debugs: a real process group of two processes outlives its own limit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from devkit.debug.inworker import timeouts, torch_groups
from tests.pace import stretched

ROOT = Path(__file__).resolve().parents[2]

RANK = """
import sys
sys.path.insert(0, {root!r})
from datetime import timedelta
if {hook}:
    from devkit.debug.inworker import timeouts
    timeouts.install()
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{store}", rank={rank}, world_size=2, timeout=timedelta(seconds=1))
group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
dist.barrier()
print("ready", flush=True)
if {rank}:
    input()  # at a breakpoint
one = torch.ones(1)
try:
    dist.all_reduce(one, group=group)
    print("sum", int(one), flush=True)
except RuntimeError as error:
    print("failed", "imed out" in str(error) or "imeout" in str(error), flush=True)
    raise SystemExit(1)
"""


class Pair:
    """Two ranks, of which the second one waits to be released."""

    def __init__(self, folder: Path, hook: bool, stack: ExitStack) -> None:
        folder.mkdir()
        self.ranks = []
        for rank in (0, 1):
            source = RANK.format(root=str(ROOT), hook=hook, rank=rank, store=folder / "store")
            process = subprocess.Popen(
                [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            self.ranks.append(process)
            stack.enter_context(process)

    def said(self, rank: int) -> str:
        output = self.ranks[rank].stdout
        assert output is not None
        return output.readline().strip()

    def release(self) -> None:
        channel = self.ranks[1].stdin
        assert channel is not None
        channel.write("\n")
        channel.flush()


@pytest.mark.ray
@pytest.mark.timeout(170)
def test_a_stopped_rank_outlives_the_groups_limit(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with ExitStack() as stack:
        held = Pair(tmp_path / "held", True, stack)
        assert held.said(0) == held.said(1) == "ready"
        plain = Pair(tmp_path / "plain", False, stack)
        assert plain.said(0) == plain.said(1) == "ready"

        # Rank 0 of both waits now; the pair that began first is still there when the other has run out of time.
        assert plain.said(0) == "failed True"
        held.release()

        assert held.said(0) == held.said(1) == "sum 2"


# ---- each way to make a group, in one process

ONE = """
import sys, json
sys.path.insert(0, {root!r})
from datetime import timedelta
{before}
from devkit.debug.inworker import timeouts
timeouts.install()
import torch
import torch.distributed as dist
short = timedelta(seconds=4)
def limit(group):
    return group._get_backend(torch.device("cpu")).options._timeout
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=short)
assert store.timeout == short
{body}
dist.destroy_process_group()
print("fine")
"""


def run_one(body: str, before: str = "") -> None:
    pytest.importorskip("torch")
    source = ONE.format(root=str(ROOT), body=textwrap.dedent(body), before=before)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=stretched(150))
    assert done.stdout.strip() == "fine", done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.ray
@pytest.mark.parametrize("before", ["", "import torch.distributed", "from torch.distributed import new_group"])
def test_every_group_lives_a_day_whoever_came_first(before: str) -> None:
    run_one(
        """
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=short)
        day = timedelta(days=1)
        assert limit(dist.group.WORLD) == day, limit(dist.group.WORLD)
        assert store.timeout == day, "where ranks exchange what they need for NCCL"
        assert limit(dist.new_group([0], timeout=short)) == day
        assert limit(dist.new_group([0])) == day
        assert limit(dist.new_group([0], timeout=3 * day)) == 3 * day, "a longer one stays"
        from torch.distributed.device_mesh import init_device_mesh
        assert limit(init_device_mesh("cpu", (1,)).get_group()) == day
        # as sglang, vLLM and verl make further default groups
        from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper
        own, _ = _new_process_group_helper(1, 0, [], "gloo", PrefixStore("own", store), "own", timeout=short)
        assert limit(own) == day
        assert all(hasattr(each, "__devkit_raised__") for each in (dist.monitored_barrier, dist.split_group))
        dist.monitored_barrier(timeout=short)
        """,
        before,
    )


@pytest.mark.ray
def test_meeting_the_others_still_has_an_end(tmp_path: Path) -> None:
    run_one(
        f"""
        seen = []
        module = sys.modules["torch.distributed.rendezvous"]
        original = module._rendezvous_helper
        def helper(url, rank, size, **named):
            seen.append(named["timeout"])
            return original(url, rank, size, **named)
        module._rendezvous_helper = helper
        dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1, timeout=short)
        assert seen == [timedelta(hours=1)], seen
        """
    )


def test_what_the_user_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = [limit.variable for limit in timeouts.TABLE if limit.variable]
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "77")
    lifted: list[str] = []
    monkeypatch.setattr(timeouts, "on_import", lambda name, callback: lifted.append(name))
    monkeypatch.setenv("RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S", "60")

    timeouts.install()

    assert os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "77"
    assert os.environ["VLLM_RPC_TIMEOUT"] == "86400000"
    assert "ray.dag.context" in lifted
    assert "ray.data._internal.execution.no_progress_guard" not in lifted, "what is set in the environment is yours"
    for name in variables:
        monkeypatch.delenv(name)


def test_longer_leaves_what_is_no_time() -> None:
    assert torch_groups.longer("soon", torch_groups.DAY) == "soon"
    assert torch_groups.longer(timedelta(days=2), torch_groups.DAY) == timedelta(days=2)
