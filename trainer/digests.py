"""Checksums of files, to know on reading what was written: a size and a CRC-32 each.

They find what a disk or a copy does to a file, and no forger. CRC-32 sees every single changed byte, and is 1.4 times
as fast as the fastest of hashlib (`docs/results/checkpoints.md`).
"""

from __future__ import annotations

import re
import stat
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 2**22  # read at once: large enough that zlib lets go of the interpreter, small enough for a cache
_WRITER = re.compile(r"__(\d+)_")  # how torch.distributed.checkpoint calls the shards of a rank


@dataclass(frozen=True)
class Digest:
    """What a file is known by.

    >>> Digest.parse("18:cbf43926")
    Digest(size=18, crc=3421780262)
    """

    size: int  # bytes
    crc: int

    def __str__(self) -> str:
        return f"{self.size}:{self.crc:08x}"

    @classmethod
    def parse(cls, text: object) -> Digest:
        """Raises ValueError for anything that `str` does not give."""
        match = re.fullmatch(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{8})", text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r:.40} is no digest")
        return cls(int(match[1]), int(match[2], 16))


Found = Mapping[str, Digest | str]  # by name, or why a file cannot be read
DigestFiles = Callable[[Path, Sequence[str]], Found]


def of_files(folder: Path, names: Sequence[str]) -> dict[str, Digest | str]:
    """Of each file below `folder`."""
    return {name: of_file(folder / name) for name in names}


def of_file(path: Path) -> Digest | str:
    """Of one file, or why it cannot be read."""
    size = crc = 0
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would let its reader wait for ever
            return "not a file"
        with path.open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            while count := file.readinto(buffer):
                crc, size = zlib.crc32(buffer[:count], crc), size + count
    except OSError as error:
        return error.strerror or str(error)
    return Digest(size, crc)


def misfit(written: Mapping[str, Digest], found: Found) -> str | None:
    """What is wrong with the first file that is not what was written; None if all are."""
    for name, digest in written.items():
        there = found.get(name, "not there")
        if isinstance(there, str):
            return f"{name}: {there}"
        if there.size != digest.size:
            return f"{name} has {there.size:,} bytes, and had {digest.size:,} when it was written"
        if there != digest:
            return f"{name} has changed since it was written: its checksum differs"
    return None


def dealt(names: Sequence[str], ranks: int) -> list[list[str]]:
    """Files to read for each rank: a shard to the rank of its number, which has it in memory, the others in turn.

    >>> dealt(["actor/.metadata", "actor/__0_0.distcp", "actor/__1_0.distcp"], 2)
    [['actor/.metadata', 'actor/__0_0.distcp'], ['actor/__1_0.distcp']]
    """
    shares: list[list[str]] = [[] for _ in range(ranks)]
    for place, name in enumerate(names):
        writer = _WRITER.match(name.rpartition("/")[2])
        shares[(int(writer[1]) if writer else place) % ranks].append(name)
    return shares
