"""A rank's part of a capsule: its models before the step, and how far the step has moved them."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import own_files
from trainer.capsules import ModelState, Stored, add_tensors, written
from trainer.learner.checkpoint import save_identity
from trainer.learner.fsdp import Trained
from trainer.learner.models import ValueModel
from trainer.learner.offload import local
from trainer.learner.protocol import Learner, TrainedLearner
from trainer.rollout.sums import sums_of


def begin(
    path: Path, models: Mapping[str, Learner], tokenizer: Any, *, contents: str, write: bool
) -> dict[str, ModelState]:
    """The models and their checksums; with `contents` "all" or "model", also into the new file `path`.

    Collective: tensors are gathered one at a time, only the rank that is to `write` keeps them. Raises CapsuleError.
    """
    states: dict[str, ModelState] = {}
    inside = contents in ("all", "model")
    with written(path):
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        with _new(path) if write else nullcontext() as file:
            for role, model in models.items():
                checksums: dict[str, str] = {}
                tensors = _digested(model.kept_tensors(), checksums) if write else model.kept_tensors()
                _each(tensors, file if inside else None, f"weights/{role}")
                states[role] = ModelState(checksums)
                if isinstance(model, TrainedLearner):
                    states[role] = _training_state(model, checksums)
                    if contents == "all":
                        _each(model.optimizer_tensors(), file, f"optimizer/{role}")
            if file is not None and inside:
                _add_identities(file, models, tokenizer)
    return states


@contextmanager
def _new(path: Path) -> Iterator[zipfile.ZipFile]:
    with own_files.new(path) as opened, zipfile.ZipFile(opened, "w") as file:
        yield file


def _digested(tensors: Iterator[tuple[str, Tensor]], found: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        found[name] = digest(tensor)
        yield name, tensor


def _each(tensors: Iterator[tuple[str, Tensor]], file: zipfile.ZipFile | None, stem: str) -> None:
    """Into `file`, if there is one; every rank walks through them, for their gathering is collective."""
    if file is not None:
        add_tensors(file, stem, tensors)
    else:
        for _ in tensors:
            pass


def _training_state(model: TrainedLearner, checksums: dict[str, str]) -> ModelState:
    scale = model.loss_scale
    scaling = (scale.scale, scale.good_steps) if scale is not None else (None, 0)
    return ModelState(checksums, model.updates, model.optimizer_steps(), *scaling)


def _add_identities(file: zipfile.ZipFile, models: Mapping[str, Learner], tokenizer: Any) -> None:
    folder = Path(tempfile.mkdtemp(prefix="capsule-", dir=own_files.temporary()))
    try:
        save_identity(models["actor"].module, tokenizer, folder / "actor")
        if "critic" in models:
            critic = models["critic"].module
            backbone: Any = critic.backbone if isinstance(critic, ValueModel) else critic
            backbone.config.save_pretrained(folder / "critic")
        for path in sorted(folder.glob("*/*")):
            file.write(path, f"identity/{path.relative_to(folder).as_posix()}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restore_optimizer(trained: Trained, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """What `Trained.optimizer_tensors` gave, into a model that lies whole on one rank."""
    parameters = dict(trained.module.named_parameters())
    for full_name, value in tensors:
        name, _, key = full_name.rpartition(":")
        parameter = parameters[name]
        if value.dim():  # a moment: sharded as its parameter is
            moment = torch.zeros_like(parameter.detach())
            local(moment).copy_(value)
        trained.optimizer.state[parameter][key] = moment if value.dim() else value.clone()


def moved(path: Path, models: Mapping[str, Learner], *, read: bool) -> dict[str, dict[str, float]]:
    """By role, how far each tensor of the trained models is from what `begin` wrote, as a norm.

    Collective; only the rank that is to `read` knows the answer.
    """
    trained = {role: model for role, model in models.items() if isinstance(model, TrainedLearner)}
    return {
        role: distances(model, Stored(path, f"weights/{role}").pop if read else None) for role, model in trained.items()
    }


def distances(model: Learner, before: Callable[[str], Tensor] | None) -> dict[str, float]:
    """The norm of each tensor's difference from `before(name)`. Collective."""
    found: dict[str, float] = {}
    for name, tensor in model.kept_tensors():
        if before is not None:
            found[name] = float((tensor.detach().cpu().double() - before(name).double()).norm())
    return found


def digest(tensor: Tensor) -> str:
    """Equal for equal bytes, and what an engine says of the same tensor, however it has cut it."""
    return str(sums_of(tensor))
