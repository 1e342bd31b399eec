"""The engine `hf`: transformers with a key-value cache, in the worker's own process, on CPU or CUDA.

It holds its own whole copy of the model, which only `load_weights` changes. Slower than a serving engine, and the
one that needs nothing else installed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer.interfaces import Sampling
from trainer.records import Prompts, Rollout
from trainer.rollout.copying import copy_weights
from trainer.rollout.sampling import draw, uniform_streams
from trainer.rollout.stops import Decode, Stops
from trainer.rollout.sums import sums_of
from trainer.rows import concat, take

CACHE_NAMES = {"cache", "past_key_values"}  # of what a model keeps and takes again: since transformers 5.24, and before


class HfEngine:
    """Generates with a transformers model. Not collective: each rank generates for its own prompts."""

    def __init__(
        self, model: nn.Module, *, eos_ids: Iterable[int], pad_id: int, max_sequences: int, decode: Decode | None = None
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.device = next(model.parameters()).device
        self.eos_ids = torch.tensor(sorted(set(eos_ids)), device=self.device)
        self.pad_id = pad_id
        self.max_sequences = max_sequences
        self.version = 0
        self.decode = decode  # of all tokens, special ones too: for `Sampling.stop`

    @torch.no_grad()
    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """Responses up to EOS, a text of `stop` or `max_new_tokens`, at most `max_sequences` at once."""
        if len(prompts) == 0:  # fewer prompts than ranks: this one has none
            nothing = torch.zeros(0, 1)
            return Rollout(prompts, nothing.long(), nothing.long(), nothing)
        most = self.max_sequences
        return concat(
            [self._generate(take(prompts, slice(i, i + most)), sampling) for i in range(0, len(prompts), most)]
        )

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Raises WeightMismatch if they do not stand as they came."""
        copy_weights(self.model, tensors)
        self.version = version

    def revive(self, tensors: Iterable[tuple[str, Tensor]]) -> int:
        """It lives and dies with its rank."""
        for _ in tensors:
            pass
        return 0

    def checksums(self) -> dict[str, str]:
        return {name: str(sums_of(parameter)) for name, parameter in self.model.named_parameters()}

    def sleep(self) -> None:
        """Nothing to give back: the cache lives only during `generate`."""

    def wake(self) -> None:
        """Nothing to take again."""

    def _generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        streams_BT = uniform_streams(prompts, sampling).to(self.device)
        attention_BS = prompts.mask_BP.to(self.device)
        position_B1 = attention_BS.sum(-1, keepdim=True) - 1
        position_BS = (attention_BS.cumsum(-1) - 1).clamp(min=0)
        inputs = {"input_ids": prompts.ids_BP.to(self.device), "position_ids": position_BS}
        alive_B = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        room_B = None if prompts.room_B is None else prompts.room_B.to(self.device)
        stops = Stops(sampling.stop, self.decode, len(prompts)) if sampling.stop and self.decode else None
        tokens, masks, logps = [], [], []
        for t in range(sampling.max_new_tokens):
            output = self.model(**inputs, attention_mask=attention_BS, use_cache=True, logits_to_keep=1)
            token_B, logp_B = draw(output.logits[:, -1], streams_BT[:, t], sampling)
            tokens.append(torch.where(alive_B, token_B, self.pad_id))
            masks.append(alive_B.long())
            logps.append(torch.where(alive_B, logp_B, 0.0))
            if not sampling.ignore_eos:
                alive_B = alive_B & ~torch.isin(token_B, self.eos_ids)
            if stops is not None:
                alive_B = alive_B & ~stops.after(token_B, alive_B)
            if room_B is not None:
                alive_B = alive_B & (t + 1 < room_B)
            if not alive_B.any():
                break
            (name,) = CACHE_NAMES & output.keys()  # without a cache, the next token would be drawn without its past
            position_B1 = position_B1 + 1
            inputs = {"input_ids": tokens[-1][:, None], "position_ids": position_B1, name: output[name]}
            attention_BS = torch.cat([attention_BS, masks[-1][:, None]], dim=1)
        return Rollout(prompts, torch.stack(tokens, 1).cpu(), torch.stack(masks, 1).cpu(), torch.stack(logps, 1).cpu())
