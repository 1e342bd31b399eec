"""Checkpoint folders: written beside, renamed when whole, named by one small file; verl's layout.

    DIR/global_step_20/actor, critic      torch.distributed.checkpoint shards
    DIR/global_step_20/actor/huggingface  configuration and tokenizer; weights too with save_contents=[..., hf_model]
    DIR/global_step_20/state.json         step, KL coefficient, data position
    DIR/latest_checkpointed_iteration.txt the newest whole one

A folder under its final name is whole: the rename is the last act. Everything else that a killed run leaves behind
ends in `.partial` and is removed by the next save.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config.schema import TrainerConfig
from trainer.errors import CheckpointError
from trainer.ppo import Progress

LATEST_FILE = "latest_checkpointed_iteration.txt"
STATE_FILE = "state.json"
PARTIAL = ".partial"


@dataclass(frozen=True)
class State:
    """What a checkpoint holds beside weights."""

    progress: Progress
    data: Mapping[str, Any]  # of PromptLoader


def save(root: Path, state: State, write_models: Callable[[str], None], keep: int | None) -> Path:
    """Writes `global_step_N` whole or not at all, then drops all but the newest `keep`.

    Raises CheckpointError; what was half written is removed, earlier checkpoints stay as they are.
    """
    final = root / f"global_step_{state.progress.step}"
    partial = final.with_name(final.name + PARTIAL)
    try:
        _remove_partial(root)
        partial.mkdir(parents=True)
        write_models(str(partial))
        _require_shards(partial)
        record = {"step": state.progress.step, "kl_coef": state.progress.kl_coef, "data": dict(state.data)}
        _write_durably(partial / STATE_FILE, json.dumps(record, indent=2))
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _write_durably(root / LATEST_FILE, str(state.progress.step))
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {error.strerror or error}",
            hint="free space or set trainer.default_local_dir; checkpoints already complete are untouched",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if keep:
        # The one just written stays, also where an earlier run left higher numbers.
        others = [path for path in complete(root) if path != final]
        for old in others[::-1][keep - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def find(config: TrainerConfig) -> Path | None:
    """The checkpoint to resume from, by `resume_mode`; None to start anew.

    Raises CheckpointError if `resume_from_path` is none.
    """
    if config.resume_mode == "disable":
        return None
    if config.resume_mode == "resume_path":
        path = Path(config.resume_from_path or "").expanduser()
        if not (path / STATE_FILE).is_file():
            raise CheckpointError(
                f"{path} is not a checkpoint: it has no {STATE_FILE}",
                hint="give a global_step_N folder as trainer.resume_from_path",
            )
        return path
    root = Path(config.default_local_dir).expanduser()
    found = complete(root)
    latest = root / LATEST_FILE
    if latest.is_file() and (named := root / f"global_step_{latest.read_text().strip()}") in found:
        return named
    return found[-1] if found else None


def way_on(config: TrainerConfig) -> str:
    """What the same command would go on from, for people; or that there is nothing, and why."""
    newest = find(replace(config, resume_mode="auto"))
    if newest is not None:
        return f"trainer.resume_mode=auto continues from {newest}"
    yet = "" if config.save_freq < 1 else " yet"
    return f"no checkpoint was written{yet}: trainer.save_freq={config.save_freq}"


def read_state(folder: Path) -> State:
    """Raises CheckpointError if the state cannot be read."""
    try:
        record = json.loads((folder / STATE_FILE).read_text())
        return State(Progress(step=record["step"], kl_coef=record["kl_coef"]), record["data"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"cannot read {folder / STATE_FILE}: {error}",
            hint="choose another checkpoint with trainer.resume_from_path, or trainer.resume_mode=disable",
        ) from error


def complete(root: Path) -> list[Path]:
    """Whole checkpoints under `root`, oldest first."""
    numbered = [(int(match[1]), path) for path in root.glob("global_step_*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered) if (path / STATE_FILE).is_file()]


def _require_shards(folder: Path) -> None:
    """Raises CheckpointError unless every file that the checkpoints in `folder` refer to is there."""
    from torch.distributed.checkpoint import FileSystemReader

    for metadata in folder.glob("*/.metadata"):
        stored = FileSystemReader(metadata.parent).read_metadata().storage_data or {}
        names = sorted({entry.relative_path for entry in stored.values()})
        missing = [name for name in names if not (metadata.parent / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{len(missing)} of {len(names)} shards of {metadata.parent} were written elsewhere: {missing[0]}",
                hint="set trainer.default_local_dir to a folder that all nodes share",
            )


_NAME = re.compile(r"global_step_(\d+)")


def _remove_partial(root: Path) -> None:
    for left_over in root.glob(f"global_step_*{PARTIAL}"):
        shutil.rmtree(left_over, ignore_errors=True)


def _write_durably(path: Path, text: str) -> None:
    """On disk before anything refers to it, and never half there under its name."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
