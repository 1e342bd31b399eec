"""What waits in host memory comes back as it was, and training with it is training without it, to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from trainer import ppo
from trainer.config import load
from trainer.config.schema import OptimConfig, TrainedFsdpConfig
from trainer.learner import checkpoint
from trainer.learner.fsdp import Trained, forward_only
from trainer.learner.models import Source, sharded
from trainer.learner.offload import Gradients, Offload, local
from trainer.records import MiniBatch, TrainBatch, UpdateReport
from trainer.roles import Roles
from trainer.rows import take
from trainer.spec import RunSpec
from trainer.teams import Seat

CPU = torch.device("cpu")


def away(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0


@given(lengths=st.lists(st.integers(0, 40), max_size=8), chunk=st.integers(1, 64))
def test_any_tensors_come_back_as_they_were(lengths: list[int], chunk: int) -> None:
    """Of any sizes and types, over any borders between pieces of host memory; views of one storage move together."""
    kinds = itertools.cycle((torch.float32, torch.bfloat16, torch.int64, torch.uint8))
    tensors = [torch.randint(0, 100, (n,)).to(kind) for n, kind in zip(lengths, kinds, strict=False)]
    tensors += [tensor[len(tensor) // 2 :] for tensor in tensors]
    before = [tensor.clone() for tensor in tensors]
    offload = Offload(lambda: tensors, CPU, chunk_bytes=chunk)

    for number in range(3):
        offload.put_away()
        assert all(away(tensor) for tensor in tensors if tensor.numel())
        assert offload.host_bytes == sum(t.numel() * t.element_size() for t in tensors[: len(lengths)])
        with offload.at_hand(changes=True):
            assert offload.host_bytes == 0
            for tensor, expected in zip(tensors, before, strict=True):
                assert torch.equal(tensor, expected + number)
            for tensor in tensors[: len(lengths)]:
                tensor.add_(1)


def test_what_is_not_said_to_change_is_copied_once() -> None:
    tensor = torch.ones(4)
    offload = Offload(lambda: [tensor], CPU)
    offload.put_away()
    with offload.at_hand():
        tensor.fill_(7)  # nobody was told
    with offload.at_hand():
        assert tensor.tolist() == [1, 1, 1, 1]
        with offload.at_hand(changes=True):  # an inner one speaks for all around it
            tensor.fill_(8)
        assert tensor.tolist() == [8, 8, 8, 8]
    assert away(tensor)
    with offload.at_hand():
        assert tensor.tolist() == [8, 8, 8, 8]


def test_tensors_that_are_replaced_while_at_hand() -> None:
    held = [torch.zeros(4)]
    offload = Offload(lambda: held, CPU)
    offload.put_away()
    with offload.at_hand():
        held[:] = [torch.full((9,), 2.0), torch.full((3,), 3.0)]
    assert all(map(away, held))
    with offload.at_hand():
        assert held[0].tolist() == [2.0] * 9 and held[1].tolist() == [3.0] * 3


def test_an_error_within_leaves_nothing_on_the_device() -> None:
    tensor = torch.ones(4)
    offload = Offload(lambda: [tensor], CPU)
    with pytest.raises(KeyError), offload.at_hand():
        raise KeyError
    assert away(tensor)


def test_memory_that_numpy_looks_at_stays() -> None:
    tensor, other = torch.ones(4), torch.ones(4)
    array = tensor.numpy()
    offload = Offload(lambda: [tensor, other], CPU)
    offload.put_away()
    assert array.tolist() == [1, 1, 1, 1] and away(other)
    with offload.at_hand():
        assert tensor.tolist() == other.tolist() == [1, 1, 1, 1]


def test_without_offload_nothing_moves() -> None:
    tensor = torch.ones(4)
    offload = Offload(lambda: [tensor], CPU, enabled=False)
    address = tensor.data_ptr()
    offload.put_away()
    with offload.at_hand(changes=True):
        tensor.add_(1)
    assert tensor.data_ptr() == address and offload.host_bytes == 0


def test_gradients_of_several_passes_add_up_on_the_host() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    gradients = Gradients([used, unused], CPU, enabled=True)
    for factor in (1.0, 2.0, 4.0):
        (used * factor).sum().backward()
        held = local(used.grad) if used.grad is not None else torch.ones(1)
        gradients.put_away()
        assert used.grad is None and (factor > 1 or away(held))
    gradients.bring()
    assert used.grad is not None and used.grad.tolist() == [7.0] * 3
    assert unused.grad is None
    gradients.bring()  # the next mini-batch begins with none
    assert gradients._sums == {}


# ------------------------------------------------------------------------------------------------------------ training

Make = Callable[..., Trained]
ROLES = ("actor", "critic")
EVERYTHING = TrainedFsdpConfig(dtype="fp32", param_offload=True, optimizer_offload=True, grad_offload=True)
KINDS = {
    "parameters": TrainedFsdpConfig(dtype="fp32", param_offload=True),
    "optimizer": TrainedFsdpConfig(dtype="fp32", optimizer_offload=True),
    "gradients": TrainedFsdpConfig(dtype="fp32", grad_offload=True),
    "everything": EVERYTHING,
    "everything, gathered parameters kept": TrainedFsdpConfig(
        dtype="fp32", reshard_after_forward=False, param_offload=True, optimizer_offload=True, grad_offload=True
    ),
}


@pytest.fixture(scope="module")
def make(models: Path, mesh: Any) -> Make:
    def trained(role: str, memory: TrainedFsdpConfig = TrainedFsdpConfig(dtype="fp32")) -> Trained:  # noqa: B008
        kind = "causal_lm" if role == "actor" else "value"
        module = sharded(kind, Source(str(models / "qwen2-tied"), False, 1), memory, mesh, checkpointing=True)
        return Trained(module, CPU, OptimConfig(lr=1e-3), grad_clip=1.0, total_steps=10, memory=memory)

    return trained


def passes(rows: int, size: int) -> tuple[Tensor, ...]:
    return torch.arange(rows).split(size)


def update(model: Trained, role: str, words: Words, batch: TrainBatch) -> UpdateReport:
    config = load(words("actor_rollout_ref.actor.entropy_coeff=0.01")).config
    loss: Any = partial(ppo.actor_loss, model, config=config.actor_rollout_ref.actor)
    if role == "critic":
        loss = partial(ppo.critic_loss, model, config=config.critic)
    parts = [take(batch, slice(start, start + 4)) for start in (0, 4)]
    shares = [MiniBatch(part, ppo.totals_of(part.experience.rollout.mask_BT, 6), passes(4, 2)) for part in parts]
    with model.training():
        return ppo.update(model, shares, loss)


def evaluate(model: Trained, role: str, batch: TrainBatch) -> Tensor:
    compute: Any = partial(model.log_probs, entropy=True) if role == "actor" else model.values
    with model.at_hand():
        found = forward_only(compute, batch.experience.rollout, passes(8, 3))
    return torch.stack([found.logp_BT, found.entropy_BT]) if role == "actor" else found


def states(model: Trained) -> dict[str, Tensor]:
    """All parameters and the optimizer's state, whole."""
    with model.all_at_hand():
        tensors = {name: tensor.clone() for name, tensor in model.full_tensors()}
        for number, state in enumerate(model.optimizer.state.values()):
            tensors |= {f"{number}.{name}": local(value).clone() for name, value in state.items()}
    return tensors


