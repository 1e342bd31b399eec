"""Capsules: one file with all that a step saw and did, from which `trainer.replay` does any part of it again.

    step_7.capsule                       a zip, nothing in it compressed, and no pickle
      capsule.json                       `Seen`: configuration, rows, scores, order of rows, reports; `format` counts up
      batch.safetensors                  the tensors of `Seen`, named by where they stand
      weights/ROLE-00000.safetensors     the models before the step: actor, critic, reference
      optimizer/ROLE-00000.safetensors   the optimizers' state before the step, as PARAMETER:NAME
      identity/actor, identity/critic    configurations and tokenizer, as transformers reads them

Rank 0 begins the file before the step, the driver ends it after the step and gives it its name, so a file under that
name is whole.
"""

from __future__ import annotations

import json
import platform
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import error as ZlibError

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from trainer import own_files, typed_json
from trainer.config import tree
from trainer.config.choices import value_problem
from trainer.config.model_folder import file_size
from trainer.config.schema import Config
from trainer.errors import CapsuleError
from trainer.records import Scores, TrainBatch, UpdateReport
from trainer.shapes import require_parts, require_shapes

# What zipfile, json and safetensors raise for files that are cut short, encrypted, nested without end or no capsules.
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, NotImplementedError, OverflowError),
    *(struct.error, zipfile.BadZipFile, SafetensorError, ZlibError, MemoryError),
)
FORMAT = 1
PARTIAL = ".partial"
CHUNK_BYTES = 2**30  # of weights in one piece: what writing and reading hold in memory
Digests = Mapping[str, str]


@dataclass(frozen=True)
class ModelState:
    """A model before the step: what is in the file, and how to know it."""

    checksums: Digests  # of each whole tensor
    updates: int = 0  # of its schedule so far; 0 of one that is not trained
    steps: int = 0  # of its optimizer so far
    loss_scale: float | None = None  # of fp16 training
    good_steps: int = 0  # in a row, with that scale


@dataclass(frozen=True)
class Held:
    """What rank 0 says when it has begun the file."""

    device: str  # cuda | cpu
    dtype: str  # of the actor's computation: fp32 | bf16 | fp16
    models: Mapping[str, ModelState]  # by role


@dataclass(frozen=True)
class Seen:
    """All of one step but the weights."""

    config: Config
    reward_source: str | None
    total_steps: int
    step: int
    kl_coef: float  # before the step
    next_kl_coef: float
    batch: TrainBatch
    scores: Scores
    order: Mapping[str, list[list[int]]]  # by role, the rows of each optimizer step
    actor: UpdateReport | None
    critic: UpdateReport | None
    held: Held
    moved: Mapping[str, Mapping[str, float]]  # by role, the norm of each tensor's change in the step
    contents: str  # trainer.capsule_weights
    checkpoint: str | None  # the weights before the step, where they are in a checkpoint
    versions: Mapping[str, str] = field(default_factory=dict)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__}


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Raises CapsuleError if the system refuses to write `path`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise CapsuleError(
            f"cannot write the capsule {path}: {why}",
            hint="free space, or write less: trainer.capsule_freq, trainer.capsule_weights=model|checkpoint|none",
        ) from error


def name_of(step: int) -> str:
    return f"step_{step}.capsule"


