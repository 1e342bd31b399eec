"""The state of a model on disk: torch.distributed.checkpoint shards, readable on any number of ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trainer.errors import CheckpointError
from trainer.learner import dcp as files
from trainer.learner import lora, lora_files
from trainer.learner.fsdp import Trained
from trainer.learner.protocol import TrainedLearner
from trainer.learner.scaling import LossScale
from trainer.learner.tensor_files import save_tensors

ADAPTERS = "lora"  # [scale, whether the layers' weights are transposed] of a model that has adapters
FULL_DISK_BYTES = 2**20  # what no shard fits into; a failed write may leave a little less than it asked for


def save(trained: Trained, folder: Path, *, optimizer: bool = True) -> None:
    """Every rank writes its shards into `folder`. Collective. Raises CheckpointError, on every rank."""
    new = not trained.optimizer.state
    with trained.all_at_hand():
        model_state, optimizer_state = get_state_dict(trained.module, trained.optimizer)
        state: dict[str, Any] = {"model": model_state, "updates": torch.tensor(trained.updates)}
        if optimizer:
            state["optimizer"] = optimizer_state
        if trained.loss_scale is not None:
            state["loss_scale"] = _scale_tensor(trained.loss_scale)
        if (adapters := _adapters_tensor(trained)) is not None:
            state[ADAPTERS] = adapters
        with written(folder):
            dcp.save(state, checkpoint_id=folder)
        if new:  # torch has made a state to save, with one step counted: saving must not change what comes after
            trained.optimizer.state.clear()


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Makes one kind of error of all that can go wrong while `folder` is written."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, dcp.api.CheckpointException) as error:
        raise CheckpointError(
            f"cannot write the checkpoint {folder}: {reason(error, folder)}",
            hint="free space or set trainer.default_local_dir; checkpoints already complete are untouched",
        ) from error


def require_optimizer(folder: Path) -> None:
    """Without its optimizer state a run would go on, and not as it was."""
    if not any(name.startswith("optimizer.") for name in _metadata(folder)):
        raise CheckpointError(
            f"the checkpoint {folder} holds no optimizer state, so no run can continue from it",
            hint="save with actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]; "
            "trainer.resume_mode=disable starts over",
        )


def _metadata(folder: Path) -> Mapping[str, Any]:
    """What a checkpoint holds, by name. Raises CheckpointError."""
    found: Mapping[str, Any] = files.read_index(folder).state_dict_metadata
    return found


def load(trained: Trained, folder: Path) -> None:
    """Read what `save` wrote, re-sharded to this run's ranks. Collective. Raises CheckpointError."""
    require_optimizer(folder)
    with trained.all_at_hand(changes=True):
        _load(trained, folder)