def moving(model: Trained) -> Iterator[tuple[str, Tensor]]:
    for parameter in model.module.parameters():
        yield "parameters", local(parameter.detach())
    for state in model.optimizer.state.values():
        for value in state.values():
            yield "optimizer", local(value)


Trains = tuple[list[Tensor], list[UpdateReport], dict[str, Tensor]]


def training(model: Trained, role: str, words: Words) -> Trains:
    """Forward passes, two updates of two mini-batches of two passes, weights and optimizer state."""
    seen: list[Tensor] = []
    reports: list[UpdateReport] = []
    batch = train_batch(8)
    for _ in range(2):
        seen.append(evaluate(model, role, batch))
        reports.append(update(model, role, words, batch))
    return seen, reports, states(model)


@pytest.fixture(scope="module")
def plain(make: Make, words: Words) -> dict[str, Trains]:
    """By role, without offload."""
    return {role: training(make(role), role, words) for role in ROLES}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", KINDS)
def test_offload_changes_no_bit(make: Make, words: Words, plain: dict[str, Trains], role: str, kind: str) -> None:
    seen, reports, after = training(make(role, KINDS[kind]), role, words)
    expected = plain[role]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected[0], strict=True)) and reports == expected[1]
    assert after.keys() == expected[2].keys()
    assert all(torch.equal(tensor, expected[2][name]) for name, tensor in after.items())


