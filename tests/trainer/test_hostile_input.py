"""YAML, JSON lines, samples and servers' words that others wrote: what they say, or one error of ours, and soon."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devkit import cli
from devkit.doctor.onnode import retriever
from devkit.errors import UsageError
from tests.pace import stretched
from trainer import main_agentic, replay
from trainer.agent.contract import Away
from trainer.agent.others import Unknown
from trainer.agent.tools import bundle
from trainer.config.roll_file import read
from trainer.config.yaml_text import DEEPEST, MOST_REPEATED, require_plain
from trainer.data.prepare import prepare
from trainer.data.recipes import RECIPES
from trainer.env import openenv
from trainer.errors import CapsuleError, DataError, TrainerError
from trainer.retrieval.embeddings import Identity, stored
from trainer.retrieval.encoder import _require_pooling

DEEP = "[" * 100_000
ROLL = Path(__file__).parents[1] / "config" / "roll" / "agentic_demo" / "frozen_lake.yaml"
SOON_S = stretched(10.0)
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
# Of what takes a tenth of a second each; of what takes ten milliseconds.
FEW, SOME = (settings(max_examples=most, suppress_health_check=SHARED) for most in (10, 40))
WORDS = st.text(max_size=6) | st.sampled_from(
    ["", "a.b", "${x}", "${oc.env:HOME}", "${", "null", "1e999", "\ud800", "\0"]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -1, 0, 2**63])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def tower(levels: int, width: int = 9) -> str:
    """Aliases of aliases: a few lines that stand for width ** levels values."""
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


BAD_YAML = {
    "brackets without end": "x: " + "[" * 20_000,
    "aliases of aliases": tower(9),
    "an alias of itself": "x: &x [*x]",
    "no alias": "x: *y",
    "two documents": "a: 1\n---\nb: 2",
    "a list": "- 1",
    "a text": "x",
    "a number of many digits": "x: " + "9" * 5000,
    "a date": "x: 2020-01-01",
    "bytes": "x: !!binary aGk=",
    "an object": "x: !!python/object/apply:os.system [true]",
    "keys of any kind": "1: a\n? [b]\n: c",
    "no UTF-8": b"x: \xff",
    "a null byte": "x: \0",
    "a reference that does not end": "x: ['${']",
}


@contextmanager
def refused(kind: type[Exception]) -> Iterator[None]:
    """What may end with such an error, which says something."""
    try:
        yield
    except kind as error:
        if not str(error) or not getattr(error, "hint", "it has none"):
            raise AssertionError("an error without a word") from error


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Nobody will ever write into it."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


# ---- YAML


@pytest.mark.parametrize("kind", BAD_YAML)
@pytest.mark.parametrize("place", ["itself", "its defaults"])
def test_a_file_of_roll(kind: str, place: str, tmp_path: Path) -> None:
    """Read, or refused in a line: here through the whole command."""
    text, file = BAD_YAML[kind], tmp_path / "f.yaml"
    if place == "its defaults":
        (tmp_path / "sub").mkdir()
        file.write_text("defaults:\n  - sub/other@_here_\n")
        file = tmp_path / "sub" / "other.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.monotonic()
    code = main_agentic.main(["--config_path", str(tmp_path), "--config_name", "f", "--check"])
    assert code == 2 and time.monotonic() - began < SOON_S


@pytest.mark.parametrize("named", ["sub/other@_here_", "sub/other.yaml@_here_", "/sub/other.yaml", "sub: other.yaml"])
def test_defaults_are_looked_at_however_they_are_named(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.yaml").write_text(tower(5))
    (tmp_path / "f.yaml").write_text(f"defaults:\n  - {named}\n")
    assert main_agentic.main(["--config_path", str(tmp_path), "--config_name", "f", "--check"]) == 2
    assert "other.yaml: its aliases stand for more than" in capsys.readouterr().err


def test_a_file_of_roll_that_is_a_pipe(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe.rename(pipe.with_name("f.yaml"))
    assert main_agentic.main(["--config_path", str(pipe.parent), "--config_name", "f", "--check"]) == 2
    assert "not a file" in capsys.readouterr().err


KNOWN = sorted(set(yaml.safe_load(ROLL.read_text())) - {"hydra", "defaults"})


@FEW
@given(said=st.dictionaries(st.sampled_from(KNOWN) | WORDS, JSON, max_size=4))
@example(said={"actor_infer": "${"})
@example(said={"rollout_batch_size": {}, "adv_estimator": [], "num_gpus_per_node": 0, "sequence_length": "x"})
@example(
    said={"train_env_manager": {"tags": [[1]], "group_size": 0}, "custom_envs": {"SimpleSokoban": {"env_type": []}}}
)
@example(said={"custom_envs": {1: {}}, "val_env_manager": {"tags": [], "num_groups_partition": [float("nan")]}})
def test_any_values_in_a_file_of_roll(said: Mapping[str, Any], tmp_path: Path) -> None:
    try:
        text = yaml.safe_dump(said)
        (tmp_path / "f.yaml").write_text(text)
    except (yaml.YAMLError, UnicodeEncodeError):
        return
    with refused(TrainerError):
        main_agentic.resolved(str(tmp_path), "f", [])


@FEW
@given(cut=st.integers(0, 10**6), more=st.text(alphabet="[]{}&*!|>-:#'\"%@`, \n\tab", max_size=8))
def test_a_damaged_file_of_roll(cut: int, more: str, tmp_path: Path) -> None:
    text = ROLL.read_text().replace("defaults:", "others:")
    place = cut % len(text)
    (tmp_path / "f.yaml").write_text(text[:place] + more + text[place + len(more) :])
    with refused(TrainerError):
        read(str(tmp_path), "f")


@pytest.mark.parametrize("kind", BAD_YAML)
def test_a_file_of_tools(kind: str, tmp_path: Path) -> None:
    text, began = BAD_YAML[kind], time.monotonic()
    entry = "tools: [{class_name: a.B, config: {type: native}, tool_schema: {"
    for before, after in (("", ""), (entry, "}}]")):
        raw = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "t.yaml").write_bytes(before.encode() + raw + after.encode())
        with refused(bundle.Broken):
            found = bundle.entries_of(str(tmp_path / "t.yaml"))
            assert json.loads(json.dumps(found)) == found
    assert time.monotonic() - began < SOON_S


@SOME
@given(entry=st.dictionaries(st.sampled_from(["class_name", "config", "tool_schema"]), JSON), whole=st.booleans())
def test_any_values_in_a_file_of_tools(entry: dict[str, Any], whole: bool, tmp_path: Path) -> None:
    known = {"class_name": "a.B", "config": {"type": "native"}} if whole else {}
    try:
        (tmp_path / "t.yaml").write_text(yaml.safe_dump({"tools": [known | entry]}))
    except (yaml.YAMLError, UnicodeEncodeError):
        return
    with refused(bundle.Broken):
        bundle.Bundle(tuple(bundle.entries_of(str(tmp_path / "t.yaml"))), {}).to_text()


def test_a_file_of_tools_that_is_a_pipe(pipe: Path) -> None:
    with pytest.raises(bundle.Broken, match="not a file"):
        bundle.entries_of(str(pipe))


def test_what_people_write_is_within_the_limits() -> None:
    require_plain("[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))
    require_plain("a: &a {x: 1}\nb:\n" + "".join(f"  - {{<<: *a, n: {i}}}\n" for i in range(500)))
    require_plain("\n".join(f"k{i}: v" for i in range(10 * MOST_REPEATED)))


# ---- JSON lines


@pytest.mark.parametrize("line", [DEEP, '{"question": ' + DEEP, "9" * 5000, '"x"', "\ufeff{}", "{"])
def test_a_line_of_published_data(line: str, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text(line)
    with pytest.raises(DataError, match=r"d\.jsonl line 1"):
        prepare("gsm8k", [str(tmp_path / "d.jsonl")], tmp_path / "out", split="train")


RECORD = st.dictionaries(st.sampled_from(["question", "answer", "problem", "solution", "golden_answers"]) | WORDS, JSON)


@SOME
@given(task=st.sampled_from(sorted(RECIPES)), record=RECORD, half=st.booleans())
@example(task="nq", record={"question": "a", "answer": ["\ud800"]}, half=False)
@example(task="gsm8k", record={"question": "\ud800", "answer": "#### 1"}, half=False)
def test_any_record_of_published_data(task: str, record: dict[str, Any], half: bool, tmp_path: Path) -> None:
    whole = {"question": "a", "answer": ["b"] if task in ("nq", "hotpotqa") else "#### 1"}
    known = (whole | {"problem": "a", "solution": "\\boxed{1}"}) if half else {}
    (tmp_path / "d.jsonl").write_text(json.dumps(known | record) + "\n")
    with refused(DataError):
        assert prepare(task, [str(tmp_path / "d.jsonl")], tmp_path / "out", split="train")


TURN = {
    **{"sampled": "a", "sampled_ids": [1], "logp": [-0.5], "answered": "x", "answered_ids": [2], "reward": 0.0},
    **{"seconds": 0.1, "action": "Left", "observation": "x"},
}
SAMPLE = {
    **{"row": "r", "prompt": "p", "ended": "terminated", "score": 0.0, "seed": 1, "sample": 0, "observation": "x"},
    **{"turns": [TURN], "environment": {"env": "frozen_lake", "kwargs": {}, "sha256": None}},
}
LINES = ("{}", "[]", DEEP, "9" * 5000, "\0", "\ud7ff")
ENVIRONMENT = st.fixed_dictionaries(
    {},
    optional={
        "env": st.sampled_from(["sokoban", "several", "search", "tools", "x"]) | JSON,
        "kwargs": JSON,
        "files": JSON,
    },
)


@FEW
@given(
    change=st.fixed_dictionaries({}, optional={name: JSON for name in SAMPLE if name != "turns"} | {"asked": JSON}),
    turn=st.fixed_dictionaries({}, optional=dict.fromkeys(TURN, JSON)),
    environment=ENVIRONMENT,
    trust=st.booleans(),
)
@example(change={"seed": -1}, turn={}, environment={"kwargs": {"size": 10**9}}, trust=False)
@example(change={"seed": 10**400, "score": 10**400}, turn={"reward": 10**400}, environment={}, trust=False)
@example(change={"row": "\ud800"}, turn={"sampled": "\ud800", "logp": [float("nan")]}, environment={}, trust=False)
def test_any_sample(
    change: dict[str, Any], turn: dict[str, Any], environment: dict[str, Any], trust: bool, tmp_path: Path
) -> None:
    """Nothing here names a file or a server that is there."""
    known = SAMPLE["environment"] | environment  # type: ignore[operator]
    sample = SAMPLE | {"environment": known, "turns": [TURN | turn]} | change
    file = tmp_path / "3.jsonl"
    file.write_text(json.dumps(sample) + "\n")
    words = ["--row", "1", *(["--trust"] if trust else [])]
    for verb in (["show", str(file)], ["show", str(file), "--row", "1"], ["replay", str(file), *words]):
        code, errors = cli.main(["agent", *verb]), capture.take()
        assert code in (0, 1, 2) and "internal error" not in errors, errors


class Capture:
    """What went to stderr since it was last asked."""

    fixture: pytest.CaptureFixture[str]

    def take(self) -> str:
        return self.fixture.readouterr().err


capture = Capture()


@pytest.fixture(autouse=True)
def _captured(capsys: pytest.CaptureFixture[str]) -> None:
    capture.fixture = capsys


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_sample(line: str, tmp_path: Path) -> None:
    (tmp_path / "3.jsonl").write_text(line)
    for verb in ("show", "replay"):
        assert cli.main(["agent", verb, str(tmp_path / "3.jsonl"), "--row", "1"]) == UsageError.exit_code
        assert "line 1" in capture.take()


# ---- servers


def answering(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    answer = SimpleNamespace(status=200, reason="OK", body=body)
    monkeypatch.setattr(openenv, "requests", SimpleNamespace(ask=lambda *_a: answer, TooLong=ValueError))


SCHEMA = st.fixed_dictionaries(
    {"action": st.just({}), "observation": st.just({})}
    | dict.fromkeys(
        ("action", "observation"),
        JSON
        | st.fixed_dictionaries(
            {
                "properties": JSON
                | st.dictionaries(WORDS, JSON | st.fixed_dictionaries({"type": JSON, "anyOf": JSON})),
                "required": JSON,
            }
        ),
    )
)


@SOME
@given(said=SCHEMA | JSON, action=st.none() | WORDS, fields=st.none() | st.dictionaries(WORDS, JSON, max_size=2))
def test_any_schema_of_an_openenv_server(said: Any, action: str | None, fields: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        answering(patch, json.dumps(said).encode())
        with refused(Unknown):
            openenv.form_of(openenv.schema_at("http://x/schema", "ws://x"), action, None, fields, "ws://x")


@pytest.mark.parametrize("body", [DEEP.encode(), b"\xff", b"", b"9" * 5000, b'{"action": ' + DEEP.encode()])
def test_a_schema_that_is_none(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, body)
    with pytest.raises(Unknown, match="is no OpenEnv server"):
        openenv.schema_at("http://x/schema", "ws://x")


class Socket:
    """A server's end, which says one thing."""

    close_code = None

    def __init__(self, text: str) -> None:
        self._text = text

    async def send_json(self, said: Any) -> None: ...

    async def receive(self) -> Any:
        return SimpleNamespace(type=aiohttp.WSMsgType.TEXT, data=self._text)


