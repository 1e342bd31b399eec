"""`state.json` and digests: what was written is read, and nothing else; whatever else stands there is one line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.checkpoints import LATEST_FILE, NEW, latest, recover
from trainer.data.dataset import load_prompts
from trainer.data.loader import PromptLoader
from trainer.digests import Digest, dealt, misfit, of_file, of_files
from trainer.errors import CheckpointError
from trainer.ppo import Progress
from trainer.state import LARGEST, STATE_FILE, State, parse, read_state, to_json

COUNTS = st.integers(0, LARGEST - 1)
NAMES = st.lists(
    st.text(min_size=1).filter(lambda part: part not in (".", "..") and not set(part) & set("/\0")), min_size=1
)
STATES = st.builds(
    State,
    st.builds(Progress, COUNTS, st.floats(0, 1e9)),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**64 - 1)),
    st.none() | st.dictionaries(NAMES.map("/".join), st.builds(Digest, COUNTS, st.integers(0, 2**32 - 1)), min_size=1),
    COUNTS,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["step", "kl_coef", "data", "saved", "files", "crc32", "other"])


@given(STATES)
def test_what_is_written_is_read(state: State) -> None:
    assert parse(to_json(state)) == state


def reads(text: str) -> State | None:
    """A state of sound numbers, or None after an error of one line."""
    try:
        state = parse(text)
    except ValueError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert "\n" not in said and len(said) < 300
        return None
    assert type(state.progress.step) is int and math.isfinite(state.progress.kl_coef) and state.progress.kl_coef >= 0
    assert all(type(value) is int for value in state.data.values())
    return state


@given(st.text())
def test_any_text(text: str) -> None:
    reads(text)


@given(JSON | st.dictionaries(KEYS, JSON))
def test_any_json(value: Any) -> None:
    reads(json.dumps(value))


@given(STATES, KEYS, JSON)
def test_any_field_of_another_kind(state: State, name: str, value: Any) -> None:
    record = json.loads(to_json(state)) | {name: value}
    if name != "crc32":
        del record["crc32"]  # as an older version, or somebody by hand
    reads(json.dumps(record))


@given(STATES, st.data())
def test_a_changed_byte_is_found(state: State, data: st.DataObject) -> None:
    text = to_json(state).encode()
    place, bit = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 7))
    changed = text[:place] + bytes([text[place] ^ (1 << bit)]) + text[place + 1 :]
    found = reads(changed.decode("utf-8", "replace"))
    assert found is None or found == state  # a blank between two words may be another blank


NO_STATES = [
    *("[]", "{}", "7", "[" * 100_000),
    '{"step": ' + "9" * 5000 + "}",
    '{"step": 1, "kl_coef": 1' + "0" * 400 + ', "data": {}}',
    '{"step": true, "kl_coef": 0.5, "data": {}}',
    '{"step": 1, "kl_coef": NaN, "data": {}}',
    '{"step": 1, "kl_coef": -1, "data": {}}',
    '{"step": 1, "data": {}}',
    '{"step": 1, "kl_coef": 0.5, "data": {"batch": 1.5}}',
    '{"step": 1, "kl_coef": 0.5, "data": {}, "files": {"../x": "1:00000000"}}',
    '{"step": 1, "kl_coef": 0.5, "data": {}, "files": {"x": 1}}',
]


@pytest.mark.parametrize("text", NO_STATES, ids=range(len(NO_STATES)))
def test_what_is_no_state(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"cannot read .*state\.json: ") as caught:
        read_state(tmp_path)
    assert "resume" in caught.value.hint


def vast(path: Path) -> None:
    """It takes no room on the disk."""
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize("make", [os.mkfifo, vast])
def test_a_pipe_or_a_vast_file_is_not_read(make: Callable[[Path], object], tmp_path: Path) -> None:
    """Who opens a pipe waits for ever."""
    folder = tmp_path / "global_step_1"
    folder.mkdir()
    for path in (folder / STATE_FILE, tmp_path / LATEST_FILE, tmp_path / (LATEST_FILE + NEW)):
        make(path)
    with pytest.raises(CheckpointError, match=r"is not a file|bytes"):
        read_state(folder)
    assert latest(tmp_path) is None
    assert recover(tmp_path) == [] and not (tmp_path / (LATEST_FILE + NEW)).exists()


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(CheckpointError, match="it is not text"):
        read_state(tmp_path)


# ----------------------------------------------------------------------------------------------------- data position


NO_POSITIONS: list[dict[str, int]] = [
    *({}, {"epoch": 0}, {"batch": 1}),
    *({"epoch": -1, "batch": 0}, {"epoch": 0, "batch": 10**18}, {"epoch": 2**63, "batch": 0}),
]


@pytest.mark.parametrize("data", NO_POSITIONS)
def test_a_position_that_is_none(parquet: Path, tiny_model: str, data: dict[str, int]) -> None:
    from transformers import AutoTokenizer

    from trainer.config.schema import DataConfig

    rows = load_prompts([str(parquet / "train.parquet")], DataConfig(), AutoTokenizer.from_pretrained(tiny_model))
    loader = PromptLoader(rows, 4, pad_id=0, shuffle=False, seed=0, drop_last=True)
    with pytest.raises(CheckpointError, match="data position") as caught:
        loader.load_state_dict(data)
    assert caught.value.hint


# ------------------------------------------------------------------------------------------------------------ digests


@given(st.builds(Digest, COUNTS, st.integers(0, 2**32 - 1)))
def test_a_digest_is_read_as_it_was_written(digest: Digest) -> None:
    assert Digest.parse(str(digest)) == digest


@given(st.from_regex(r"\d{1,18}:[0-9a-f]{8}", fullmatch=True) | st.text() | JSON)
@example("\u0664:00000000")
@example("07:00000000")
@example("7:0000000a")
def test_any_text_is_a_digest_or_none(text: Any) -> None:
    is_one = isinstance(text, str) and re.fullmatch("(0|[1-9][0-9]*):[0-9a-f]{8}", text, re.ASCII) is not None
    if is_one:
        assert str(Digest.parse(text)) == text
    else:
        with pytest.raises(ValueError, match="is no digest"):
            Digest.parse(text)


def test_digests_of_files(tmp_path: Path) -> None:
    content = os.urandom(2**22 + 17)  # more than one read
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "small").write_bytes(b"123456789")
    os.mkfifo(tmp_path / "pipe")
    assert of_file(tmp_path / "small") == Digest(9, 0xCBF43926)  # the check value of CRC-32
    found = of_files(tmp_path, ["large", "small", "pipe", "none"])
    assert found["pipe"] == "not a file" and found["none"] == "No such file or directory"
    written = {name: digest for name, digest in found.items() if isinstance(digest, Digest)}
    assert misfit(written, found) is None
    (tmp_path / "large").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert (
        misfit(written, of_files(tmp_path, list(written)))
        == "large has changed since it was written: its checksum differs"
    )
    (tmp_path / "large").write_bytes(content[:-1])
    assert "has 4,194,320 bytes, and had 4,194,321" in str(misfit(written, of_files(tmp_path, list(written))))
    assert misfit(written, {}) == "large: not there"


def test_files_are_dealt_to_those_who_wrote_them() -> None:
    names = [f"{role}/__{rank}_0.distcp" for role in ("actor", "critic") for rank in range(4)] + ["actor/.metadata"]
    assert [len(share) for share in dealt(names, 4)] == [3, 2, 2, 2]
    assert dealt(names, 4)[3] == ["actor/__3_0.distcp", "critic/__3_0.distcp"]
    assert sorted(name for share in dealt(names, 3) for name in share) == sorted(names)
