"""The rival of `actor_update.py` at its best, and batches of drawn lengths.

The rival is what somebody who knows FSDP2 and transformers would write: each layer compiled, parameters kept whole
between the passes, fused AdamW, a compiled cross-entropy, logits of the responses alone. Rows stand from their first
token on, so no attention mask is needed; of drawn lengths they are sorted, and each pass is as wide as its longest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from trainer import ppo
from trainer.records import TrainBatch

WIDTHS = 64  # the width of a trimmed pass is a multiple: fewer shapes to compile


def log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    return -cross_entropy(logits.float(), labels, reduction="none")


class Rival:
    def __init__(
        self, folder: str, mesh: DeviceMesh, device: torch.device, *, recompute: bool, reshard: bool = False
    ) -> None:
        cuda = device.type == "cuda"
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        model.to(device).train()
        if recompute:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        precision = torch.bfloat16 if cuda else torch.float32
        policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            if cuda:
                layer.compile()
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        self.model, self.device = model, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        self.log_probs = torch.compile(log_probs) if cuda else log_probs

    def step(self, batch: TrainBatch, passes: int) -> Callable[[], None]:
        """One update on the batch."""
        rollout, totals = batch.experience.rollout, ppo.totals_of(batch.experience.rollout.mask_BT)
        start_B1 = rollout.prompts.mask_BP.argmax(-1, keepdim=True)
        columns_S, width = torch.arange(rollout.ids_BS.shape[1]), rollout.response_BT.shape[1]
        ids_BS = rollout.ids_BS.gather(1, (columns_S + start_B1).clamp(max=len(columns_S) - 1))
        before_BT = rollout.prompts.ids_BP.shape[1] - start_B1 + torch.arange(-1, width - 1)
        lengths_B = rollout.lengths_B
        full = bool((lengths_B == len(columns_S)).all())
        of_tokens = (batch.experience.old_logp_BT, batch.advantages_BT, rollout.mask_BT)

        def log_probs_of(index: Tensor) -> Tensor:
            widest = len(columns_S) if full else -(-int(lengths_B[index].max()) // WIDTHS) * WIDTHS
            ids = ids_BS[index, :widest].to(self.device)
            if full:
                logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
                return self.log_probs(logits.flatten(0, 1), ids[:, -width:].flatten()).view(len(index), -1)
            logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1]
            all_BS = self.log_probs(logits.flatten(0, 1), ids[:, 1:].flatten()).view(len(index), -1)
            return all_BS.gather(1, before_BT[index].to(self.device).clamp(max=all_BS.shape[1] - 1))

        def step() -> None:
            order = torch.arange(len(batch)) if full else lengths_B.argsort(descending=True)
            for index in order.chunk(passes):
                old, advantages, mask = (x[index].to(self.device) for x in of_tokens)
                logp_BT = log_probs_of(index)
                ppo.policy_loss(old, logp_BT, advantages, mask, 0.2, 0.2, 3.0, "token-mean", totals)[0].backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()

        return step


def drawn(batch: TrainBatch, shortest: int) -> TrainBatch:
    """The batch with rows of drawn lengths, a quarter of each the prompt: padded as a rollout is."""
    dice = torch.Generator().manual_seed(7)
    rollout = batch.experience.rollout
    prompt, response = rollout.prompts.ids_BP.shape[1], rollout.response_BT.shape[1]
    total_B = torch.randint(shortest, prompt + response + 1, (len(batch),), generator=dice)
    prompt_B = (total_B // 4).clamp(min=1)
    mask_BP = (torch.arange(prompt).flip(0) < prompt_B[:, None]).long()
    mask_BT = (torch.arange(response) < (total_B - prompt_B)[:, None]).long()
    prompts = dataclasses.replace(rollout.prompts, ids_BP=rollout.prompts.ids_BP * mask_BP, mask_BP=mask_BP)
    cut = dataclasses.replace(rollout, prompts=prompts, response_BT=rollout.response_BT * mask_BT, mask_BT=mask_BT)
    return dataclasses.replace(batch, experience=dataclasses.replace(batch.experience, rollout=cut))
