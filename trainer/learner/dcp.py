"""torch.distributed.checkpoint, read as data: what is in a checkpoint that somebody sent runs nothing.

Two of its parts are pickles: the index `.metadata`, and in the shards whatever is no tensor. torch unpickles both
without a limit (`FileSystemReader.read_metadata`, `DefaultLoadPlanner.load_bytes`). Here the index is made of the few
classes that it consists of, and is looked through before anything follows it; the rest goes through torch's
`weights_only` unpickler.
"""

from __future__ import annotations

import io
import pickle
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from trainer.config.model_folder import file_size
from trainer.errors import CheckpointError

INDEX = ".metadata"
_PATHS = ("Path", "PosixPath", "PurePath", "PurePosixPath")


def _encoding(value: Any) -> Any:
    """A member of the only enum. It looks its value up, and to hash what is nested takes for ever."""
    _require(type(value) is int)
    return kinds._MEM_FORMAT_ENCODING(value)


def _member(kind: Any, name: Any) -> Any:
    """What an index of Python 3.11.0 to 3.11.3 calls `getattr`: a member of that enum by its name, nothing else."""
    if kind is not _encoding or type(name) is not str or name not in kinds._MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError("it asks for an attribute, which no index consists of")
    return kinds._MEM_FORMAT_ENCODING.__members__[name]


def _layout(name: Any) -> Any:
    _require(type(name) is str)
    return torch.serialization._get_layout(name)


def _mapping() -> dict[str, Any]:
    return {}


def _require(is_so: bool) -> None:
    if not is_so:
        raise pickle.UnpicklingError("it nests, as no index does")


_CLASSES: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _member,
    **{
        (kinds.__name__, name): getattr(kinds, name)
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata"),
            *("BytesStorageMetadata", "ChunkStorageMetadata"),
        )
    },
    (kinds.__name__, kinds._MEM_FORMAT_ENCODING.__name__): _encoding,
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _layout,
    **{(module, name): PurePosixPath for module in ("pathlib", "pathlib._local") for name in _PATHS},
    ("collections", "OrderedDict"): _mapping,
}
# What a pickle raises that is not one, is cut short, or puts its classes together in another way.
_MALFORMED = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError),
    *(RuntimeError, MemoryError, OverflowError, AssertionError, struct.error),
)


_RECORDS = frozenset(
    {Metadata, MetadataIndex, StorageMeta, kinds.TensorProperties, TensorStorageMetadata, BytesStorageMetadata}
    | {ChunkStorageMetadata, filesystem._StorageInfo}
)


_Unpickler: Any = pickle._Unpickler  # in Python; typeshed describes the one in C


class _IndexUnpickler(_Unpickler):  # type: ignore[misc]
    """Knows the classes of an index, and no others; fills records that it has made, and nothing else.

    A pickle may set attributes of whatever it can name. Of a class that holds for the whole process: with another
    `PurePosixPath._str`, each path of the program is the attacker's. The unpickler in C cannot be told to refuse that.
    """

    # Without sets, which hash what is in them, and bytearrays, which take all the memory that a damaged length names.
    dispatch = {  # noqa: RUF012 - read by the unpickler, never changed
        code: load
        for code, load in _Unpickler.dispatch.items()
        if code not in b"".join((pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.DICT, pickle.BYTEARRAY8))
    }

    def load_build(self) -> None:
        inst = self.stack[-2]
        if type(inst) not in _RECORDS:
            raise pickle.UnpicklingError(f"it changes a {type(inst).__name__}, which no index does")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def load_setitem(self) -> None:
        _require(_is_key(self.stack[-2]))
        super().load_setitem()

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        _require(all(map(_is_key, self.stack[::2])))
        super().load_setitems()

    dispatch[pickle.SETITEMS[0]] = load_setitems

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        try:
            return _CLASSES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no index consists of") from None


def _is_key(key: Any) -> bool:
    """A name, or a place of one."""
    if type(key) is MetadataIndex:
        return (
            type(key.fqn) is str
            and type(key.offset) in (torch.Size, type(None))
            and type(key.index) in (int, type(None))
        )
    return type(key) is str


class Reader(dcp.FileSystemReader):
    """torch's, with an index that is data, and shards that are files beside it."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Raises CheckpointError."""
        metadata = read_index(Path(self.path))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class Planner(dcp.DefaultLoadPlanner):
    """torch's, with values that are data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        plain = torch.load(value, weights_only=True)  # raises for whatever needs code
        again = io.BytesIO()
        torch.save(plain, again)
        again.seek(0)
        super().load_bytes(read_item, again)  # which puts it in its place


def load(state: dict[str, Any], folder: Path) -> None:
    """`state` filled in place from `folder`, re-sharded to this run's ranks. Collective. Raises what torch does."""
    dcp.load(state, storage_reader=Reader(folder), planner=Planner())