@pytest.mark.parametrize("role", ROLES)
def test_between_phases_only_what_is_not_offloaded_is_on_the_device(make: Make, words: Words, role: str) -> None:
    for kind in ("parameters", "optimizer", "everything"):
        model = make(role, KINDS[kind])
        evaluate(model, role, train_batch(8))
        update(model, role, words, train_batch(8))
        parts = ("parameters", "optimizer")
        gone = {part: {away(tensor) for p, tensor in moving(model) if p == part} for part in parts}
        assert gone["parameters"] == {kind != "optimizer"} and gone["optimizer"] == {kind != "parameters"}
        assert all(parameter.grad is None for parameter in model.module.parameters())


def test_a_forward_pass_without_its_parameters_is_an_error(make: Make) -> None:
    """And not a crash of the process, which is what torch makes of it."""
    model, rollout = make("actor", EVERYTHING), train_batch(8).experience.rollout
    with pytest.raises(RuntimeError, match="host memory"):
        model.log_probs(rollout, entropy=False)
    with model.at_hand():
        model.log_probs(rollout, entropy=False)


def test_optimizer_state_is_there_in_its_step_alone(make: Make, words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make("actor", EVERYTHING), train_batch(8)
    update(model, "actor", words, batch)
    seen: list[tuple[str, bool]] = []

    def look(event: str, call: Any) -> Any:
        def looking(*args: Any) -> Any:
            seen.append((event, any(away(t) for part, t in moving(model) if part == "optimizer")))
            return call(*args)

        return looking

    monkeypatch.setattr(model, "backward", look("backward", model.backward))
    monkeypatch.setattr(model.optimizer, "step", look("step", model.optimizer.step))
    update(model, "actor", words, batch)
    assert seen == [("backward", True), ("backward", True), ("step", False)] * 2


@pytest.mark.parametrize(("saved", "loaded"), [(EVERYTHING, TrainedFsdpConfig(dtype="fp32")), (EVERYTHING, EVERYTHING)])
def test_checkpoints_of_what_is_away(
    make: Make, words: Words, tmp_path: Path, saved: TrainedFsdpConfig, loaded: TrainedFsdpConfig
) -> None:
    first, batch = make("actor", saved), train_batch(8)
    update(first, "actor", words, batch)
    checkpoint.save(first, tmp_path / "actor")
    second = make("actor", loaded)
    if loaded.param_offload:  # has been somewhere else meanwhile
        update(second, "actor", words, train_batch(8, seed=9))
    checkpoint.load(second, tmp_path / "actor")
    assert all(away(t) for _, t in moving(second)) is loaded.param_offload
    expected = states(first)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in states(second).items())
    assert update(second, "actor", words, batch) == update(first, "actor", words, batch)


def test_whole_roles(words: Words, mesh: Any) -> None:
    """All roles offloaded: the same answers in every phase, the engine's weights included, and all away at the end."""
    sections = ("actor_rollout_ref.actor.fsdp_config", "critic.model.fsdp_config")
    options = [f"{s}.{part}_offload=True" for s in sections for part in ("param", "optimizer", "grad")]
    options.append("actor_rollout_ref.ref.fsdp_config.param_offload=True")
    batch, found, gone = train_batch(8), [], []
    for changes in ([], options):
        config = load(words("algorithm.use_kl_in_reward=True", *changes)).config
        roles = Roles(RunSpec(config, None, 10), Seat.alone())
        share = (MiniBatch(batch, ppo.totals_of(batch.experience.rollout.mask_BT, 6), passes(8, 2)),)
        seen = batch.experience.rollout, passes(8, 3)
        answers: list[Any] = [roles.log_probs(*seen).logp_BT, roles.ref_log_probs(*seen), roles.values(*seen)]
        reports = [roles.update_critic(share), roles.update_actor(share)]
        roles.sync_weights()
        reports += [roles.probe_gradient(role, share[0]) for role in ("actor", "critic")]
        models = [roles.actor, roles.critic, roles.reference]
        gone.append({away(local(p.detach())) for model in models if model for p in model.module.parameters()})
        sums = [roles.checksums(role) for role in ("actor", "critic", "reference", "engine")]
        assert sums[0] == sums[3]
        found.append((answers, reports, sums, roles.shard_checksums("actor")))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))
    assert found[0][1:] == found[1][1:]
    assert gone == [{False}, {True}]
