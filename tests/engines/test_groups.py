"""Tensor-parallel groups: two ranks that share an engine, on one node and across two (virtual ones of this machine)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import psutil
import pytest
import ray
import torch

from tests.engines.conftest import AGREE, ROLLOUT, gap
from tests.pace import stretched
from trainer.cluster import WorkerPool
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import Prompts
from trainer.rollout.build import spec_of
from trainer.rollout.handle import EngineHandle, gone
from trainer.rollout.remote import free_port
from trainer.rollout.server import PartSpec
from trainer.spec import RunSpec

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(params=[1, 2], ids=["one node", "two nodes"])
def workers(request: pytest.FixtureRequest, config_of: Callable[..., Config], tmp_path_factory: Any) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    nodes = request.param
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    slots = {"num_gpus": 2 // nodes} if torch.cuda.is_available() else {}
    cluster = Cluster()
    for node in range(nodes):  # else each of two nodes would count its GPUs from 0
        shown = {"CUDA_VISIBLE_DEVICES": "0,1" if nodes == 1 else str(node)} if slots else {}
        cluster.add_node(num_cpus=4 // nodes, env_vars=shown, include_dashboard=False, **slots)
    ray.init(cluster.address, log_to_driver=False)
    world = (f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={2 // nodes}")
    config = config_of(*world, f"{ROLLOUT}.tensor_model_parallel_size=2", f"{ROLLOUT}.engine_timeout=400")
    try:
        with closing(WorkerPool(config)) as pool:
            pool.timeout_s = 450.0
            pool.connect()
            pool.build(RunSpec(config, None, 3))  # type: ignore[arg-type]
            yield WorkerGroup(pool, config)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_two_ranks_share_an_engine(workers: WorkerGroup, prompts: Prompts) -> None:
    rollout = workers.generate(prompts, 1, validate=False)
    assert torch.equal(rollout.prompts.uid_B, prompts.uid_B)
    assert gap(workers, rollout) < AGREE
    actor, engine = workers.checksums("actor"), workers.checksums("engine")
    if not torch.cuda.is_available():  # there the actor's weights are fp32, and the engine's bf16
        assert actor[0] == actor[1] == engine[0] == engine[1]
    workers.sync_weights()
    assert gap(workers, workers.generate(prompts, 2, validate=False)) < AGREE


@pytest.mark.parametrize("victim", ["rank", "actor"])
def test_an_engines_processes_end_together(local_ray: None, config_of: Callable[..., Config], victim: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("what is asked of GPUs does not differ")
    config = config_of(f"{ROLLOUT}.tensor_model_parallel_size=2", "trainer.n_gpus_per_node=2")
    if config.actor_rollout_ref.rollout.name != "vllm":
        pytest.skip("not tried with SGLang yet, which has a watch of its own")
    spec = spec_of(config, config.actor_rollout_ref.model.path, "float32", "cpu")
    part = PartSpec(engine=0, node_rank=0, nodes=1, gpus="", address=f"127.0.0.1:{free_port()}")
    node = ray.get_runtime_context().get_node_id()
    handle = EngineHandle(replace(spec, memory_share=0.3), part, node, "127.0.0.1", timeout_s=stretched(400.0))
    pids = handle.started(handle.create(f"engine-{victim}")).pids
    try:
        os.kill(pids[0] if victim == "actor" else second_rank(pids), signal.SIGKILL)
        assert [pid for pid in pids if not gone(pid, 60.0)] == []
        assert not handle.alive()
    finally:
        handle.end()


def second_rank(pids: Sequence[int]) -> int:
    """Both engines name their processes."""
    return next(pid for pid in pids if "TP1" in " ".join(psutil.Process(pid).cmdline()))
