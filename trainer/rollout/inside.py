"""What runs inside an engine's own model process: takes weights out of a bucket, and proves that they stand.

SGLang calls `sglang_load` by its server argument `custom_weight_loader`; vLLM calls `receive` through its worker
extension (`vllm_worker.py`). Nothing here raises: an exception would end the engine's process, and its reason with it.
What goes wrong is reported, in a file that the engine's actor reads (`reports_in`).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.rollout import wire
from trainer.rollout.bucket import open_handle, read
from trainer.rollout.regions import Region, UnknownPlace, region_of
from trainer.rollout.server import REPORT_FOLDER
from trainer.rollout.sums import PendingSums, Sums, pending_sums, results
from trainer.rollout.wire import Finding, Load, Look, Report, Slot, Standing

LoadWeights = Callable[[Iterable[tuple[str, Tensor]]], Any]


class Receiver:
    """The weights of one tensor-parallel rank, from one update to the next."""

    def __init__(self, tp_rank: int) -> None:
        self.tp_rank = tp_rank
        self.version = 0
        self._memory: dict[str, Tensor] = {}  # by handle: opening one costs more than a bucket
        self._regions: dict[str, tuple[Region, tuple[int, ...]]] = {}
        self._expected: dict[str, Sums] = {}  # of this rank's part of each tensor, as it arrived
        self._findings: list[Finding] = []

    @torch.no_grad()
    def take(self, message: Load | Look, model: nn.Module, load_weights: LoadWeights) -> Report:
        """Does what `message` says."""
        try:
            if isinstance(message, Load):
                self._load(message, model, load_weights)
                return Report(self.tp_rank, message.version, tuple(self._findings))
            return self._look(message, model)
        except Exception as error:  # noqa: BLE001 - keeps the engine alive; reported with its place in the code
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            return Report(self.tp_rank, message.version, (*self._findings, Finding(self.tp_rank, "", what)))

    def _load(self, message: Load, model: nn.Module, load_weights: LoadWeights) -> None:
        if message.first:
            self._findings, self._expected, self._regions = [], {}, {}
        handle = message.handles[self.tp_rank]
        if handle not in self._memory:
            self._memory[handle] = open_handle(handle)
        tensors = list(read(self._memory[handle], message.slots))
        if message.slots and message.slots[0].sums is not None:
            self._compare_arrived(tensors, model)
            # What has no place is a finding by now; an engine's loader may raise at it.
            tensors = [(slot, tensor) for slot, tensor in tensors if slot.name in self._regions]
        load_weights((slot.name, tensor) for slot, tensor in tensors)
        if tensors and tensors[0][1].is_cuda:
            torch.cuda.synchronize()  # the sender fills the bucket anew as soon as it hears of us
        self.version = message.version

    def _compare_arrived(self, tensors: list[tuple[Slot, Tensor]], model: nn.Module) -> None:
        """What lies in the bucket is what the trainer laid there; and what of it is this rank's to hold."""
        arrived = [pending_sums(tensor) for _, tensor in tensors]
        parts: dict[str, PendingSums] = {}
        for (slot, tensor), whole in zip(tensors, arrived, strict=True):
            try:
                region = region_of(model, slot.name, slot.shape, self.tp_rank)
            except UnknownPlace as error:
                self._findings.append(Finding(self.tp_rank, slot.name, f"cannot be verified: {error}"))
                continue
            self._regions[slot.name] = region, slot.shape
            part, held = region.of_whole(tensor), model.get_parameter(region.parameter)
            same = part.shape == tensor.shape and held.dtype == tensor.dtype
            parts[slot.name] = whole if same else pending_sums(part.to(held.dtype), **region.offsets)
        for (slot, _), sums in zip(tensors, results(arrived), strict=True):
            if sums != slot.sums:
                self._findings.append(Finding(self.tp_rank, slot.name, f"arrived as {sums}, was sent as {slot.sums}"))
        self._expected |= dict(zip(parts, results(list(parts.values())), strict=True))

    def _look(self, message: Look, model: nn.Module) -> Report:
        self._memory.clear()
        standing = self._standing(model)
        findings = list(self._findings)
        for name, expected in self._expected.items():
            if standing[name].sums != expected:
                findings.append(
                    Finding(self.tp_rank, name, f"stands as {standing[name].sums}, should be {expected} in the model")
                )
        taken = {region.parameter for region, _ in self._regions.values()}
        held = {id(model.get_parameter(name)) for name in taken}
        if self._expected:
            missing = [name for name, parameter in model.named_parameters() if id(parameter) not in held]
            findings += [Finding(self.tp_rank, name, "got no weights") for name in missing]
        return Report(self.tp_rank, self.version, tuple(findings), standing)

    def _standing(self, model: nn.Module) -> dict[str, Standing]:
        pending, dtypes = [], []
        for region, _ in self._regions.values():
            part = region.of_parameter(model.get_parameter(region.parameter))
            pending.append(pending_sums(part, **region.offsets))
            dtypes.append(str(part.dtype).removeprefix("torch."))
        found = zip(self._regions.items(), dtypes, results(pending), strict=True)
        return {
            name: Standing(region.dim, region.start, region.stop, shape[region.dim] if shape else 1, dtype, sums)
            for (name, (region, shape)), dtype, sums in found
        }


_RECEIVERS: list[Receiver] = []  # this process's, one


def receive(text: str, tp_rank: int, model: nn.Module, load_weights: LoadWeights) -> Report:
    """Does what the message `text` says, with the receiver of this process."""
    if not _RECEIVERS:
        _RECEIVERS.append(Receiver(tp_rank))
    return _RECEIVERS[0].take(wire.decode(text), model, load_weights)


def sglang_load(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
    """SGLang's custom weight loader: the one tensor's *name* is the message, the weights lie in the bucket."""
    from sglang.srt.distributed.parallel_state import get_tp_group

    [(text, _)] = named_tensors
    report = receive(text, get_tp_group().rank_in_group, model, model.load_weights)
    write_report(Path(os.environ[REPORT_FOLDER]), report)


def write_report(folder: Path, report: Report) -> None:
    """At once or not at all."""
    path = folder / f"{report.tp_rank}-{os.getpid()}.json"  # replicas have the same ranks
    new = path.with_suffix(".new")
    new.write_text(wire.encode(report))
    new.rename(path)


def reports_in(folder: Path) -> tuple[Report, ...]:
    """The newest report of each process that writes into `folder`, and takes them away."""
    found = []
    for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem.partition("-")[0])):
        found.append(wire.decode(path.read_text()))
        path.unlink()
    return tuple(found)