def said_to(text: str) -> None:
    """A step, answered so: an observation, or one of the errors that a conversation is dropped for."""
    made = openenv.OpenEnv("ws://x", form=openenv.Form("message", ("echo",)))
    made._socket = Socket(text)  # type: ignore[assignment]
    with refused(Away):
        try:
            made._text("step", asyncio.run(made._exchanged("step", {})))
        except openenv._Said as error:
            openenv._why(error.body)
            raise made._away("step", error) from error


@SOME
@given(
    kind=st.sampled_from(["observation", "error", "other"]) | JSON,
    data=JSON
    | st.fixed_dictionaries(
        {
            "observation": JSON | st.fixed_dictionaries({"echo": JSON}),
            "code": JSON | st.just("VALIDATION_ERROR"),
            "message": JSON,
            "errors": JSON | st.lists(st.fixed_dictionaries({"loc": JSON, "msg": JSON})),
        }
    ),
)
def test_any_answer_of_an_openenv_server(kind: Any, data: Any) -> None:
    said_to(json.dumps({"type": kind, "data": data}))


@pytest.mark.parametrize("text", [DEEP, "", "9" * 5000, '{"type": "observation", "data": ' + DEEP])
def test_an_answer_that_is_none(text: str) -> None:
    said_to(text)


def test_a_retriever_that_answers_brackets_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(status=200, reason="OK", read=lambda most: DEEP.encode())
    line = SimpleNamespace(request=lambda *_a: None, getresponse=lambda: answer, close=lambda: None)
    monkeypatch.setattr(retriever.http.client, "HTTPConnection", lambda *_a, **_k: line)
    with pytest.raises(ValueError, match="no JSON"):
        retriever._answer("http://x/retrieve", "POST", time.monotonic() + 5, {})


# ---- files that a run is pointed at


def test_an_encoders_pooling(pipe: Path, tmp_path: Path) -> None:
    """A file that says nothing of use is passed over, as one that is not there."""
    (tmp_path / "1_Pooling").mkdir()
    file = tmp_path / "1_Pooling" / "config.json"
    for text in (DEEP, "[]", "\0"):
        file.write_text(text)
        _require_pooling(str(tmp_path), "e5")
    pipe.rename(file) if not file.unlink() else None
    _require_pooling(str(tmp_path), "e5")


def test_a_capsule_that_is_a_pipe(pipe: Path) -> None:
    with pytest.raises(CapsuleError, match="not a file"):
        list(replay.replay(pipe))


@pytest.mark.parametrize("header", [DEEP.encode(), b"{}", b"\xff", b'{"__metadata__": []}', b""])
def test_a_header_of_embeddings(header: bytes, tmp_path: Path) -> None:
    file = tmp_path / "e.safetensors"
    file.write_bytes(len(header[:60_000]).to_bytes(8, "little") + header[:60_000])
    with pytest.raises(DataError, match="can't be used"):
        stored(file, Identity("a", "b", 5, 3))
