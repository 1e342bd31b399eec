"""The folders that a run writes to, and whether they can be made and written where the command is given.

Nothing is made: what is there of a path is looked at, and the names of the rest are measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainer.config.files import FOLDER, NO_PATH, NOTHING, kind_of
from trainer.config.problems import Problem
from trainer.config.schema import Config, ProfilerConfig, TrainerConfig

_HINT = "give a folder that can be created and written to"
_SHOWN = 200  # characters of a path
_SHORT = 200  # bytes of a name that no file system refuses


def sample_folders(trainer: TrainerConfig) -> dict[str, str]:
    """Where samples and capsules go, as far as anything does, by the key that says so."""
    named = {
        "trainer.rollout_data_dir": trainer.rollout_data_dir,
        "trainer.validation_data_dir": trainer.validation_data_dir,
        "trainer.capsule_dir": trainer.capsule_dir,
    }
    return {key: name for key, name in named.items() if name is not None}


def profile_folder(profiler: ProfilerConfig) -> dict[str, str]:
    """Where profiles go, if there are any, by its key."""
    return {"global_profiler.save_path": profiler.save_path} if profiler.tool is not None and profiler.steps else {}


def folders_of(trainer: TrainerConfig) -> dict[str, Path]:
    """Those of a run's results, by the key that says so."""
    return {key: Path(name).expanduser() for key, name in _named(trainer).items()}


def _named(trainer: TrainerConfig) -> dict[str, str]:
    writes = trainer.save_freq > 0 or not {"file", "tensorboard"}.isdisjoint(trainer.logger)
    root = {"trainer.default_local_dir": trainer.default_local_dir} if writes else {}
    return root | sample_folders(trainer)


def output_problems(config: Config) -> Iterator[Problem]:
    """A folder that is something else, cannot be written, or has a name that no file system here takes."""
    for key, name in (_named(config.trainer) | profile_folder(config.global_profiler)).items():
        if why := _why_not(name):
            said = f"{key}={_cut(name)} {why}"
            part = _long_part(config, name)
            yield Problem(part or key, said, f"give a shorter {part}" if part else _HINT)


def _why_not(name: str) -> str:
    """Why a folder cannot be made, or be written to; empty if nothing speaks against it."""
    if "\0" in name:
        return f"is {NO_PATH} (it contains a null byte)"
    try:
        folder = Path(name).expanduser().absolute()
    except RuntimeError as error:  # a home of nobody
        return f"is {NO_PATH} ({error})"
    base, missing = folder, list[str]()
    while base != base.parent and ((kind := kind_of(str(base))) == NOTHING or kind.startswith(NO_PATH)):
        missing.append(base.name)
        base = base.parent
    if (kind := kind_of(str(base))) != FOLDER:
        return f"is {kind}" if base == folder else f"cannot be created: {_cut(str(base))} is {kind}"
    return _too_long(folder, base, missing) or _refused(folder, base)


def _too_long(folder: Path, base: Path, missing: list[str]) -> str:
    for kind, length, limit in (
        ("a name in it", max((len(os.fsencode(name)) for name in missing), default=0), "PC_NAME_MAX"),
        ("it", len(os.fsencode(folder)), "PC_PATH_MAX"),
    ):
        if length > (most := os.pathconf(base, limit)):
            return f"cannot be created: {kind} has {length} bytes, and {_cut(str(base))} takes {most}"
    return ""


def _refused(folder: Path, base: Path) -> str:
    if os.access(base, os.W_OK | os.X_OK):
        return ""
    return "cannot be written to" if base == folder else f"cannot be created: {_cut(str(base))} cannot be written to"


def _long_part(config: Config, name: str) -> str:
    """The key that the length of a default folder's name comes from."""
    trainer = config.trainer
    parts = {"trainer.project_name": trainer.project_name, "trainer.experiment_name": trainer.experiment_name}
    long = max(parts, key=lambda key: len(parts[key]))
    is_default = name == f"checkpoints/{trainer.project_name}/{trainer.experiment_name}"
    return long if is_default and len(os.fsencode(parts[long])) > _SHORT else ""


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
