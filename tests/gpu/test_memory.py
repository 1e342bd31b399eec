"""Offload, fp16, compiled layers and peak memory on CUDA. Needs a GPU; CI has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from devkit.smoke.tiny import TinySpec, build
from tests.trainer.batches import train_batch
from trainer import ppo
from trainer.config import load
from trainer.config.schema import ActorConfig, OptimConfig, TrainedFsdpConfig
from trainer.fitting import settled
from trainer.learner import checkpoint
from trainer.learner.fsdp import Trained, forward_only
from trainer.learner.models import Source, first_loss_scale, sharded
from trainer.learner.offload import Offload
from trainer.memory import measured
from trainer.records import MiniBatch, UpdateReport
from trainer.teams import Seat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # torch.compile has deprecations of its own
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(300),
]

DEVICE = torch.device("cuda:0")
MIB = 2**20
TEXTS = tuple(f"Ann has {n} pens and buys {n + 3} more." for n in range(100))  # enough for the ids of `random_ids`
EVERYTHING = {"param_offload": True, "optimizer_offload": True, "grad_offload": True}
Make = Callable[..., Trained]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """`make(dtype="fp32", param_offload=True)`: a fresh actor of a tiny model, in a process group of this process."""
    from torch.distributed.device_mesh import init_device_mesh

    folder = tmp_path_factory.mktemp("model")
    build(TinySpec(str(folder), None, TEXTS, 0, 512))
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cuda", (1,))

    def trained(recompute: str = "full", budget: float | None = None, **options: Any) -> Trained:
        config = TrainedFsdpConfig(**options)
        source = Source(str(folder), False, 1)
        module = sharded("causal_lm", source, config, mesh, checkpointing=True, recompute=recompute, budget=budget)
        return Trained(
            module,
            DEVICE,
            OptimConfig(lr=1e-3),
            grad_clip=1.0,
            total_steps=10,
            memory=config,
            loss_scale=first_loss_scale(config, "cuda"),
        )

    yield trained
    dist.destroy_process_group()


def update(model: Trained, factor: float = 1.0) -> UpdateReport:
    """Two mini-batches of two passes."""

    def loss(*args: Any) -> Any:
        value, parts = ppo.actor_loss(
            model, *args, config=ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.2, entropy_coeff=0.01)
        )
        return value * factor, parts

    batch = train_batch(8)
    share = MiniBatch(batch, ppo.totals_of(batch.experience.rollout.mask_BT, 6), torch.arange(8).split(4))
    with model.training():
        return ppo.update(model, (share, share), loss)


def evaluate(model: Trained) -> torch.Tensor:
    with model.at_hand():
        compute = partial(model.log_probs, entropy=False)
        return forward_only(compute, train_batch(8).experience.rollout, torch.arange(8).split(4)).logp_BT


def weights(model: Trained) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in model.full_tensors()}


def test_offload_changes_no_bit(make: Make, tmp_path: Path) -> None:
    """Forward passes, updates, weights and a checkpoint, with copies on a stream of their own."""
    plain, other = make(dtype="fp32"), make(dtype="fp32", **EVERYTHING)
    for _ in range(3):
        assert torch.equal(evaluate(other), evaluate(plain))
        assert update(other) == update(plain)
    expected = weights(plain)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(other).items())
    checkpoint.save(other, tmp_path / "actor")
    resumed = make(dtype="fp32", **EVERYTHING)
    checkpoint.load(resumed, tmp_path / "actor")
    assert update(resumed) == update(plain)


def test_offload_gives_the_memory_back() -> None:
    """256 MiB that are used by queued work when they leave, and whose place is taken at once: they come back whole."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(DEVICE)
    tensor = torch.zeros(64 * MIB, device=DEVICE)
    offload = Offload(lambda: [tensor], DEVICE)
    for number in range(1, 6):
        with offload.at_hand(changes=True):
            tensor.add_(1)
        assert torch.cuda.memory_allocated(DEVICE) - before < MIB
        squatter = torch.full((64 * MIB,), -1.0, device=DEVICE)  # before the copy need be done
        with offload.at_hand():
            assert bool((tensor == number).all()) and bool((squatter == -1).all())
        del squatter


def test_host_memory_is_pinned() -> None:
    tensor = torch.ones(1000, device=DEVICE)
    offload = Offload(lambda: [tensor], DEVICE)
    offload.put_away()
    assert all(piece.is_pinned() for piece, _ in offload._host.pieces(0, 4000))


def test_fp16_trains_and_survives_an_overflow(make: Make) -> None:
    model = make(dtype="fp16", **EVERYTHING)
    exact = make(dtype="fp32")
    first, reference = update(model), update(exact)
    assert first.skipped == 0
    assert first.steps[0]["grad_norm"] == pytest.approx(reference.steps[0]["grad_norm"], rel=5e-2)
    before = weights(model)
    overflowed = update(model, factor=1e30)
    assert overflowed.skipped == 2 and model.loss_scale is not None and model.loss_scale.scale == 2.0**14
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert update(model).skipped == 0


def test_compiled_layers_give_the_same(make: Make) -> None:
    plain, compiled = make(dtype="fp32"), make(dtype="fp32", use_torch_compile=True, **EVERYTHING)
    assert torch.allclose(evaluate(compiled), evaluate(plain), atol=2e-5)
    for found, expected in zip(update(compiled).steps, update(plain).steps, strict=True):
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-5)


@pytest.mark.parametrize("budget", [0.5, 0.25])
def test_layers_with_a_budget_give_the_same(make: Make, budget: float) -> None:
    plain = make(dtype="fp32")
    kept = make(dtype="fp32", use_torch_compile=True, recompute="selective", budget=budget)
    assert torch.allclose(evaluate(kept), evaluate(plain), atol=2e-5)
    for found, expected in zip(update(kept).steps, update(plain).steps, strict=True):
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-5)


def test_a_rank_chooses_by_what_its_gpu_has(make: Make, tmp_path: Path) -> None:
    """A tiny model leaves nothing to save: layers are compiled, and nothing is recomputed or sharded again."""
    build(TinySpec(str(tmp_path / "model"), None, TEXTS, 0, 512))
    words = [f"actor_rollout_ref.model.path={tmp_path / 'model'}", "trainer.n_gpus_per_node=1"]
    words += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "critic.ppo_micro_batch_size_per_gpu=4"]
    config, choices = settled(load(words).config, DEVICE, Seat.alone())
    assert [choice.role for choice in choices] == ["actor", "critic"]
    for choice in choices:
        assert (choice.plan.compiled, choice.plan.recompute, choice.plan.reshard) == (True, "none", False), choice
    part = config.actor_rollout_ref
    assert part.model.enable_gradient_checkpointing is False and part.actor.fsdp_config.use_torch_compile is True


def test_a_phases_peak_is_its_own() -> None:
    """Given 256 MiB within a phase that are given back, that phase's reading has them and the next has not."""
    with measured(DEVICE) as large:
        torch.zeros(64 * MIB, device=DEVICE)
    with measured(DEVICE) as small:
        torch.zeros(MIB, device=DEVICE)
    assert large.reading.allocated - small.reading.allocated > 250 * MIB
    assert small.reading.reserved >= small.reading.allocated
