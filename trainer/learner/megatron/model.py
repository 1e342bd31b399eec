"""A model in Megatron over tensor and pipeline ranks: forward passes, and its weights by Hugging Face's names.

Shapes as in `records.py`. On a pipeline only the last stage has outputs; log-probs and values are zeros on the others,
whose answers the driver does not take (`grid.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch import Tensor, nn

from trainer.grid import Grid
from trainer.learner.layout import trim
from trainer.learner.megatron import weights
from trainer.learner.megatron.host import on_device
from trainer.learner.megatron.tokens import Tokens, aligned, log_probs
from trainer.learner.megatron.weights import Dimensions, Entry
from trainer.records import LogProbs, Rollout
from trainer.rows import pad_to

Read = Callable[[nn.Parameter], Tensor]  # a number per element of a parameter of this rank, such as a moment of Adam's
Write = Callable[[nn.Parameter, Tensor], None]


_JOINED: list[tuple[Any, tuple[int, int]]] = []  # world and sizes of Megatron's groups, which are global to a process


def join(grid: Grid, device: torch.device, seed: int) -> None:
    """Megatron's process groups for `grid`; those of an earlier build are kept if they fit. Collective."""
    sizes = (grid.tensor, grid.pipeline)
    made_for = (dist.group.WORLD, sizes)
    if parallel_state.model_parallel_is_initialized():
        if made_for in _JOINED:
            return
        parallel_state.destroy_model_parallel()
    _JOINED[:] = [made_for]
    with on_device(device):
        parallel_state.initialize_model_parallel(*sizes, create_gloo_process_groups=False)
        model_parallel_cuda_manual_seed(seed)


def forward(network: Any, tokens: Tokens) -> Tensor:
    """The network's output: on the last stage [B, S, X], before it hidden states."""
    return network(  # type: ignore[no-any-return]
        input_ids=tokens.ids_BS, position_ids=tokens.positions_BS, attention_mask=None
    )


