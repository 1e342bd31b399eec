"""Who waits for an engine, or for a rank that does, waits long enough for that rank to say which engine it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import run_ranks
from tests.trainer.stubbed import spec_of
from tests.trainer.test_rollout_parts import Model, wholes
from trainer.config import load
from trainer.errors import DeadlineError
from trainer.rollout import deadlines, remote, source
from trainer.rollout.bridge import Bridge, Kind
from trainer.rollout.layout import Place
from trainer.rollout.memory import Needed
from trainer.rollout.remote import Limits, RemoteEngine
from trainer.spec import BridgeEnd
from trainer.teams import Seat

pytestmark = pytest.mark.trainer

COLLECTIVE_S = 2.0  # the limit of the models' collectives
ENGINE_S = 5.0  # what an engine takes here, and more than that
CPU = torch.device("cpu")


def join(rank: int, port: int, size: int) -> None:
    limit = timedelta(seconds=COLLECTIVE_S)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    dist.init_process_group("cpu:gloo", store=store, rank=rank, world_size=size, timeout=limit)


def start_main(rank: int, port: int) -> None:
    """Rank 0's engine does not come up in time."""
    join(rank, port, 2)

    def late(self: RemoteEngine, *_args: Any) -> None:
        time.sleep(ENGINE_S * (rank == 0))
        if rank == 0:
            raise DeadlineError("engine 0 did not start", hint="look")

    remote.place_of = lambda rank, _device: Place(rank, "a", "10.0.0.1", "")
    RemoteEngine._create = RemoteEngine._await_start = late  # type: ignore[assignment,method-assign]
    limits = Limits(ENGINE_S, ENGINE_S, bucket_bytes=128, memory_bytes=0, needed=Needed(0, 0))
    with pytest.raises(DeadlineError, match="engine 0 did not start"):
        RemoteEngine(spec_of("unused"), limits, device=CPU, eos_ids=[1], pad_id=0)


def test_a_rank_waits_for_anothers_engine_as_long_as_that_may_take(free_port: int) -> None:
    run_ranks(start_main, (free_port,), 2)


def test_the_ranks_of_one_engine_wait_for_their_leader_as_long(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[timedelta] = []
    monkeypatch.setattr(dist, "new_group", lambda *_args, timeout=None, **_kwargs: made.append(timeout))
    monkeypatch.setattr(remote, "place_of", lambda rank, _device: Place(rank, "a", "10.0.0.1", ""))
    monkeypatch.setattr(RemoteEngine, "_start", lambda *_args: None)
    monkeypatch.setattr(RemoteEngine, "_rest", lambda *_args: None)
    monkeypatch.setattr(remote, "_KEPT", [])
    limits = Limits(4000.0, 500.0, bucket_bytes=128, memory_bytes=0, needed=Needed(0, 0))
    RemoteEngine(spec_of("unused"), limits, device=CPU, eos_ids=[1], pad_id=0)
    assert len(made) == 2 and all(each.total_seconds() > 4000.0 for each in made)


class Actor:
    """As a learner, whose tensors every rank of the actor gathers together."""

    def full_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in wholes(Model(1, 0)).items():
            dist.all_reduce(tensor)
            yield name, tensor


def bridge_main(number: int, port: int, bridge_port: int) -> None:
    """Ranks 0 and 1 have the actor, rank 2 an engine that takes longer than a collective may."""
    end = {0: 0, 2: 1}.get(number)
    config = load([f"actor_rollout_ref.rollout.engine_timeout={ENGINE_S:.0f}"]).config
    kind = Kind(CPU, torch.float32, 1000)
    if number < 2:
        join(number, port, 2)
    if number == 0:
        from trainer import rendezvous

        store = dist.TCPStore("127.0.0.1", bridge_port, 2, is_master=True, wait_for_workers=False)
        rendezvous._STORES[bridge_port] = store
    bridge = None if end is None else Bridge(BridgeEnd("127.0.0.1", bridge_port, end, 2, 60.0))
    given = partial(source.actor_weights, kind=kind, seat=Seat(number, 0, 1, frozenset()), bridge=bridge)
    if number < 2:
        gate = source.gate_of(config)
        with given(Actor(), None, gate=gate) as tensors:  # type: ignore[arg-type]
            assert list(tensors) == []
        return
    time.sleep(ENGINE_S)
    with given(None, object()) as tensors:  # type: ignore[arg-type]
        assert len(dict(tensors)) == len(wholes(Model(1, 0)))


def test_the_actors_ranks_wait_for_engines_on_other_ranks(free_port: int) -> None:
    run_ranks(bridge_main, (free_port, remote.free_port()), 3)


def test_in_an_update_an_engine_is_late_before_the_models_collectives_are() -> None:
    rollout = "actor_rollout_ref.rollout"
    long = load([f"{rollout}.engine_timeout=1800", "actor_rollout_ref.nccl_timeout=600"]).config
    assert (deadlines.of_call(long), deadlines.of_update(long)) == (1800.0, 540.0)
    short = load([f"{rollout}.engine_timeout=100", "actor_rollout_ref.nccl_timeout=600"]).config
    assert deadlines.of_update(short) == 100.0
