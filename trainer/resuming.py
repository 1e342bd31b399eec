"""Which checkpoint a run goes on from: the newest that is what was written; what was wrong with newer ones is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from trainer import checkpoints, digests
from trainer.config.outputs import folders_of
from trainer.config.schema import TrainerConfig
from trainer.digests import DigestFiles
from trainer.errors import CheckpointError
from trainer.state import STATE_FILE, State, read_state

READ_ALONE = 2**33  # bytes: what one process compares in seconds

_OUTPUT = "trainer.default_local_dir"

Note = Callable[[str], None]


def choose(
    config: TrainerConfig, digest_files: DigestFiles = digests.of_files, note: Note = lambda text: None
) -> tuple[Path, State] | None:
    """The checkpoint to go on from by `resume_mode`, every file of it read and compared; None to start anew.

    Says by `note` what it passes over, and why. Raises CheckpointError: the one that was asked for is none, or is
    damaged; or there are some, and all are damaged.
    """
    if config.resume_mode == "disable":
        return None
    if config.resume_mode == "resume_path":
        return _asked_for(Path(config.resume_from_path or "").expanduser(), digest_files, note)
    root = Path(config.default_local_dir).expanduser()
    if _OUTPUT in folders_of(config):  # else it is not locked: another run may be saving there
        for line in checkpoints.recover(root):
            note(line)
    faults: dict[Path, str] = {}
    for folder, state in _newest_first(root):
        why = state if isinstance(state, str) else damage(folder, state, digest_files, note)
        if why is None:
            assert isinstance(state, State)
            _say(faults, root, checkpoints.step_of(folder), note)
            return folder, state
        faults[folder] = why
    damaged = [folder for folder in faults if (folder / STATE_FILE).exists()]
    _say(faults, root, 0, note)
    if damaged:
        raise CheckpointError(
            f"none of the {len(damaged)} checkpoint(s) in {root} can be read: {damaged[0].name}: {faults[damaged[0]]}",
            hint="trainer.resume_mode=disable starts over, and replaces those whose steps it saves",
        )
    return None


def done(config: TrainerConfig, steps: int) -> int | None:
    """The step of a checkpoint that leaves nothing of `steps` to do, where this process can tell by itself.

    None if there is none, and where the ranks have to look: at one that is damaged, or too large to be read by one.
    """
    is_asked_for = config.resume_mode == "resume_path"
    if config.resume_mode == "disable":
        return None
    root = Path((config.resume_from_path or "") if is_asked_for else config.default_local_dir).expanduser()
    folder = root if is_asked_for else _newest(root)
    try:
        state = read_state(folder) if folder is not None else None
    except CheckpointError:
        return None
    if folder is None or state is None or state.files is None or state.progress.step < steps:
        return None
    if sum(digest.size for digest in state.files.values()) > READ_ALONE:
        return None
    return state.progress.step if damage(folder, state, digests.of_files) is None else None


def nothing_left(step: int, steps: int) -> str:
    return f"nothing left to do: step {step} of {steps} is done; trainer.val_only=True validates it"


def way_on(config: TrainerConfig) -> str:
    """What the same command would go on from, for people; or that there is nothing, and why."""
    newest = _newest(Path(config.default_local_dir).expanduser())
    if newest is not None:
        return f"trainer.resume_mode=auto continues from {newest}"
    yet = "" if config.save_freq < 1 else " yet"
    return f"no checkpoint was written{yet}: trainer.save_freq={config.save_freq}"


def damage(folder: Path, state: State, digest_files: DigestFiles, note: Note = lambda text: None) -> str | None:
    """What is wrong with the files of a checkpoint; None if they are what was written. Reads all of them."""
    if state.files is None:
        note(f"{folder} was written without digests: its files are used unchecked")
        return None
    if (why := checkpoints.shortcoming(folder, state)) is not None:
        return why
    return digests.misfit(state.files, digest_files(folder, list(state.files)))


def require_whole(folder: Path, note: Note = lambda text: None) -> None:
    """Of a checkpoint that is read by one process. Raises CheckpointError.

    Without a `state.json`, as where somebody has taken the actor's folder alone, nothing is known.
    """
    if not (folder / STATE_FILE).exists():
        note(f"{folder} has no {STATE_FILE}: its files are used unchecked")
        return
    _asked_for(folder, digests.of_files, note)


def _asked_for(folder: Path, digest_files: DigestFiles, note: Note) -> tuple[Path, State]:
    if not (folder / STATE_FILE).is_file():
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no {STATE_FILE}",
            hint="give a global_step_N folder as trainer.resume_from_path",
        )
    state = read_state(folder)
    if (why := damage(folder, state, digest_files, note)) is not None:
        raise CheckpointError(f"the checkpoint {folder} is damaged: {why}", hint="choose another global_step_N folder")
    return folder, state


def _newest(root: Path) -> Path | None:
    """What `choose` would choose, as far as names and sizes tell; nothing is changed."""
    for folder, state in _newest_first(root):
        if isinstance(state, State) and checkpoints.shortcoming(folder, state) is None:
            return folder
    return None


def _newest_first(root: Path) -> list[tuple[Path, State | str]]:
    """Every checkpoint with its state, or why it has none. The one that is named as the latest stands first."""
    named = checkpoints.latest(root)

    def age(each: tuple[Path, State | str]) -> tuple[bool, float, int]:
        folder, state = each
        step = checkpoints.step_of(folder)
        # One that nothing is known of is looked at before the others, to be told of.
        return step == named, state.saved if isinstance(state, State) else math.inf, step

    return sorted(checkpoints.states(root), key=age, reverse=True)


def _say(faults: dict[Path, str], root: Path, chosen: int, note: Note) -> None:
    """What was passed over, of what is newer than the step that was chosen."""
    for partial in sorted(root.glob(f"global_step_*{checkpoints.PARTIAL}")):
        faults[partial] = "its save was interrupted"
    for folder, why in faults.items():
        if checkpoints.step_of(folder) >= chosen:
            note(f"skipped {folder}: {why}")