class MegatronModel:
    """What PPO asks of a model (`interfaces.Policy`, `Critic`), and its tensors."""

    def __init__(
        self,
        network: Any,
        model: Dimensions,
        identity: Any,
        grid: Grid,
        device: torch.device,
        temperature: float = 1.0,
    ) -> None:
        self.network = network  # this rank's part
        self.inert: list[str] = []  # what it cannot do is refused with the configuration
        self.module = identity  # config and generation_config, as transformers saves them
        self.dimensions = model
        self.grid = grid
        self.device = device
        self.temperature = temperature
        self._output_BSX: Tensor | None = None  # of the pass whose loss is being computed
        self._tensor_rank = int(parallel_state.get_tensor_model_parallel_rank())
        self._tensor_group = parallel_state.get_tensor_model_parallel_group()
        self._pipeline_group = parallel_state.get_pipeline_model_parallel_group()
        self._parameters: dict[str, nn.Parameter] = dict(network.named_parameters())
        self.dtype: torch.dtype = network.config.params_dtype

    def at_hand(self) -> AbstractContextManager[None]:
        """The parameters never leave the device."""
        return nullcontext()

    # -- forward passes

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        """Log-probs of the response tokens under the temperature-scaled distribution, [B, T] float32."""
        tokens, output_BSV = self._output(rollout)
        if output_BSV is None:
            nothing_BT = torch.zeros_like(rollout.mask_BT, dtype=torch.float32, device=self.device)
            return LogProbs(nothing_BT, nothing_BT)
        with on_device(self.device):
            found = log_probs(tokens, output_BSV, self.temperature, self.dimensions.vocab, entropy=entropy)
        width = rollout.response_BT.shape[1]
        return LogProbs(pad_to(found.logp_BT, width, left=False), pad_to(found.entropy_BT, width, left=False))

    def values(self, rollout: Rollout) -> Tensor:
        """Value before each response token is taken, [B, T] float32, 0 outside the mask."""
        tokens, output_BS1 = self._output(rollout)
        if output_BS1 is None:
            return torch.zeros_like(rollout.mask_BT, dtype=torch.float32, device=self.device)
        values_BT = tokens.at_responses(output_BS1).squeeze(-1).float() * tokens.mask_BT
        return pad_to(values_BT, rollout.response_BT.shape[1], left=False)

    def _tokens(self, rollout: Rollout) -> Tokens:
        return aligned(trim(rollout), self.grid.tensor, self.device)

    def _output(self, rollout: Rollout) -> tuple[Tokens, Tensor | None]:
        """The output [B, S, X]: of the pass in hand, else of a forward pass; None before the last stage."""
        tokens = self._tokens(rollout)
        if self._output_BSX is not None:
            return tokens, self._output_BSX
        if self.grid.pipeline == 1:
            with on_device(self.device):
                return tokens, forward(self.network, tokens)
        outputs: list[Tensor] = []
        self.run([tokens], lambda _, output_BSX: outputs.append(output_BSX), train=False)
        return tokens, outputs[0] if outputs else None

    def run(self, passes: list[Tokens], finish: Callable[[int, Tensor], Any], *, train: bool) -> None:
        """Megatron's schedule over micro-batches: 1F1B on a pipeline. Collective over the ranks of one copy.

        On the last stage, `finish(i, output)` is called for each pass, and gives its loss if `train`.
        """
        numbers = iter(range(len(passes)))

        def forward_step(_: Any, network: Any) -> tuple[Tensor, Callable[..., Any]]:
            number = next(numbers)
            output = forward(network, passes[number])

            def loss_of(output_BSX: Tensor, non_loss_data: bool = False) -> Any:
                loss = finish(number, output_BSX)
                return None if non_loss_data else (loss, torch.ones((), dtype=torch.int, device=self.device), None)

            return output, loss_of

        with on_device(self.device):
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=None,
                model=[self.network],
                num_microbatches=len(passes),
                seq_length=passes[0].ids_BS.shape[1],  # where shapes vary, Megatron sends them along
                micro_batch_size=len(passes[0].ids_BS),
                forward_only=not train,
                collect_non_loss_data=not train,
            )

    # -- weights

    @property
    def parameter_names(self) -> frozenset[str]:
        return frozenset(name for entry in self._entries() for name in entry.sources)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every parameter, by Hugging Face's names."""
        names: dict[str, tuple[int, ...]] = {}
        for entry in self._entries():
            parts = weights.unfuse(entry, torch.empty(entry.shape, device="meta"), self.dimensions)
            names.update(zip(entry.sources, (tuple(part.shape) for part in parts), strict=True))
        return names

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, whole, by Hugging Face's names. Collective: all ranks walk through it together."""
        return self.gathered(lambda parameter: parameter.detach(), self.dtype)

    def kept_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """As `full_tensors`, in float32."""
        return self.gathered(lambda parameter: parameter.detach().float(), torch.float32)

    def exported_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The same."""
        return self.kept_tensors()

    def local_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, by Megatron's names."""
        for name, parameter in self._parameters.items():
            yield name, parameter.detach()

    def gathered(self, read: Read, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """What `read` says of each parameter in `dtype`, put together from all ranks. Collective."""
        for entry in self._entries():
            if entry.copy:
                continue
            fused = self._fused(entry, read, dtype)
            yield from zip(entry.sources, weights.unfuse(entry, fused, self.dimensions), strict=True)

    def scatter(self, tensors: Callable[[str], Tensor] | None, write: Write) -> None:
        """Hands each parameter its part of what rank 0 has by Hugging Face's names. Collective.

        `tensors` is given on rank 0 alone; its numbers pass as float32.
        """
        for entry in self._entries():
            fused = torch.empty(entry.shape, device=self.device)
            if tensors is not None:
                sources = [tensors(name).to(self.device, torch.float32) for name in entry.sources]
                fused = weights.fuse(entry, sources, self.dimensions).contiguous()
            dist.broadcast(fused, src=0)
            parameter = self.parameter(entry)
            if parameter is not None:
                write(parameter, weights.part(entry, fused, self._tensor_rank, self.grid.tensor))

    def parameter(self, entry: Entry) -> nn.Parameter | None:
        """This rank's parameter of an entry; None if another stage has it."""
        if entry.stage != parallel_state.get_pipeline_model_parallel_rank():
            return None
        return self._parameters[entry.local_name(self.dimensions.layers // self.grid.pipeline)]

    def _entries(self) -> Iterable[Entry]:
        return weights.entries(self.dimensions, self.grid.pipeline)

    def _fused(self, entry: Entry, read: Read, dtype: torch.dtype) -> Tensor:
        """An entry's whole tensor, from the tensor ranks of the stage that has it to every rank of the copy."""
        parameter, fused = self.parameter(entry), torch.empty(entry.shape, dtype=dtype, device=self.device)
        if parameter is not None:
            here = read(parameter).contiguous()
            parts = [here]
            if self.grid.tensor > 1 and entry.kind != "same":
                parts = [torch.empty_like(here) for _ in range(self.grid.tensor)]
                dist.all_gather(parts, here, group=self._tensor_group)
            fused = weights.whole(entry, parts).contiguous()
        if self.grid.pipeline > 1:
            source = dist.get_process_group_ranks(self._pipeline_group)[entry.stage]
            dist.broadcast(fused, src=source, group=self._pipeline_group)
        return fused
