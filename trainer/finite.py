"""Numbers that are none: a loss, or what it is computed from, that is NaN or infinite in fp32 ends the run.

What comes of one is a run that trains nothing and looks as if it did: the gradient is not finite, and the optimizer's
step is left out. (A gradient alone may overflow, in fp16 as a rule: that is counted, see `ppo.update`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from trainer.errors import NotFinite
from trainer.records import Rollout, TrainBatch

DIVERGED = (
    "the weights have diverged, or a precision is too low: continue from an earlier checkpoint with a smaller "
    "optim.lr, or compute in fp32 (fsdp_config.dtype); trainer.capsule_dir records a step for trainer.replay"
)
_TOO_LARGE = "rewards, or values computed from them, are too large for fp32: scale them down in the reward function"


def require_batch(batch: TrainBatch) -> None:
    """Of all that the losses are computed from. Raises NotFinite, which names the first row and key."""
    seen = batch.experience
    models = {
        "the engine's log-prob": seen.rollout.logp_BT,
        "old_log_prob": seen.old_logp_BT,
        "ref": seen.ref_logp_BT,
        "values": seen.values_BT,
    }
    rewards = {
        "critic/score": seen.scores_BT,
        "critic/rewards": batch.rewards_BT,
        "critic/returns": batch.returns_BT,
        "critic/advantages": batch.advantages_BT,
        "rollout_corr/rollout_is": batch.weights_BT,
    }
    for named, hint in ((models, DIVERGED), (rewards, _TOO_LARGE)):
        for key, x_BT in named.items():
            if x_BT is not None:
                _require(key, x_BT, seen.rollout, hint)


def of_loss(key: str, loss: Tensor, rollout: Rollout, parts: Mapping[str, Tensor]) -> Callable[[], None]:
    """The check of a pass's loss, for when somebody waits for the pass. It raises NotFinite.

    Of the `parts` [B, T] of the loss, the first that is not finite is the reason, else the largest.
    """
    return partial(_require_loss, key, loss.detach(), rollout, {name: x_BT.detach() for name, x_BT in parts.items()})


def _require_loss(key: str, loss: Tensor, rollout: Rollout, parts: Mapping[str, Tensor]) -> None:
    value = float(loss)
    if math.isfinite(value):
        return
    for name, x_BT in parts.items():
        _require(f"{key} is {value}: {name}", x_BT, rollout, DIVERGED)
    name, x_BT = max(parts.items(), key=lambda part: float(_inside(part[1], rollout).abs().max()))
    row, token = divmod(int(_inside(x_BT, rollout).abs().argmax()), x_BT.shape[1])
    raise NotFinite(
        f"{key} is {value}; the largest number that goes into it is {name} of {_label(rollout, row)}: "
        f"{float(x_BT[row, token]):.4g} at token {token}",
        hint=_TOO_LARGE,
    )


def _require(key: str, x_BT: Tensor, rollout: Rollout, hint: str) -> None:
    odd = ~torch.isfinite(_inside(x_BT, rollout))
    if not odd.any():
        return
    row, token = odd.nonzero()[0].tolist()
    more = int(odd.any(-1).sum()) - 1
    raise NotFinite(
        f"{key} of {_label(rollout, row)} is {float(x_BT[row, token])} at token {token}"
        f"{f', and of {more} more sequence(s)' if more else ''}",
        hint=hint,
    )


def _inside(x_BT: Tensor, rollout: Rollout) -> Tensor:
    """What stands outside of the responses is nobody's."""
    x_BT = x_BT.detach().float()
    return torch.where(rollout.mask_BT.bool(), x_BT, torch.zeros_like(x_BT))


def _label(rollout: Rollout, row: int) -> str:
    sample = int(rollout.prompts.sample_B[row])
    return rollout.prompts.rows[row].label + (f" (sample {sample})" if sample else "")
