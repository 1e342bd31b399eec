"""Conversations through the models: log-probs are of a plain pass over all that stands before, gradients of no more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.batches import random_ids
from tests.trainer.conversations import Turns, conversations
from tests.trainer.test_models import model_of
from trainer import ppo
from trainer.config.schema import ActorConfig
from trainer.learner.fsdp import Model, forward_only
from trainer.precision import in_precision
from trainer.records import Experience, Rollout, TrainBatch

IDS = random_ids([3, 2, 4, 2, 5, 1, 6, 3, 1, 2, 4, 3], 4)
ROWS: list[tuple[list[int], Turns]] = [
    (IDS[0], [(IDS[1], IDS[2], 0.5), (IDS[3], IDS[4], 0.0), (IDS[5], [], 1.0)]),
    (IDS[6], [(IDS[7], [], 1.0)]),
    (IDS[8], [(IDS[9], IDS[10], 0.0), (IDS[11], [], -1.0)]),
]


@torch.no_grad()
def plain_log_probs(folder: Path, rollout: Rollout) -> torch.Tensor:
    """For each sampled token a pass over exactly what stands before it, observations and all."""
    model = AutoModelForCausalLM.from_pretrained(folder, **in_precision(torch.float32)).eval()
    found = torch.zeros(rollout.mask_BT.shape)
    for b, (prompt, _) in enumerate(ROWS):
        for t in rollout.mask_BT[b].nonzero().flatten().tolist():
            ids = [*prompt, *rollout.response_BT[b, :t].tolist()]
            found[b, t] = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[int(rollout.response_BT[b, t])]
    return found


@pytest.mark.parametrize(("architecture", "packed"), [("qwen2", False), ("qwen2", True), ("gpt2", False)])
def test_log_probs_and_values_see_all_that_was_read(models: Path, mesh: Any, architecture: str, packed: bool) -> None:
    rollout = conversations(ROWS)
    model = model_of(models / architecture, mesh, packed=packed)
    passes = (torch.tensor([0, 2]), torch.tensor([1]))  # others are wider: `forward_only` puts them together
    found = forward_only(partial(model.log_probs, entropy=True), rollout, passes)
    torch.testing.assert_close(found.logp_BT, plain_log_probs(models / architecture, rollout), atol=3e-5, rtol=1e-5)
    assert model.forward.packs is packed
    for x_BT in (found.logp_BT, found.entropy_BT):
        assert (x_BT * (1 - rollout.mask_BT)).abs().sum() == 0
        assert bool((x_BT[rollout.mask_BT.bool()] != 0).all())


def loss_of(model: Model, rollout: Rollout) -> tuple[float, torch.Tensor]:
    """The actor's loss and its whole gradient, of advantages that say which token each belongs to."""
    counted = rollout.mask_BT.flatten().cumsum(0).view_as(rollout.mask_BT) * rollout.mask_BT
    advantages = (counted % 5 - 2).float() * rollout.mask_BT
    old = rollout.mask_BT * -5.0
    seen = Experience(rollout, torch.zeros(rollout.mask_BT.shape), old, None, None)
    batch = TrainBatch(seen, advantages, advantages, advantages)
    config = ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.2, entropy_coeff=0.01)
    for parameter in model.module.parameters():
        parameter.grad = None
    loss, _ = ppo.actor_loss(model, batch, ppo.totals_of(rollout.mask_BT), config)
    loss.backward()
    gradients = [parameter.grad.to_local().flatten() for parameter in model.module.parameters()]  # type: ignore[union-attr]
    return float(loss.detach()), torch.cat(gradients).clone()


@pytest.mark.parametrize("packed", [False, True])
def test_what_stands_behind_the_last_sampled_token_changes_no_gradient(models: Path, mesh: Any, packed: bool) -> None:
    """An observation there is read by nobody; one before a sampled token is."""
    model, rollout = model_of(models / "qwen2", mesh, packed=packed), conversations(ROWS)
    loss, gradient = loss_of(model, rollout)
    pad = torch.nn.functional.pad
    longer = replace(
        rollout,
        response_BT=pad(rollout.response_BT, (0, 3)),
        mask_BT=pad(rollout.mask_BT, (0, 3)),
        logp_BT=pad(rollout.logp_BT, (0, 3)),
        present_BT=pad(rollout.context_BT, (0, 3)),
    )
    end = int(rollout.context_BT[1].sum())  # of a row that is shorter than the others
    for ids in ([7, 8, 9], [200, 9, 30]):
        behind = replace(longer, response_BT=longer.response_BT.clone(), present_BT=longer.context_BT.clone())
        behind.response_BT[1, end : end + 3] = torch.tensor(ids)
        behind.context_BT[1, end : end + 3] = 1
        found = loss_of(model, behind)
        assert found[0] == pytest.approx(loss, abs=1e-6)
        torch.testing.assert_close(found[1], gradient, atol=1e-6, rtol=1e-4)
    before = replace(rollout, response_BT=rollout.response_BT.clone())
    before.response_BT[0, len(ROWS[0][1][0][0])] = 250  # the first observation token of row 0
    changed = loss_of(model, before)
    assert not torch.allclose(changed[1], gradient, atol=1e-4)


def test_an_observation_has_no_loss_of_its_own(models: Path, mesh: Any) -> None:
    """With the mask on observations, too, the gradient is another one: what the mask keeps out would count."""
    model, rollout = model_of(models / "qwen2", mesh), conversations(ROWS)
    _, gradient = loss_of(model, rollout)
    _, careless = loss_of(model, replace(rollout, mask_BT=rollout.context_BT))
    assert not torch.allclose(careless, gradient, atol=1e-4)