def add_tensors(file: zipfile.ZipFile, stem: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """`stem`-00000.safetensors and so on, each of at most CHUNK_BYTES or one tensor."""
    piece: dict[str, Tensor] = {}
    size = count = 0
    for name, tensor in tensors:
        if piece and size + tensor.nbytes > CHUNK_BYTES:
            file.writestr(f"{stem}-{count:05}.safetensors", tensors_to_bytes(piece))
            piece, size, count = {}, 0, count + 1
        piece[name] = tensor.detach().cpu().contiguous().clone()  # a clone: tied tensors share their bytes
        size += tensor.nbytes
    if piece:
        file.writestr(f"{stem}-{count:05}.safetensors", tensors_to_bytes(piece))


def pieces(file: zipfile.ZipFile, stem: str) -> list[str]:
    """The entries that `add_tensors` wrote under `stem`, in order."""
    return sorted(name for name in file.namelist() if name.rpartition("-")[0] == stem)


def finish(partial: Path, seen: Seen) -> Path:
    """Adds what the step saw to the file that rank 0 has begun; gives its last name. Raises CapsuleError."""
    final = partial.with_name(partial.name.removesuffix(PARTIAL))
    if not partial.is_file():
        raise CapsuleError(
            f"rank 0 wrote {partial} on another machine",
            hint="set trainer.capsule_dir to a folder that all nodes share",
        )
    tensors: dict[str, Tensor] = {}
    try:
        data = typed_json.encode(seen, tensors)
    except typed_json.NotPlain as error:
        raise CapsuleError(
            f"a capsule cannot hold this step: {error}",
            hint="keep text, numbers, lists and mappings in the data's rows",
        ) from error
    with written(final):
        with own_files.changed(partial) as opened, zipfile.ZipFile(opened, "a") as file:
            file.writestr("batch.safetensors", tensors_to_bytes(tensors))
            file.writestr("capsule.json", json.dumps({"format": FORMAT, **data}, ensure_ascii=False))
        partial.replace(final)
    return final


class Capsule:
    """A capsule that is read. Raises CapsuleError, here and later, where the file is not whole or of another format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._read():
            file_size(path)  # a pipe would be waited for
            self._file = zipfile.ZipFile(path)
            data = json.loads(self._entry("capsule.json"))
            if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
                raise CapsuleError(
                    f"{path} has another format than {FORMAT}", hint="replay it with the version that wrote it"
                )
            tensors = tensors_from_bytes(self._entry("batch.safetensors"))
            self.seen: Seen = typed_json.decode(Seen, data, tensors)
            _require_values(self.seen.config)
            require_shapes(self.seen.batch, self.seen.scores, self.seen.order)
            require_parts(self.seen.batch, self.seen.config)

    @property
    def trusts_code(self) -> bool:
        """Whether the run took code that its models brought along."""
        config = self.seen.config
        return config.actor_rollout_ref.model.trust_remote_code or config.critic.model.trust_remote_code

    def distrust(self) -> None:
        """From now on nothing of the capsule says that code may be taken."""
        config = self.seen.config
        part, critic = config.actor_rollout_ref, config.critic
        part = replace(part, model=replace(part.model, trust_remote_code=False))
        critic = replace(critic, model=replace(critic.model, trust_remote_code=False))
        self.seen = replace(self.seen, config=replace(config, actor_rollout_ref=part, critic=critic))

    def tensors(self, stem: str) -> Iterator[tuple[str, Tensor]]:
        """The tensors that `add_tensors` wrote under `stem`, a piece at a time."""
        for entry in pieces(self._file, stem):
            with self._read():
                piece = tensors_from_bytes(self._entry(entry))
            yield from piece.items()

    def has(self, stem: str) -> bool:
        return bool(pieces(self._file, stem))

    def extract(self, section: str, folder: Path) -> None:
        """The files under `section`/ into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for entry in self._file.namelist():
            if entry.startswith(section + "/"):
                with self._read():
                    (folder / Path(entry).name).write_bytes(self._entry(entry))

    def close(self) -> None:
        self._file.close()

    def _entry(self, name: str) -> bytes:
        """As it is stored. What is compressed is none of ours, and may be a thousand times as large as the file."""
        info = self._file.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        return self._file.read(info)

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as error:
            said = getattr(error, "strerror", None) or str(error).strip("'\"") or type(error).__name__
            why = " ".join(said.split())[:300]
            raise CapsuleError(
                f"cannot read the capsule {self.path}: {why}",
                hint="give a complete step_N.capsule of this version; a .partial file belongs to a step that failed",
            ) from error


class Stored:
    """The tensors that `add_tensors` wrote into a file that is not finished, asked for in the order of writing."""

    def __init__(self, path: Path, stem: str) -> None:
        self._path = path
        with zipfile.ZipFile(path) as file:
            self._entries = iter(pieces(file, stem))
        self._piece: dict[str, Tensor] = {}

    def pop(self, name: str) -> Tensor:
        """Only the piece that `name` is in lies in memory."""
        while name not in self._piece:
            with zipfile.ZipFile(self._path) as file:
                self._piece |= tensors_from_bytes(file.read(next(self._entries)))
        return self._piece.pop(name)


def _require_values(config: Config) -> None:
    """Raises ValueError for a setting that no command could have."""
    for key, value in tree.flatten(config).items():
        if (problem := value_problem(key, value)) is not None:
            raise ValueError(f"config.{problem.message}")
