"""Checkpoint folders: written beside, renamed when whole, named by one small file; verl's layout.

    DIR/global_step_20/actor, critic      torch.distributed.checkpoint shards
    DIR/global_step_20/actor/huggingface  configuration and tokenizer; weights too with save_contents=[..., hf_model]
    DIR/global_step_20/state.json         step, KL coefficient, data position; a digest of each other file
    DIR/latest_checkpointed_iteration.txt the newest whole one

A folder under its final name is whole. Wherever a run is killed, a whole checkpoint is left where there was one before:
one that is saved again is first moved aside, as `.replaced`, and goes when the new one stands there. `.partial` was not
finished, `.removed` is being deleted. `recover` ends what was begun, the next save removes what cannot be ended. What a
name refers to is on the disk before the name is.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trainer import digests, own_files
from trainer.config.model_folder import read_text
from trainer.digests import Digest, DigestFiles
from trainer.errors import CheckpointError
from trainer.state import STATE_FILE, State, read_state, to_json

LATEST_FILE = "latest_checkpointed_iteration.txt"
NEW = ".new"  # of the file above: the name it will have is decided, and perhaps not yet its folder's
PARTIAL, REPLACED, REMOVED = ".partial", ".replaced", ".removed"
_NAME = re.compile(r"global_step_([0-9]{1,15})")


def save(
    root: Path,
    state: State,
    write_models: Callable[[str], None],
    keep: int | None,
    digest_files: DigestFiles = digests.of_files,
) -> Path:
    """Writes `global_step_N` whole or not at all, then drops all but the newest `keep`.

    Raises CheckpointError; what was half written is removed, earlier checkpoints stay as they are.
    """
    final = root / f"global_step_{state.progress.step}"
    partial = final.with_name(final.name + PARTIAL)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _put_back(root)
        _clear(root)
        partial.mkdir()
        write_models(str(partial))
        _require_shards(partial)
        files = _digested(partial, digest_files)
        saved = 1 + max((each.saved for _, each in states(root) if isinstance(each, State)), default=0)
        _write_durably(partial / STATE_FILE, to_json(replace(state, files=files, saved=saved)))
        _flush(partial)
        _put_in_place(partial, final)
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
            _remove(old)
    return final


def complete(root: Path) -> list[Path]:
    """Whole checkpoints under `root`, oldest first: all of their files are there, and as long as they were."""
    found = [(path, state) for path, state in states(root) if isinstance(state, State)]
    whole = [(state.saved, step_of(path), path) for path, state in found if shortcoming(path, state) is None]
    return [path for _, _, path in sorted(whole)]


def states(root: Path) -> Iterator[tuple[Path, State | str]]:
    """Every checkpoint with its state, or why it has none."""
    for folder in folders(root):
        try:
            yield folder, read_state(folder)
        except CheckpointError as error:
            yield folder, error.message if (folder / STATE_FILE).exists() else f"it has no {STATE_FILE}"


def folders(root: Path) -> Iterator[Path]:
    """Every folder with a checkpoint's name; one that was moved aside stands for the one that did not come."""
    for path in sorted(root.glob("global_step_*")):
        if _NAME.fullmatch(path.name) or (
            path.name.endswith(REPLACED)
            and _NAME.fullmatch(path.name.removesuffix(REPLACED))
            and not path.with_name(path.name.removesuffix(REPLACED)).exists()
        ):
            yield path


def step_of(folder: Path) -> int:
    match = _NAME.match(folder.name)
    assert match is not None
    return int(match[1])


def shortcoming(folder: Path, state: State) -> str | None:
    """What a checkpoint lacks by the names and sizes of its files; None if nothing."""
    for name, digest in (state.files or {}).items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        if size != digest.size:
            return digests.misfit({name: digest}, {name: Digest(size, 0)})
    return None


def latest(root: Path) -> int | None:
    """The step that a save named last, if its folder is there; None where nothing can be read."""
    for name in (LATEST_FILE + NEW, LATEST_FILE):
        text = _named_by(root / name)
        if text.isascii() and text.isdigit() and len(text) < 16 and int(text) in map(step_of, folders(root)):
            return int(text)
    return None


