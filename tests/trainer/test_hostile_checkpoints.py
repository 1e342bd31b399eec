"""Checkpoints that somebody else has made: none runs code, none names a file outside of itself, each has one error."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint.metadata import Metadata

from tests.trainer.conftest import Words
from trainer import checkpoints, config, export, replay
from trainer.data.reading import read_data
from trainer.errors import CheckpointError, TrainerError
from trainer.learner import dcp as dcp_files
from trainer.learner.checkpoint import read_tensors, require_optimizer
from trainer.local import LocalPool
from trainer.ppo import Progress
from trainer.records import Metrics
from trainer.run import train
from trainer.state import State
from trainer.tracking import Tracker

SCALAR = "optimizer.param_groups.0.lr"  # what is no tensor: torch.distributed.checkpoint keeps it as bytes
WEIGHT = "model.model.embed_tokens.weight"


class Evil:
    """Makes a folder where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def run(words: Words, *changes: str) -> Metrics:
    settings_ = config.load(words(*changes)).config
    with closing(LocalPool()) as pool:
        return train(settings_, pool, read_data(settings_), Tracker([]))


@pytest.fixture(scope="module")
def saved(words: Words, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, with the checkpoint of its only step and the capsule of the next, which names it."""
    folder = tmp_path_factory.mktemp("saved")
    here = f"trainer.default_local_dir={folder / 'run'}"
    run(words, here, "trainer.save_freq=1")
    capsule = (f"trainer.capsule_dir={folder}", "trainer.capsule_weights=checkpoint", "trainer.total_training_steps=2")
    run(words, here, *capsule)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder that a test may damage."""
    shutil.copytree(saved / "run", tmp_path / "run")
    return tmp_path / "run"


def metadata_of(role_folder: Path) -> Metadata:
    with (role_folder / ".metadata").open("rb") as file:
        found: Metadata = pickle.load(file)
    return found


def rewrite(role_folder: Path, metadata: object) -> None:
    (role_folder / ".metadata").write_bytes(pickle.dumps(metadata))


def put(role_folder: Path, name: str, value: bytes, **storage: object) -> None:
    """`value` behind the shard's end, as what the checkpoint holds under `name`."""
    metadata = metadata_of(role_folder)
    shard = role_folder / "__0_0.distcp"
    for index, info in metadata.storage_data.items():
        if index.fqn == name:
            metadata.storage_data[index] = replace(
                info, **{"offset": shard.stat().st_size, "length": len(value), **storage}
            )
    with shard.open("ab") as file:
        file.write(value)
    rewrite(role_folder, metadata)


def torch_bytes(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def in_metadata(actor: Path, mark: Path) -> None:
    rewrite(actor, Evil(mark))


def beside_true_metadata(actor: Path, mark: Path) -> None:
    rewrite(actor, replace(metadata_of(actor), planner_data=Evil(mark)))


def in_a_scalar(actor: Path, mark: Path) -> None:
    put(actor, SCALAR, torch_bytes(Evil(mark)))


def in_a_tensor(actor: Path, mark: Path) -> None:
    put(actor, WEIGHT, torch_bytes(Evil(mark)))


HOSTILE = (in_metadata, beside_true_metadata, in_a_scalar, in_a_tensor)


@pytest.fixture(params=HOSTILE, ids=[each.__name__ for each in HOSTILE])
def mark(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """The folder that a hostile checkpoint in `folder` makes if it can; its digests are the attacker's own."""
    made = tmp_path / "was-here"
    for role in ("actor", "critic"):
        if role == "critic" and request.param is in_a_tensor:
            continue
        request.param(folder / "global_step_1" / role, made)
    (folder / "global_step_1" / "state.json").write_text(
        '{"step": 1, "kl_coef": 0.001, "data": {"epoch": 0, "batch": 0}}'
    )
    return made


def test_resume_runs_nothing(words: Words, folder: Path, mark: Path) -> None:
    with pytest.raises(TrainerError) as caught:
        run(words, f"trainer.default_local_dir={folder}", "trainer.total_training_steps=2")
    assert not mark.exists()
    assert isinstance(caught.value, CheckpointError) and "global_step_1" in caught.value.message and caught.value.hint


def test_export_runs_nothing(folder: Path, mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = export.main([str(folder / "global_step_1"), "--output", str(tmp_path / "out")])
    assert not mark.exists()
    if code:  # what is not of the model is not read
        errors = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if not line.startswith("note:")]
        assert errors == ["error", "hint"]


@pytest.mark.parametrize("named", ["by the capsule", "on the command line"])
def test_replay_runs_nothing(
    saved: Path, folder: Path, mark: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    capsule = str(saved / "step_2.capsule")
    if named == "by the capsule":  # which was written beside the original
        hidden = saved / "hidden"
        (saved / "run/global_step_1").rename(hidden)
        shutil.copytree(folder / "global_step_1", saved / "run/global_step_1")
        try:
            code = replay.main([capsule, "--stage", "actor_loss"])
        finally:
            shutil.rmtree(saved / "run/global_step_1")
            hidden.rename(saved / "run/global_step_1")
    else:
        code = replay.main([capsule, "--stage", "actor_loss", "--checkpoint", str(folder / "global_step_1")])
    assert not mark.exists()
    errors = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if not line.startswith("note:")]
    assert code == 1 and errors == ["error", "hint"]


def test_megatron_reads_nothing_that_runs(folder: Path, mark: Path) -> None:
    """What it does on rank 0: every tensor of the checkpoint."""
    actor = folder / "global_step_1/actor"
    with suppress(CheckpointError):
        require_optimizer(actor)
        read_tensors(actor)
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_saving_looks_at_runs_nothing(tmp_path: Path) -> None:
    def write(partial: str) -> None:
        actor = Path(partial) / "actor"
        dcp.save({"weight": torch.ones(2)}, checkpoint_id=actor, no_dist=True)
        in_metadata(actor, tmp_path / "was-here")

    with pytest.raises(CheckpointError):
        checkpoints.save(tmp_path / "run", State(Progress(1, 0.0), {}), write, keep=None)
    assert not (tmp_path / "was-here").exists()


# ------------------------------------------------------------------------------------------- what else one can write


def reads(actor: Path) -> str:
    """What `read_tensors` says of a checkpoint."""
    with pytest.raises(CheckpointError) as caught:
        read_tensors(actor)
    assert str(actor) in caught.value.message and caught.value.hint and "\n" not in caught.value.message
    return caught.value.message


def rewrite_by_getattr(role_folder: Path, metadata: Metadata, names: Mapping[Any, tuple[Any, str]]) -> None:
    """With each of `names` as `getattr` of those: so Python 3.11.0 to 3.11.3 pickle members of enums."""

    class ByName(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            known = isinstance(value, Hashable) and value in names
            return (getattr, names[value]) if known else NotImplemented

    content = io.BytesIO()
    ByName(content).dump(metadata)
    assert b"getattr" in content.getvalue()
    (role_folder / ".metadata").write_bytes(content.getvalue())


def test_an_index_of_an_older_python_is_read(folder: Path) -> None:
    actor = folder / "global_step_1/actor"
    before = read_tensors(actor)
    rewrite_by_getattr(
        actor, metadata_of(actor), {each: (type(each), each.name) for each in kinds._MEM_FORMAT_ENCODING}
    )
    after = read_tensors(actor)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("asked", [(kinds._MEM_FORMAT_ENCODING, "__class__"), (Metadata, "__init__"), (dict, "get")])
def test_an_index_asks_for_no_other_attribute(folder: Path, asked: tuple[Any, str]) -> None:
    actor, planned = folder / "global_step_1/actor", Evil(folder)
    rewrite_by_getattr(actor, replace(metadata_of(actor), planner_data=planned), {planned: asked})
    assert "no index consists of" in reads(actor)


ANOTHER_PATH = b"N}" + pickle.SHORT_BINUNICODE + b"\x04_str" + pickle.SHORT_BINUNICODE + b"\x05/here" + b"s\x86"
SHARED: dict[str, tuple[object, bytes]] = {
    "a class of paths": (PurePosixPath, b"cpathlib\nPurePosixPath\n"),
    "a class of the index": (Metadata, b"ctorch.distributed.checkpoint.metadata\nMetadata\n"),
    "a function": (dcp_files._layout, b"ctorch.serialization\n_get_layout\n"),
    "a member of an enum": (
        kinds._MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT,
        b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n(I0\ntR",
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_an_index_changes_nothing_of_the_program(folder: Path, name: str) -> None:
    """Of a class, what a pickle sets holds for all of it: each path may be one that `export` then removes."""
    actor = folder / "global_step_1/actor"
    shared, named = SHARED[name]
    index = (actor / ".metadata").read_bytes()
    assert index[:1] == pickle.PROTO
    (actor / ".metadata").write_bytes(index[:2] + named + ANOTHER_PATH + pickle.BUILD + pickle.POP + index[2:])
    try:
        assert "which no index does" in reads(actor)
        assert "_str" not in vars(shared)
    finally:
        if "_str" in vars(shared):
            delattr(shared, "_str")


# Pairs of the same pair, forty deep: to hash it, as the key of a mapping is, takes 2**40 steps.
NESTED = b"N" + b"".join(pickle.BINPUT + bytes([n]) + pickle.BINGET + bytes([n]) + pickle.TUPLE2 for n in range(40))
HASHES = {
    "a key": b"}" + NESTED + b"Ns",
    "keys": b"}(" + NESTED + b"Nu",
    "a set": b"\x8f(" + NESTED + b"\x90",
    "a frozen set": b"(" + NESTED + b"\x91",
    "a mapping of the oldest kind": b"(" + NESTED + b"Nd",
    "an ordered mapping": b"ccollections\nOrderedDict\n](" + NESTED + b"N\x86e\x85R",
    "an enum": b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n" + NESTED + b"\x85R",
    "a layout": b"ctorch.serialization\n_get_layout\n" + NESTED + b"\x85R",
    "an attribute": b"cbuiltins\ngetattr\nctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
    + NESTED
    + b"\x86R",
}


@pytest.mark.parametrize("name", HASHES)
def test_an_index_that_nests_is_not_hashed(tmp_path: Path, name: str) -> None:
    """Else the reader has no end; the deadline is the test's own."""
    (tmp_path / ".metadata").write_bytes(pickle.PROTO + b"\x04" + HASHES[name] + b".")
    reads(tmp_path)


def test_a_length_that_is_damaged_takes_no_memory(tmp_path: Path) -> None:
    """A bytearray is filled before it is read: 200 GB of a machine that has them, and minutes."""
    (tmp_path / ".metadata").write_bytes(pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 2**28) + b".")
    tracemalloc.start()
    try:
        reads(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_no_file_outside_of_the_checkpoint_is_read(folder: Path, tmp_path: Path) -> None:
    actor = folder / "global_step_1/actor"
    secret = torch_bytes(torch.zeros(365, 64))
    (tmp_path / "secret").write_bytes(secret)
    for path in (str(tmp_path / "secret"), "../../../secret", "..", "", "."):
        put(actor, WEIGHT, b"", relative_path=path, offset=0, length=len(secret))
        assert "names a file outside it" in reads(actor)


@pytest.mark.parametrize("linked", ["actor/huggingface", "actor"])
def test_a_folder_that_is_a_link_is_not_exported(folder: Path, tmp_path: Path, linked: str) -> None:
    """What it leads to may be anybody's: a folder with credentials may have a `config.json`, too."""
    step = folder / "global_step_1"
    (step / linked).rename(tmp_path / "elsewhere")
    (step / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of"):
        export.export(step, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_to_a_checkpoint_is_as_good_as_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to(folder / "global_step_1")
    assert export.export(tmp_path / "newest", tmp_path / "out") > 0


def test_a_shard_that_is_a_link_or_no_file(folder: Path, tmp_path: Path) -> None:
    actor = folder / "global_step_1/actor"
    shard = actor / "__0_0.distcp"
    shard.rename(tmp_path / "elsewhere")
    os.mkfifo(shard)  # who opens it for reading waits for ever
    assert "__0_0.distcp" in reads(actor)
    shard.unlink()
    assert "__0_0.distcp" in reads(actor)
    (actor / ".metadata").unlink()
    os.mkfifo(actor / ".metadata")
    assert ".metadata" in reads(actor)


def test_tensors_larger_than_their_files_are_not_made(folder: Path) -> None:
    """Else one line of the index takes all memory."""
    actor = folder / "global_step_1/actor"
    metadata = metadata_of(actor)
    weight, vast = metadata.state_dict_metadata[WEIGHT], torch.Size([2**30, 2**8])
    chunk = replace(weight.chunks[0], sizes=vast)
    metadata.state_dict_metadata[WEIGHT] = replace(weight, size=vast, chunks=[chunk])
    rewrite(actor, metadata)
    assert "larger than its files" in reads(actor)


def test_a_gap_between_pieces_holds_nothing_of_this_process(folder: Path) -> None:
    """One half twice is as much as the whole."""
    actor = folder / "global_step_1/actor"
    metadata = metadata_of(actor)
    weight = metadata.state_dict_metadata[WEIGHT]
    rows, width = weight.size
    half = replace(weight.chunks[0], sizes=torch.Size([rows, width // 2]))
    metadata.state_dict_metadata[WEIGHT] = replace(weight, chunks=[half, half])
    rewrite(actor, metadata)
    for _ in range(20):  # what was in memory before
        torch.full((rows, width), 7.0)
    assert not read_tensors(actor, WEIGHT)[WEIGHT][:, width // 2 :].any()


ODD: list[Callable[[Metadata], object]] = [
    lambda metadata: 7,
    lambda metadata: {"state_dict_metadata": {}},
    lambda metadata: replace(metadata, state_dict_metadata=[1]),
    lambda metadata: replace(metadata, state_dict_metadata={1: 2}),
    lambda metadata: replace(metadata, state_dict_metadata={WEIGHT: 3}),
    lambda metadata: replace(
        metadata,
        state_dict_metadata={
            name: replace(entry, chunks=[]) if name == WEIGHT else entry
            for name, entry in metadata.state_dict_metadata.items()
        },
    ),
    lambda metadata: replace(metadata, storage_data=None),
    lambda metadata: replace(metadata, storage_data={"x": "y"}),
    lambda metadata: replace(metadata, storage_data={}),
    lambda metadata: replace(
        metadata, storage_data={k: replace(v, offset=-1) for k, v in metadata.storage_data.items()}
    ),
    lambda metadata: replace(
        metadata, storage_data={k: replace(v, length="1") for k, v in metadata.storage_data.items()}
    ),
    lambda metadata: replace(
        metadata, storage_data={k: replace(v, transform_descriptors=["x"]) for k, v in metadata.storage_data.items()}
    ),
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_an_index_of_another_shape(folder: Path, number: int) -> None:
    actor = folder / "global_step_1/actor"
    rewrite(actor, ODD[number](metadata_of(actor)))
    reads(actor)


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_index_is_one_error(
    saved: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes changed, cut out and put in: it is read as it was meant, or it is an error of ours."""
    actor = saved / "run/global_step_1/actor"
    old = (actor / ".metadata").read_bytes()
    new = bytearray(old)
    for _ in range(data.draw(st.integers(1, 3))):
        place, size = data.draw(st.integers(0, len(old) - 1)), data.draw(st.integers(0, 4))
        new[place : place + size] = data.draw(st.binary(max_size=4))
    copy = tmp_path_factory.mktemp("damaged")
    (copy / "__0_0.distcp").symlink_to(actor / "__0_0.distcp")
    (copy / ".metadata").write_bytes(new)
    with suppress(CheckpointError):
        read_tensors(copy, "model.")


def test_a_flipped_byte_is_told_and_the_checkpoint_before_is_taken(words: Words, tmp_path: Path) -> None:
    """Through the whole way of a run: the ranks read what they wrote."""
    here = (f"trainer.default_local_dir={tmp_path}", "trainer.save_freq=1")
    run(words, *here, "trainer.total_training_steps=2")
    shard = tmp_path / "global_step_2/critic/__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    settings_, notes = config.load(words(*here, "trainer.total_training_steps=2")).config, list[str]()
    tracker = Tracker([])
    tracker.note = notes.append  # type: ignore[method-assign]
    with closing(LocalPool()) as pool:
        last = train(settings_, pool, read_data(settings_), tracker)
    assert notes == [
        f"skipped {tmp_path}/global_step_2: critic/__0_0.distcp has changed since it was written: its checksum differs",
        f"resumed from {tmp_path}/global_step_1 at step 1",
    ]
    assert last["training/global_step"] == 2.0
    assert shard.read_bytes() != bytes(content), "it was saved again"