def _load(trained: Trained, folder: Path) -> None:
    if "optimizer.steps" in _metadata(folder):
        raise CheckpointError(
            f"the checkpoint {folder} was written with strategy=megatron",
            hint="continue with it, or export the model and start over: python -m trainer.export",
        )
    adapters = _adapters_tensor(trained)
    _require_same_adapters(trained, adapters, folder)
    model_state, optimizer_state = get_state_dict(trained.module, trained.optimizer)
    updates = torch.tensor(0)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "updates": updates}
    # A run that went on in another precision has no scale to continue: it begins with a new one.
    scaled = trained.loss_scale is not None and "loss_scale" in _metadata(folder)
    if scaled:
        state["loss_scale"] = _scale_tensor(LossScale())
    try:
        files.load(state, folder)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {folder}: {innermost(error)}",
            hint="it may belong to another model; choose one with trainer.resume_from_path, "
            "or trainer.resume_mode=disable",
        ) from error
    set_state_dict(
        trained.module, trained.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    trained.set_updates(int(updates))
    if trained.updates == 0:
        trained.optimizer.state.clear()
    if scaled:
        scale, good_steps = state["loss_scale"].tolist()
        trained.loss_scale = LossScale(scale, int(good_steps))


def _adapters_tensor(trained: Trained) -> torch.Tensor | None:
    adapted = lora.adapted(trained.module)
    if not adapted:
        return None
    scale, transposed = next(iter(adapted.values())).lora_scale, any(each.transposed for each in adapted.values())
    return torch.tensor([scale, float(transposed)], dtype=torch.float64)


def _require_same_adapters(trained: Trained, ours: torch.Tensor | None, folder: Path) -> None:
    """Other modules, another rank or another scale are another model. Raises CheckpointError."""
    theirs = read_tensors(folder, ADAPTERS).get(ADAPTERS) if ADAPTERS in _metadata(folder) else None
    if (ours is None) != (theirs is None):
        what = "adapters, and this run has none" if ours is None else "no adapters, and this run has some"
        raise CheckpointError(f"the checkpoint {folder} has {what}", hint="continue with the lora_rank it began with")
    if ours is not None and theirs is not None and not torch.equal(ours, theirs):
        scales = " and this run has ".join(f"{x:g}," for each in (theirs, ours) for x in each.flatten().tolist()[:1])
        what = f"adapters with lora_alpha / lora_rank = {scales.rstrip(',')}"
        raise CheckpointError(f"the checkpoint {folder} has {what}", hint="continue with the lora_alpha it began with")
    shapes = {f"model.{name}": p.shape for name, p in trained.module.named_parameters() if lora.is_factor(name)}
    held = {name: entry.size for name, entry in files.tensors_in(folder).items() if lora.is_factor(name)}
    held = {name: size for name, size in held.items() if name.startswith("model.")}
    if odd := sorted(name for name in shapes.keys() | held.keys() if shapes.get(name) != held.get(name)):
        raise CheckpointError(
            f"the checkpoint {folder} has other adapters than this run: {odd[0].removeprefix('model.')}",
            hint="continue with the lora_rank, target_modules and exclude_modules it began with",
        )


def _scale_tensor(scale: LossScale) -> torch.Tensor:
    return torch.tensor([scale.scale, scale.good_steps], dtype=torch.float64)


def reason(error: BaseException, folder: Path) -> str:
    """Why `folder` could not be written. Of a full disk, torch's zip writer only says that a position is unexpected."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    return f"No space left on device ({free:,} bytes)" if free < FULL_DISK_BYTES else innermost(error)


def innermost(error: BaseException) -> str:
    """The first line of the failure at the bottom: DCP wraps one failure per rank into one of its own."""
    if isinstance(error, dcp.api.CheckpointException):
        failures = [failure for failure, _ in error.failures.values()]
        error = failures[0] if failures else error
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def save_identity(module: Any, tokenizer: Any, folder: Path) -> None:
    """Configuration and tokenizer: with them a checkpoint knows what model it is of. Raises CheckpointError."""
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        module.config.save_pretrained(folder)
        if getattr(module, "generation_config", None) is not None:
            module.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def export(trained: TrainedLearner, folder: Path, *, write: bool) -> None:
    """The whole weights as safetensors beside the identity. Collective; only the rank that writes keeps them.

    Raises CheckpointError.
    """
    tensors = {}
    for name, tensor in trained.exported_tensors():
        if write:
            tensors[name] = tensor.cpu().clone()
    if write:
        with written(folder):
            write_safetensors(tensors, folder)


def save_adapter(trained: TrainedLearner, folder: Path, *, write: bool) -> None:
    """The adapters alone, as peft loads them, if there are any. Collective; only the rank that writes keeps them.

    Raises CheckpointError.
    """
    if not isinstance(trained, Trained) or (settings := _adapters_tensor(trained)) is None:
        return
    factors = {name: tensor.cpu().clone() for name, tensor in trained.factor_tensors() if write}
    if write:
        base = getattr(trained.module.config, "name_or_path", None) or None
        with written(folder):
            scale, transposed = settings.tolist()
            lora_files.write_adapter(factors, scale, folder, base, transposed=bool(transposed))


def write_safetensors(tensors: dict[str, torch.Tensor], folder: Path, shard_size: str = "5GB") -> None:
    """`tensors` in shards with an index, as `transformers` reads them."""
    split = split_torch_state_dict_into_shards(tensors, max_shard_size=shard_size)
    for filename, names in split.filename_to_tensors.items():
        save_tensors({name: tensors[name].contiguous() for name in names}, folder / filename)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))


def read_model(folder: Path) -> dict[str, torch.Tensor]:
    """The whole weights of a checkpoint, adapters in them, in one process without a process group.

    Raises CheckpointError.
    """
    tensors = {name.removeprefix("model."): x for name, x in read_tensors(folder, "model.").items()}
    if ADAPTERS not in files.tensors_in(folder):
        return tensors
    settings = read_tensors(folder, ADAPTERS)[ADAPTERS]
    try:
        scale, transposed = settings.tolist()
        return lora.folded(tensors, scale, transposed=bool(transposed))
    except (TypeError, ValueError, KeyError, RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {folder}: its adapters do not fit its weights: {innermost(error)}",
            hint="choose another global_step_N folder",
        ) from error


def read_tensors(folder: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """The whole tensors whose names begin with `prefix`, read by this process alone. Raises CheckpointError."""
    try:
        state = {  # zeros: where a hostile index leaves a gap, this process's memory would be read out
            name: torch.zeros(entry.size, dtype=entry.properties.dtype)
            for name, entry in files.tensors_in(folder).items()
            if name.startswith(prefix)
        }
        files.load_alone(state, folder)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {folder}: {innermost(error)}", hint="choose another global_step_N folder"
        ) from error
    return state
