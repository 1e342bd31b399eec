"""An update of an engine by the two ranks that share it, in two processes; its two model ranks are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import run_ranks
from tests.trainer.stubbed import spec_of
from tests.trainer.test_rollout_parts import Model, wholes
from trainer.errors import WeightMismatch
from trainer.rollout import wire
from trainer.rollout.handle import EngineDied
from trainer.rollout.inside import Receiver
from trainer.rollout.layout import Place, form_groups
from trainer.rollout.push import Push
from trainer.rollout.sums import sums_of

pytestmark = pytest.mark.trainer

Tensors = Iterator[tuple[str, torch.Tensor]]


class Handle:
    """In place of `EngineHandle`: two model ranks in the leader's process; dies at call number `dies_at`."""

    def __init__(self, dies_at: int = -1, passed_over: int = -1) -> None:
        self.models = [Model(2, rank) for rank in range(2)]
        self.receivers = [Receiver(rank) for rank in range(2)]
        self.calls: list[str] = []
        self.dies_at = dies_at
        self.versions: list[int] = []
        self.spec = spec_of("unused")
        self.passed_over = passed_over  # gets no weights of an update that is to be of version 5

    def __str__(self) -> str:
        return "stand-in engine 0"

    def ask(self, method: str, *args: Any) -> Any:
        return SimpleNamespace(method=method, args=args)

    def wait(self, asked: Any, _doing: str) -> Any:
        self.calls.append(asked.method)
        if len(self.calls) - 1 == self.dies_at:
            raise EngineDied("it died", hint="look")
        if asked.method != "send":
            return None
        message = wire.decode(asked.args[0])
        self.versions.append(message.version)
        pairs = zip(self.receivers, self.models, strict=True)
        lost = message.version == 5 and isinstance(message, wire.Load)
        return tuple(
            receiver.take(message, model, model.load)
            for receiver, model in pairs
            if not (lost and receiver.tp_rank == self.passed_over)
        )

    def call(self, method: str, *args: Any, doing: str = "") -> Any:
        return self.wait(self.ask(method, *args), doing)


def rank_main(rank: int, port: int, case: Callable[[int, Any, Any], None]) -> None:
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    (group,) = form_groups([Place(0, "a", "10.0.0.1", ""), Place(1, "a", "10.0.0.1", "")], 2)
    case(rank, group, dist.new_group([0, 1], backend="gloo"))
    dist.barrier()
    dist.destroy_process_group()


def push(rank: int, group: Any, peers: Any, tensors: Tensors, handle: Handle, version: int = 4) -> bool:
    handles = (handle,) if rank == 0 else ()
    update = Push(group, handles, peers, torch.device("cpu"), 700)  # bytes: several buckets
    return update.run(tensors, version, torch.float32)


def arrives(rank: int, group: Any, peers: Any) -> None:
    handle, tensors = Handle(), wholes(Model(2, 0))
    assert push(rank, group, peers, iter(tensors.items()), handle)
    if rank == 0:
        assert handle.calls[0] == "begin_update" and handle.calls[-1] == "end_update"
        assert handle.calls.count("send") > 3 and set(handle.versions) == {4}
        reports = handle.call("send", wire.encode(wire.Look(4)))
        assert wire.whole_sums(reports)[0] == {name: sums_of(tensor) for name, tensor in tensors.items()}


def rank_1_has_other_weights(rank: int, group: Any, peers: Any) -> None:
    tensors = wholes(Model(2, 0))
    if rank == 1:
        tensors["attn.v_proj.weight"][0, 0] += 1
    with pytest.raises(WeightMismatch, match=r"attn.v_proj.weight on rank 1 arrived as"):
        push(rank, group, peers, iter(tensors.items()), Handle())


def dies(rank: int, group: Any, peers: Any) -> None:
    for call in range(4):  # at the beginning, and on the way
        walked: list[str] = []

        def counted(walked: list[str] = walked) -> Tensors:
            for name, tensor in wholes(Model(2, 0)).items():
                walked.append(name)
                yield name, tensor

        assert not push(rank, group, peers, counted(), Handle(dies_at=call))
        assert len(walked) == len(wholes(Model(2, 0)))  # other groups gather the rest with this one


def rank_1_is_passed_over(rank: int, group: Any, peers: Any) -> None:
    """With the same weights as before: only their version tells that they did not come."""
    handle, tensors = Handle(passed_over=1), wholes(Model(2, 0))
    assert push(rank, group, peers, iter(tensors.items()), handle)
    with pytest.raises(WeightMismatch, match=r"the update on rank 1 left it at version 4, and 5 was sent"):
        push(rank, group, peers, iter(tensors.items()), handle, version=5)


def rank_1_says_nothing(rank: int, group: Any, peers: Any) -> None:
    handle, tensors = Handle(), wholes(Model(2, 0))
    handle.receivers.pop()
    handle.models.pop()
    with pytest.raises(WeightMismatch, match=r"the update on rank 1 did not report what it holds"):
        push(rank, group, peers, iter(tensors.items()), handle)


def a_replica_says_nothing(rank: int, group: Any, peers: Any) -> None:
    """One of two that hold the same ranks: what the other holds must not stand for it."""
    handle, tensors = Handle(), wholes(Model(2, 0))
    handle.spec = spec_of("unused", replicas=2)
    handle.receivers += [Receiver(0)]
    handle.models += [Model(2, 0)]
    with pytest.raises(WeightMismatch, match=r"the update on rank 1 did not report what it holds"):
        push(rank, group, peers, iter(tensors.items()), handle)


CASES = (
    arrives,
    rank_1_has_other_weights,
    rank_1_is_passed_over,
    rank_1_says_nothing,
    a_replica_says_nothing,
    dies,
)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_update_one_engine(case: Callable[..., None], free_port: int) -> None:
    run_ranks(rank_main, (free_port, case), 2)
