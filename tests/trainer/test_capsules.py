"""The format of capsules: records as JSON with tensors beside it, and weights in pieces."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.batches import train_batch
from trainer import capsules, config, typed_json
from trainer.capsules import Capsule, Held, ModelState, Seen, Stored, add_tensors, finish
from trainer.errors import CapsuleError
from trainer.records import Row, Scores, TrainBatch, UpdateReport

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@dataclasses.dataclass(frozen=True)
class Everything:
    """One field of each kind that records have."""

    number: float
    count: int
    text: str
    yes: bool
    maybe: Row | None
    tensor: torch.Tensor
    none: torch.Tensor | None
    rows: tuple[Row, ...]
    steps: tuple[dict[str, float], ...]
    lists: list[list[int]]
    tensors: Mapping[str, torch.Tensor]
    left_out: int = 7


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def through_json(record: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(typed_json.encode(record, tensors))
    return typed_json.decode(type(record), json.loads(text), tensors)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(allow_nan=False),
    st.integers(),
    st.text(),
    st.booleans(),
    st.builds(Row, st.integers(), st.text(), st.text(), PLAIN, st.dictionaries(st.text(), PLAIN, max_size=2)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=4),
    st.lists(st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=2), max_size=2),
)
def test_what_goes_in_comes_out(
    number: float, count: int, text: str, yes: bool, row: Row, reals: list[float], steps: list[dict[str, float]]
) -> None:
    tensor = torch.tensor(reals)
    made = Everything(
        number,
        count,
        text,
        yes,
        row if yes else None,
        tensor,
        None,
        (row, row),
        tuple(steps),
        [[count], []],
        {text: tensor},
    )
    assert same(through_json(made), made)


def test_a_batch_and_a_configuration() -> None:
    batch = dataclasses.replace(train_batch(), weights_BT=torch.ones(8, 5, dtype=torch.bfloat16))
    assert same(through_json(batch), batch)
    settings = config.load(["trainer.total_training_steps=3", "global_profiler.steps=[1,2]"]).config
    assert same(through_json(settings), settings)


def test_what_json_cannot_hold_is_named() -> None:
    row = Row(3, "a", "b", "c", {"when": {1, 2}})
    with pytest.raises(typed_json.NotPlain, match=r"extra_info\.when is a set"):
        typed_json.encode(row, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"number": "x"}, "number is no float"),
        ({"rows": [{"index": 1}]}, r"rows\.0: .*missing"),
        ({"tensor": "nowhere"}, "no tensor nowhere"),
        ({"more": 1}, "more is not known"),
        ({"lists": [[1], 2]}, r"lists\.1 is no list"),
        ({"text": None}, "text is null"),
        ({"rows": [None]}, r"rows\.0 is null"),
        ({"count": True}, "count is no int"),
        ({"number": False}, "number is no float"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    made = Everything(1.0, 1, "", True, None, torch.ones(1), None, (), (), [], {})
    tensors: dict[str, torch.Tensor] = {}
    data = typed_json.encode(made, tensors) | change
    with pytest.raises(typed_json.Unfit, match=said):
        typed_json.decode(Everything, data, tensors)


def test_a_field_that_an_older_file_lacks_has_its_default() -> None:
    made = Everything(1.0, 1, "", True, None, torch.ones(1), None, (), (), [], {}, left_out=9)
    tensors: dict[str, torch.Tensor] = {}
    data = typed_json.encode(made, tensors)
    del data["left_out"]
    assert typed_json.decode(Everything, data, tensors).left_out == 7


def test_weights_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of several types, one larger than a piece, one that shares another's bytes; and each is found again."""
    monkeypatch.setattr(capsules, "CHUNK_BYTES", 100)
    one = torch.arange(10.0)
    tensors = {
        "b": one,
        "a": one,
        "z": torch.ones(60),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "0": torch.tensor(2),
    }
    path = tmp_path / "x.partial"
    with zipfile.ZipFile(path, "w") as file:
        add_tensors(file, "weights/actor", iter(tensors.items()))
        add_tensors(file, "weights/actor-like", iter({"b": torch.zeros(1)}.items()))
    with zipfile.ZipFile(path) as file:
        assert [name for name in file.namelist() if "like" not in name] == [
            f"weights/actor-0000{i}.safetensors" for i in range(3)
        ]
    stored = Stored(path, "weights/actor")
    assert all(torch.equal(stored.pop(name), tensor) for name, tensor in tensors.items())

    capsule = Capsule(finish(path, seen(train_batch())))
    assert same(dict(capsule.tensors("weights/actor")), tensors)
    assert not capsule.has("weights/critic") and same(capsule.seen.batch, train_batch())
    capsule.close()


def seen(batch: TrainBatch) -> Seen:
    report = UpdateReport(({"actor/pg_loss": 0.5, "grad_norm": float("nan")},), (), 1e-3, 0)
    return Seen(
        config=config.load([]).config,
        reward_source=None,
        total_steps=1,
        step=1,
        kl_coef=0.0,
        next_kl_coef=0.0,
        batch=batch,
        scores=Scores(torch.ones(len(batch)), {}),
        order={"actor": [[0, 1]]},
        actor=report,
        critic=None,
        held=Held("cpu", "fp32", {"actor": ModelState({"b": "00"})}),
        moved={},
        contents="all",
        checkpoint=None,
    )


def test_rank_0_on_a_machine_with_another_disk(tmp_path: Path) -> None:
    with pytest.raises(CapsuleError, match="another machine") as caught:
        finish(tmp_path / "step_1.capsule.partial", seen(train_batch()))
    assert "all nodes share" in caught.value.hint


def test_a_row_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    batch = train_batch()
    prompts = batch.experience.rollout.prompts
    rows = (dataclasses.replace(prompts.rows[0], extra_info={"raw": b"x"}), *prompts.rows[1:])
    rollout = dataclasses.replace(batch.experience.rollout, prompts=dataclasses.replace(prompts, rows=rows))
    odd = dataclasses.replace(batch, experience=dataclasses.replace(batch.experience, rollout=rollout))
    (tmp_path / "a.partial").touch()
    with pytest.raises(CapsuleError, match=r"prompts\.rows\.0\.extra_info\.raw is a bytes"):
        finish(tmp_path / "a.partial", seen(odd))


def test_two_fields_that_are_one_tensor(tmp_path: Path) -> None:
    """Without a KL penalty, the rewards are the scores."""
    batch = train_batch()
    batch = dataclasses.replace(batch, rewards_BT=batch.experience.scores_BT)
    with zipfile.ZipFile(tmp_path / "a.partial", "w"):
        pass
    capsule = Capsule(finish(tmp_path / "a.partial", seen(batch)))
    assert same(capsule.seen.batch, batch)
    capsule.close()