def _named_by(file: Path) -> str:
    """The step that a file names; empty where it can't be read."""
    try:
        return read_text(file).strip()
    except (OSError, ValueError):
        return ""


def recover(root: Path) -> list[str]:
    """Ends what a killed save has begun; gives a line for each thing that it has put right."""
    said = []
    for partial in sorted(root.glob(f"global_step_*{PARTIAL}")):
        if _NAME.fullmatch(partial.name.removesuffix(PARTIAL)) and _is_written(partial):
            final = partial.with_name(partial.name.removesuffix(PARTIAL))
            _put_in_place(partial, final)
            said.append(f"{final} is complete: its save was interrupted after everything was written")
    said += _put_back(root)
    beside = root / (LATEST_FILE + NEW)
    if beside.exists():
        if str(latest(root)) == _named_by(beside):
            beside.replace(root / LATEST_FILE)
        else:
            beside.unlink()
    return said


def _is_written(partial: Path) -> bool:
    """Whether all is there: its state is written last."""
    try:
        state = read_state(partial)
    except CheckpointError:
        return False
    return state.files is not None and shortcoming(partial, state) is None


def _put_back(root: Path) -> list[str]:
    """What was moved aside for something that did not come."""
    said = []
    for aside in sorted(root.glob(f"global_step_*{REPLACED}")):
        final = aside.with_name(aside.name.removesuffix(REPLACED))
        if _NAME.fullmatch(final.name) and not final.exists():
            aside.rename(final)
            said.append(f"{final} was restored: a save of the same step was interrupted")
    return said


# ------------------------------------------------------------------------------------------------------------ writing


def _digested(folder: Path, digest_files: DigestFiles) -> dict[str, Digest]:
    """Of every file that was written. Raises OSError for one that cannot be read."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    found = digest_files(folder, names)
    for name in names:
        if not isinstance(found.get(name), Digest):
            raise OSError(None, f"{name}: {found.get(name, 'not there')}")
    return {name: digest for name, digest in found.items() if isinstance(digest, Digest)}


def _put_in_place(partial: Path, final: Path) -> None:
    """Gives `partial` its name, and makes it the latest."""
    root, aside = final.parent, final.with_name(final.name + REPLACED)
    beside = root / (LATEST_FILE + NEW)
    own_files.write(beside, str(step_of(final)), durable=True)
    if final.exists():
        final.rename(aside)
    partial.rename(final)
    _sync(root)
    beside.replace(root / LATEST_FILE)
    _sync(root)
    if aside.exists():
        _remove(aside)


def _clear(root: Path) -> None:
    """What killed saves have left."""
    for left_over in [*root.glob(f"global_step_*{PARTIAL}"), *root.glob(f"global_step_*{REMOVED}")]:
        shutil.rmtree(left_over, ignore_errors=True)
    for aside in root.glob(f"global_step_*{REPLACED}"):  # what took its place is there: see `_put_back`
        _remove(aside)


def _remove(folder: Path) -> None:
    """Under another name first: what is half deleted must not look like a checkpoint."""
    doomed = folder.with_name(folder.name + REMOVED)
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        folder.rename(doomed)
    except OSError:  # it is in use, or the folder is not ours: it stays, whole
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _require_shards(folder: Path) -> None:
    """Raises CheckpointError unless every file that the checkpoints in `folder` refer to is there."""
    from trainer.learner.dcp import INDEX, shards_of  # torch

    for metadata in folder.glob(f"*/{INDEX}"):
        names = shards_of(metadata.parent)
        missing = [name for name in names if not (metadata.parent / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{len(missing)} of {len(names)} shards of {metadata.parent} were written elsewhere: {missing[0]}",
                hint="set trainer.default_local_dir to a folder that all nodes share",
            )


def _write_durably(path: Path, text: str) -> None:
    """On disk before anything refers to it, and never half there under its name."""
    beside = path.with_name(path.name + NEW)
    own_files.write(beside, text, durable=True)
    beside.replace(path)
    _sync(path.parent)


def _flush(folder: Path) -> None:
    """All files and names below `folder` onto the disk. The ranks have done so with their shards, so that is quick."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of folders, on some file systems
            raise
    finally:
        os.close(handle)
