"""The parameters of a sharded model, one at a time: whole, with their adapters or beside them, or a rank's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.learner import lora
from trainer.learner.offload import Offload, local
from trainer.learner.stepping import whole


class Tensors:
    """What `fsdp.Model` has of its module's parameters."""

    module: nn.Module
    weights: Offload

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight, whole, its adapter in it, one at a time. Collective: all ranks walk through it together."""
        adapted = lora.adapted(self.module)
        for name, weight in self.gathered(lambda name: not lora.is_factor(name)):
            if (module := adapted.get(name)) is not None:
                a, b = (whole(factor.weight.detach()) for factor in (module.lora_A, module.lora_B))
                weight = lora.merged(weight, a, b, module.lora_scale, transposed=module.transposed)
            yield name, weight

    def exported_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The same in the precision that the weights are kept in."""
        kept = {name: parameter.dtype for name, parameter in self.module.named_parameters()}
        for name, tensor in self.full_tensors():
            yield name, tensor.to(kept[name])

    def kept_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by itself: what training goes on with."""
        return self.gathered(lambda name: True)

    def factor_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The adapters alone. Collective."""
        return self.gathered(lora.is_factor)

    def gathered(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
        """The parameters whose names are `wanted`, whole, one at a time. Collective."""
        reshard(self.module)  # what a forward pass has left whole is a copy of the computation's precision
        with self.weights.at_hand():
            for name, parameter in self.module.named_parameters():
                if wanted(name):
                    yield name, whole(parameter.detach())

    def local_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, where it holds one."""
        reshard(self.module)
        with self.weights.at_hand():
            for name, parameter in self.module.named_parameters():
                part = local(parameter.detach())
                if part.numel():
                    yield name, part


def reshard(module: nn.Module) -> None:
    """Frees whole parameters; those that are sharded already stay as they are."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
