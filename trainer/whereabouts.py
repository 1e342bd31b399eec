"""Where a run's results are: told before it begins and when it has ended, of what it writes and of what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer import checkpoints
from trainer.config.outputs import profile_folder, sample_folders
from trainer.config.schema import Config
from trainer.tracking import METRICS_FILE, TENSORBOARD_FOLDER

_OF_RAY = "runtime_resources"  # of a session: what `ray job submit --working-dir` sends is unpacked below it
OF_TRAINING = ("trainer.rollout_data_dir", "trainer.capsule_dir")  # a validation writes neither


def ahead(config: Config) -> Iterator[str]:
    """Before the run: where what it writes will be."""
    if folders := _results(config):
        yield f"results go to {_joined(folders)}"
    if _saves(config):
        yield f"checkpoints go to {_root(config)}"
    if _OF_RAY in _root(config).parts and (folders or _saves(config)):
        yield "Ray made that folder for this job, and removes it: give trainer.default_local_dir as an absolute path"


def there(config: Config) -> Iterator[str]:
    """After the run: of these, what is there."""
    if found := [path for path in _results(config) if _holds_something(path)]:
        yield f"results in {_joined(found)}"
    if _saves(config) and (newest := _newest(_root(config))) is not None:
        yield f"checkpoints in {_root(config)}, the newest is {newest}"


def _results(config: Config) -> list[Path]:
    files = {"file": METRICS_FILE, "tensorboard": TENSORBOARD_FOLDER}
    logged = [_root(config) / files[name] for name in config.trainer.logger if name in files]
    folders = sample_folders(config.trainer) | profile_folder(config.global_profiler)
    if config.trainer.val_only:
        folders = {key: name for key, name in folders.items() if key not in OF_TRAINING}
    return list(dict.fromkeys([*logged, *map(_path, folders.values())]))


def _saves(config: Config) -> bool:
    return config.trainer.save_freq > 0 and not config.trainer.val_only


def _newest(root: Path) -> str | None:
    """By name: what the last save has made the latest."""
    step = checkpoints.latest(root)
    return None if step is None else f"global_step_{step}"


def _root(config: Config) -> Path:
    return _path(config.trainer.default_local_dir)


def _path(name: str) -> Path:
    return Path(name).expanduser().absolute()


def _holds_something(path: Path) -> bool:
    try:
        return path.is_file() or next(path.iterdir(), None) is not None
    except OSError:
        return False


def _joined(paths: list[Path]) -> str:
    return ", ".join(map(str, paths))
