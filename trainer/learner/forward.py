"""The forward pass of a sharded model over the response tokens of a rollout.

What an architecture allows is tried, not looked up: before its first pass, a model answers two short sequences padded
and packed, and where the answers differ (a state that leaks from one sequence into the next, an attention of its own)
it stays with padded rows and says so.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method

from trainer.learner import attention, head
from trainer.learner.compiling import as_they_are
from trainer.learner.layout import Layout, is_level, level, packed, padded, probe
from trainer.learner.lora import is_adapted
from trainer.records import Rollout

# Of the norm of the answers: rounding of a deep model in bf16 is a percent or two, another sequence's influence more.
ALIKE = {torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.03}


@dataclass(frozen=True)
class ForwardOptions:
    """How a model computes; what it computes is the same."""

    remove_padding: bool = False  # pack the sequences of a pass into one row
    compile_log_probs: bool = False  # CUDA only


class Forward:
    """Computes the answers of `module`, a causal language model or a `ValueModel`, to the tokens of a `Layout`."""

    def __init__(self, module: nn.Module, device: torch.device, options: ForwardOptions) -> None:
        self.module = module
        self.device = device
        self.compiled = options.compile_log_probs and device.type == "cuda"
        self._wants_packing = options.remove_padding
        self._may_level = device.type == "cuda"
        self.inert: list[str] = []  # settings that have no effect with this architecture, and why
        self.backbone: Any = getattr(module, "backbone", None) or module.base_model
        # FSDP gathers a root's own parameters, the head's and the embeddings', within its forward methods alone.
        module.run_inside = partial(_run, module)  # type: ignore[assignment]
        register_fsdp_forward_method(module, "run_inside")

    def lay_out(self, rollout: Rollout) -> Layout:
        if not self.packs:
            return padded(rollout, self.device)
        return (level if self.levels and is_level(rollout) else packed)(rollout, self.device)

    def values(self, layout: Layout) -> Tensor:
        """The value before each response token, [M] float32."""
        values: Tensor = self.module(**self._accepted(layout))
        return values.flatten(0, 1)[layout.before_M, 0].float()

    def log_probs(self, layout: Layout, temperature: float, *, entropy: bool) -> tuple[Tensor, Tensor]:
        """Log-probs of the response tokens and entropies at the temperature, [M] float32 each."""
        if not self.head_is_all:
            logits_MV = self._own_logits(layout).flatten(0, 1)[layout.before_M]
            return head.from_logits(logits_MV, layout.labels_M, temperature, entropy=entropy)
        answers: tuple[Tensor, Tensor] = self.module.run_inside(  # type: ignore[operator]
            self._through_head, layout, temperature, entropy
        )
        return answers

    def _through_head(self, layout: Layout, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        output: Any = self.module.get_output_embeddings()  # type: ignore[operator]
        return head.log_probs(
            self._hidden(layout),
            *(output.weight, output.bias, layout.labels_M, temperature),
            entropy=entropy,
            compiled=self.compiled,
        )

    def _hidden(self, layout: Layout) -> Tensor:
        """The last hidden state before each response token, [M, D]."""
        hidden: Tensor = self.backbone(**self._accepted(layout)).last_hidden_state
        return hidden.flatten(0, 1)[layout.before_M]

    def _own_logits(self, layout: Layout) -> Tensor:
        logits: Tensor = self.module(**self._accepted(layout)).logits
        return logits

    def _accepted(self, layout: Layout) -> dict[str, Any]:
        # A cache that is asked for makes each layer a graph of its own, by its place in the cache.
        inputs = {**layout.inputs, "use_cache": False}
        return inputs if self._takes_any else {name: x for name, x in inputs.items() if name in self._names}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.backbone.forward).parameters)

    @cached_property
    def _takes_any(self) -> bool:
        parameters = inspect.signature(self.backbone.forward).parameters.values()
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)

    # -- what the architecture allows. Collective: the first pass asks, on all ranks

    @cached_property
    def packs(self) -> bool:
        """Whether passes are packed. Sets the model's attention accordingly."""
        if not self._wants_packing:
            return False
        before = self.backbone.config._attn_implementation
        try:
            attention.register()
            expected = self._tried(padded)
            self.backbone.set_attn_implementation(attention.NAME)
            found = self._tried(packed)
            _require_alike(found, expected)
        except (attention.NotPackable, AttributeError, TypeError, ValueError) as error:
            if self.backbone.config._attn_implementation != before:
                self.backbone.set_attn_implementation(before)
            name, why = type(self.backbone).__name__, (str(error) or type(error).__name__).splitlines()[0]
            self.inert.append(f"{name}: use_remove_padding has no effect, its batches are padded: {why}")
            note(self.inert[-1])
            return False
        return True

    @cached_property
    def levels(self) -> bool:
        """Whether passes whose rows are level stand side by side: on a GPU, where that attention is quicker."""
        if not (self.packs and self._may_level):
            return False
        try:
            _require_alike(self._tried(level), self._tried(packed))
        except attention.NotPackable:
            return False
        return True

    @torch.no_grad()
    def _tried(self, lay_out: Callable[[Rollout, torch.device], Layout]) -> Tensor:
        with as_they_are():
            return self.module.run_inside(self._hidden, lay_out(probe(), self.device))  # type: ignore[no-any-return, operator]

    @cached_property
    def head_is_all(self) -> bool:
        """Whether the logits are the output layer of the last hidden state, with nothing before or after."""
        output: Any = self.module.get_output_embeddings()  # type: ignore[operator]
        if not isinstance(output, nn.Linear) or is_adapted(output):
            return False
        seen: dict[str, Tensor] = {}
        hooks = (
            self.backbone.register_forward_hook(lambda _, __, out: seen.update(hidden=out.last_hidden_state)),
            output.register_forward_hook(lambda _, args, out: seen.update(given=args[0], logits=out)),
        )
        try:
            with torch.no_grad(), as_they_are():
                logits = self._own_logits(self.lay_out(probe()))
        finally:
            for hook in hooks:
                hook.remove()
        return same(seen["hidden"], seen["given"]) and same(seen["logits"], logits)


def _require_alike(found: Tensor, expected: Tensor) -> None:
    difference = float((found - expected).norm() / expected.norm())
    if not difference < ALIKE.get(expected.dtype, 1e-3):
        raise attention.NotPackable(f"two packed sequences give other results than each alone, by {difference:.1%}")


def _run(module: nn.Module, compute: Callable[..., Any], *args: Any) -> Any:
    return compute(*args)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether these are the same numbers in memory, not copies."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape


def note(text: str) -> None:
    """Something that people should know, said by one rank."""
    if dist.get_rank() == 0:
        logging.getLogger("trainer").warning(text)
