"""Embeddings of a corpus on disk, beside it: made once, whole or not there.

The file is `CORPUS.CORPUSDIGEST-ENCODERDIGEST.safetensors`, with the same digests in it. It is written under another
name and renamed, so that nobody reads half of it, and read where it lies, without a copy in memory.

N passages, D numbers of each.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer import own_files
from trainer.config.model_folder import file_size
from trainer.errors import DataError

Vectors = np.ndarray[Any, np.dtype[np.float32]]
NAME = "embeddings"  # of the tensor
_LENGTH = 8  # bytes, little-endian, that say how long the header is
_MOST_HEADER = 2**16  # bytes; ours has a few hundred
_ALIGNED = 64


@dataclass(frozen=True)
class Identity:
    """Whose embeddings they are. Two files of one identity hold the same."""

    corpus: str  # digest
    encoder: str  # digest
    passages: int  # N
    width: int  # D

    def beside(self, corpus: str) -> Path:
        """Where they lie, of the corpus file at that path.

        >>> str(Identity("ab12", "cd34", 3, 768).beside("/data/wiki.jsonl"))
        '/data/wiki.jsonl.ab12-cd34.safetensors'
        """
        return Path(f"{corpus}.{self.corpus}-{self.encoder}.safetensors")

    def header(self) -> bytes:
        """Of a safetensors file with one tensor."""
        said = {
            "__metadata__": {key: str(value) for key, value in asdict(self).items()},
            NAME: {"dtype": "F32", "shape": [self.passages, self.width], "data_offsets": [0, self.size]},
        }
        text = json.dumps(said).encode()
        text += b" " * (-(_LENGTH + len(text)) % _ALIGNED)
        return len(text).to_bytes(_LENGTH, "little") + text

    @property
    def size(self) -> int:
        """Bytes of the vectors."""
        return 4 * self.passages * self.width


def stored(path: Path, identity: Identity) -> Vectors | None:
    """The vectors of shape [N, D] in the file, which stays where it is; None where there is no file.

    Raises DataError for one that is not whole, or not of `identity`.
    """
    wanted = identity.header()
    try:
        size = file_size(path)
        with path.open("rb") as file:
            header = _header(file)
        if header == wanted and size == len(wanted) + identity.size:
            return np.memmap(path, np.float32, "r", len(wanted), (identity.passages, identity.width))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            f"the embeddings {path} cannot be read: {error.strerror or error}", hint="may this user read that file?"
        ) from error
    except ValueError as error:
        raise _unusable(path, str(error)) from error
    if header != wanted:
        raise _unusable(path, _difference(header, identity))
    raise _unusable(path, f"it has {size:,} bytes of {len(wanted) + identity.size:,}")


def store(path: Path, identity: Identity, parts: Iterable[Vectors]) -> None:
    """Writes `parts`, which are all rows in their order; the file is there once it is whole.

    Raises DataError where it cannot be written; then nothing is left of it.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        if (free := shutil.disk_usage(path.parent).free) < identity.size:
            raise OSError(None, f"they take {identity.size:,} bytes, and {free:,} are free")
        with own_files.new(part) as file:
            file.write(identity.header())
            for rows in parts:
                file.write(np.ascontiguousarray(rows, np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"the embeddings {path} cannot be written: {error.strerror or error}",
            hint="they lie beside the corpus: link or copy it into a folder with room that this user may write to",
        ) from error
    finally:
        part.unlink(missing_ok=True)


def others(corpus: str, identity: Identity) -> list[str]:
    """Names of files beside the corpus that are its embeddings by other encoders."""
    place = Path(corpus)
    start = f"{place.name}.{identity.corpus}-"
    names: Sequence[str] = [each.name for each in place.parent.iterdir() if each.name.startswith(start)]
    return sorted(name for name in names if name.endswith(".safetensors") and identity.encoder not in name)


def _header(file: BinaryIO) -> bytes:
    """As it stands in the file. Raises ValueError for what is none."""
    length = file.read(_LENGTH)
    if len(length) < _LENGTH or int.from_bytes(length, "little") > _MOST_HEADER:
        raise ValueError("it has no header of embeddings")
    return length + file.read(int.from_bytes(length, "little"))


def _difference(header: bytes, identity: Identity) -> str:
    """What stands in the file instead of `identity`."""
    try:
        said = json.loads(header[_LENGTH:])["__metadata__"]
        for key, value in asdict(identity).items():
            if said[key] != str(value):
                return f"its {key} is {said[key]}, not {value}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "it has no header of embeddings"
    return "its header is of another form"


def _unusable(path: Path, why: str) -> DataError:
    return DataError(f"the embeddings {path} can't be used: {why}", hint="delete it: it is made again from the corpus")