def load_alone(state: dict[str, Any], folder: Path) -> None:
    """The same in one process without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is meant to be
        dcp.load(state, storage_reader=Reader(folder), planner=Planner(), no_dist=True)


def read_index(folder: Path) -> Metadata:
    """What tensors a checkpoint holds, and where; its files are there and long enough. Raises CheckpointError."""
    with _readable(folder):
        metadata = _unpickled(folder)
        _look_through(metadata, folder)
        return metadata


def shards_of(folder: Path) -> list[str]:
    """The files that the index in `folder` names, whether they are there or not. Raises CheckpointError."""
    with _readable(folder):
        return sorted(_ends(_unpickled(folder), folder))


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(folder, f"{INDEX}: {error.strerror or error}") from error
    except _MALFORMED as error:
        said = " ".join((str(error) or type(error).__name__).split())
        raise _unreadable(folder, f"{INDEX} is not an index: {said:.200}") from error


def _unpickled(folder: Path) -> Metadata:
    file_size(folder / INDEX)  # raises OSError for a pipe, which would let its reader wait for ever
    with (folder / INDEX).open("rb") as file:
        metadata = _IndexUnpickler(file).load()
    if type(metadata) is not Metadata or not isinstance(metadata.state_dict_metadata, dict):
        raise ValueError("it holds something else")
    return metadata


def tensors_in(folder: Path) -> Mapping[str, TensorStorageMetadata]:
    """Those that a checkpoint holds, by name. Raises CheckpointError."""
    found = read_index(folder).state_dict_metadata
    return {name: entry for name, entry in found.items() if isinstance(entry, TensorStorageMetadata)}


def _unreadable(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(f"cannot read the checkpoint {folder}: {why}", hint="choose another global_step_N folder")


# ------------------------------------------------------------------------- the index, before anything follows it


def _look_through(metadata: Metadata, folder: Path) -> None:
    """Raises CheckpointError for what leads out of the folder or is not there, ValueError for another kind of thing."""
    there = 0
    for name, end in _ends(metadata, folder).items():
        try:
            size = file_size(folder / name)
        except OSError as error:
            raise _unreadable(folder, f"{name}: {error.strerror or error}") from error
        if end > size:
            raise _unreadable(folder, f"{name} has {size:,} bytes, and should have {end:,}: it was cut short")
        there += size
    _require_shapes(metadata)
    held = sum(map(_bytes_of, metadata.state_dict_metadata.values()))
    if held > there:
        raise _unreadable(folder, f"its tensors take {held:,} bytes, which is larger than its files, {there:,}")


def _ends(metadata: Metadata, folder: Path) -> dict[str, int]:
    """The files that the index names, and how far into each it points."""
    if not isinstance(metadata.storage_data, dict):
        raise ValueError("it does not say where anything is")
    ends: dict[str, int] = {}
    for index, info in metadata.storage_data.items():
        if type(index) is not MetadataIndex or type(info) is not filesystem._StorageInfo:
            raise ValueError("what it says of files is of another kind")
        name = info.relative_path
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise _unreadable(folder, f"it names a file outside it, {name!r:.80}")
        if not (_is_count(info.offset) and _is_count(info.length)):
            raise ValueError(f"a place in {name:.80} is no number")
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"{name:.80} is encoded")
        ends[name] = max(ends.get(name, 0), info.offset + info.length)
    return ends


def _require_shapes(metadata: Metadata) -> None:
    """Raises ValueError unless each entry has a name, a place, a type, and pieces that are all of it."""
    placed = {index.fqn for index in metadata.storage_data}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(name, str) or name not in placed:
            raise ValueError(f"it does not say where {name!r:.80} is")
        if type(entry) is BytesStorageMetadata:
            continue
        if type(entry) is not TensorStorageMetadata or not isinstance(entry.properties.dtype, torch.dtype):
            raise ValueError(f"{name:.80} is of another kind")
        if not (_is_shape(entry.size, len(entry.size)) and all(_is_piece(chunk, entry.size) for chunk in entry.chunks)):
            raise ValueError(f"{name:.80} has no shape")
        if sum(prod(chunk.sizes) for chunk in entry.chunks) != prod(entry.size):
            raise ValueError(f"{name:.80} is not whole")


def _is_piece(chunk: ChunkStorageMetadata, size: torch.Size) -> bool:
    shaped = _is_shape(chunk.offsets, len(size)) and _is_shape(chunk.sizes, len(size))
    return shaped and all(a + b <= c for a, b, c in zip(chunk.offsets, chunk.sizes, size, strict=True))


def _is_shape(value: object, dimensions: int) -> bool:
    return type(value) is torch.Size and len(value) == dimensions and all(map(_is_count, value))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _bytes_of(entry: object) -> int:
    return prod(entry.size) * entry.properties.dtype.itemsize if isinstance(entry, TensorStorageMetadata) else 0
