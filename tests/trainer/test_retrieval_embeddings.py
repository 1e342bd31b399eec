"""Embeddings on disk: whole or not there, of one corpus and encoder, in a file that others can read."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.trainer.runs import DEADLINE_S
from trainer.errors import DataError
from trainer.retrieval.embeddings import Identity, Vectors, others, store, stored

IDENTITY = Identity("ab12", "cd34", 5, 3)
VECTORS: Vectors = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = IDENTITY.beside(str(tmp_path / "corpus.jsonl"))
    store(path, IDENTITY, [VECTORS[:2], VECTORS[2:]])
    return path


def test_what_is_stored_is_read_where_it_lies(file: Path) -> None:
    found = stored(file, IDENTITY)
    assert isinstance(found, np.memmap) and (found == VECTORS).all()
    assert [each.name for each in file.parent.iterdir()] == ["corpus.jsonl.ab12-cd34.safetensors"]


def test_any_reader_of_safetensors_reads_it(file: Path) -> None:
    with safe_open(file, "np") as read:
        assert (read.get_tensor("embeddings") == VECTORS).all()
        assert read.metadata() == {"corpus": "ab12", "encoder": "cd34", "passages": "5", "width": "3"}


def test_none_is_none(tmp_path: Path) -> None:
    assert stored(tmp_path / "gone.safetensors", IDENTITY) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(IDENTITY, encoder="ef56"), "its encoder is ef56, not cd34"),
        (replace(IDENTITY, corpus="ef56"), "its corpus is ef56, not ab12"),
        (replace(IDENTITY, passages=4), "its passages is 4, not 5"),
    ],
)
def test_anothers_are_not_read(tmp_path: Path, other: Identity, said: str) -> None:
    """Given a file that was renamed, then what stands in it counts."""
    path = tmp_path / "renamed.safetensors"
    store(path, other, [VECTORS[: other.passages]])
    with pytest.raises(DataError, match=said) as caught:
        stored(path, IDENTITY)
    assert caught.value.hint == "delete it: it is made again from the corpus"


def test_what_is_not_whole_is_not_read(file: Path) -> None:
    """However much of it is there, as of a copy that was broken off."""
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"can't be used: it"):
            stored(file, IDENTITY)
    file.write_bytes(whole + b"\0")
    with pytest.raises(DataError, match=f"it has {len(whole) + 1:,} bytes of {len(whole):,}"):
        stored(file, IDENTITY)
    file.write_bytes(b"\xff" * len(whole))
    with pytest.raises(DataError, match="it has no header of embeddings"):
        stored(file, IDENTITY)


def test_what_ends_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Vectors]:
        yield VECTORS[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "e.safetensors", IDENTITY, broken())
    assert [*tmp_path.iterdir()] == []


KILLED = """
import sys
from pathlib import Path
import numpy as np
from trainer.retrieval.embeddings import Identity, store

def half():
    yield np.ones((100_000, 3), np.float32)
    print("half", flush=True)
    sys.stdin.read()

store(Path("e.safetensors"), Identity("ab12", "cd34", 200_000, 3), half())
"""


def test_what_is_killed_in_the_middle_is_never_read(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        process.kill()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left.name.endswith(".part")
    identity = Identity("ab12", "cd34", 5, 3)
    assert stored(tmp_path / "e.safetensors", identity) is None
    store(tmp_path / "e.safetensors", identity, [VECTORS])
    assert (stored(tmp_path / "e.safetensors", identity) == VECTORS).all()  # type: ignore[union-attr]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written: No such file or directory") as caught:
        store(tmp_path / "gone" / "e.safetensors", IDENTITY, [VECTORS])
    assert "beside the corpus" in caught.value.hint
    with pytest.raises(
        DataError, match=r"cannot be written: they take 4,\d+,000,000,000,000 bytes, and [\d,]+ are free"
    ):
        store(tmp_path / "e.safetensors", replace(IDENTITY, passages=10**15, width=1), [VECTORS])
    assert [*tmp_path.iterdir()] == []


def test_those_of_other_encoders_are_seen(file: Path) -> None:
    corpus = str(file.parent / "corpus.jsonl")
    store(replace(IDENTITY, encoder="ef56").beside(corpus), IDENTITY, [VECTORS])
    store(replace(IDENTITY, corpus="ef56").beside(corpus), IDENTITY, [VECTORS])
    assert others(corpus, IDENTITY) == ["corpus.jsonl.ab12-ef56.safetensors"]
