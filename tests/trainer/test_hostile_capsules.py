"""Capsules that somebody else has made: without being asked to, a replay runs nothing of their models' code."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from tests.trainer.conftest import Words
from trainer import config, replay
from trainer.capsules import Capsule
from trainer.data.reading import read_data
from trainer.errors import CapsuleError, TrainerError
from trainer.findings import STAGES
from trainer.local import LocalPool
from trainer.run import train
from trainer.tracking import Tracker

CHEAP = ("adv", "mini_batches")  # what needs no model


@pytest.fixture(scope="module")
def recorded(words: Words, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capsule with its models."""
    folder = tmp_path_factory.mktemp("recorded")
    settings_ = config.load(words(f"trainer.capsule_dir={folder}", "trainer.logger=[console]")).config
    with closing(LocalPool()) as pool:
        train(settings_, pool, read_data(settings_), Tracker([]))
    return folder / "step_1.capsule"


Change = Callable[[dict[str, bytes]], None]


def changed(recorded: Path, to: Path, change: Change) -> Path:
    """The capsule with other entries."""
    with zipfile.ZipFile(recorded) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    change(entries)
    with zipfile.ZipFile(to, "w") as new:
        for name, content in entries.items():
            new.writestr(name, content)
    return to


# ------------------------------------------------------------------------------------------------- code of their models


def hostile(mark: Path) -> Change:
    """A model and a tokenizer with code of their own, which makes a folder; and a capsule that says to trust it."""
    code = f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\n"
    own = {
        "evil_config.py": "from transformers import PretrainedConfig\nclass EvilConfig(PretrainedConfig):\n    pass\n",
        "evil_model.py": "from transformers import Qwen2ForCausalLM\nclass Evil(Qwen2ForCausalLM):\n    pass\n",
        "evil_tok.py": "from transformers import PreTrainedTokenizerFast as Fast\nclass Evil(Fast):\n    pass\n",
    }

    def change(entries: dict[str, bytes]) -> None:
        for role in ("actor", "critic"):
            for name, body in own.items():
                entries[f"identity/{role}/{name}"] = (code + body).encode()
            model = json.loads(entries[f"identity/{role}/config.json"])
            kinds = {"AutoConfig": "evil_config.EvilConfig", "AutoModel": "evil_model.Evil"}
            kinds["AutoModelForCausalLM"] = "evil_model.Evil"
            entries[f"identity/{role}/config.json"] = json.dumps(model | {"auto_map": kinds}).encode()
        words = json.loads(entries["identity/actor/tokenizer_config.json"])
        words |= {"auto_map": {"AutoTokenizer": [None, "evil_tok.Evil"]}, "tokenizer_class": "Evil"}
        entries["identity/actor/tokenizer_config.json"] = json.dumps(words).encode()
        data = json.loads(entries["capsule.json"])
        data["config"]["actor_rollout_ref"]["model"]["trust_remote_code"] = True
        data["config"]["critic"]["model"]["trust_remote_code"] = True
        entries["capsule.json"] = json.dumps(data).encode()

    return change


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers copies of a model's code goes into a folder of the test's own."""
    import transformers.dynamic_module_utils as dynamic

    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))


def test_no_stage_runs_the_code_of_its_models(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "was-here"
    capsule = changed(recorded, tmp_path / "evil.capsule", hostile(mark))
    assert replay.main([str(capsule)]) == 0  # by transformers' own classes of the same name
    assert not mark.exists()
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith("note: the capsule asks for trust_remote_code") and "--trust-remote-code" in note


def test_a_folder_that_the_capsule_names(
    recorded: Path, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given one without models: they are looked for where it says, here in a folder with code."""
    mark, folder = tmp_path / "was-here", tmp_path / "model"

    def change(entries: dict[str, bytes]) -> None:
        hostile(mark)(entries)
        folder.mkdir()
        for name in [name for name in entries if name.startswith(("identity/", "weights/", "optimizer/"))]:
            content = entries.pop(name)
            if name.startswith("identity/actor/"):
                (folder / Path(name).name).write_bytes(content)
        data = json.loads(entries["capsule.json"])
        data["config"]["actor_rollout_ref"]["model"]["path"] = str(folder)
        entries["capsule.json"] = json.dumps(data).encode()

    capsule = changed(recorded, tmp_path / "evil.capsule", change)
    for stage in ("old_log_prob", "reward"):
        code, said = replay.main([str(capsule), "--stage", stage]), capsys.readouterr().err.splitlines()
        assert "--trust-remote-code" in said[0]
        assert [line.split(":")[0] for line in said[1:]] == (["error", "hint"] if code else [])
    assert not mark.exists()


def test_no_stage_but_reward_runs_its_reward_function(recorded: Path, tmp_path: Path) -> None:
    """Not even its module, which is code that runs when it is loaded."""
    mark = tmp_path / "was-here"
    source = f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\ndef compute_score(**_): return 0.0\n"

    def change(entries: dict[str, bytes]) -> None:
        data = json.loads(entries["capsule.json"]) | {"reward_source": source}
        data["config"]["custom_reward_function"] |= {"path": "reward.py", "name": "compute_score"}
        entries["capsule.json"] = json.dumps(data).encode()

    capsule = str(changed(recorded, tmp_path / "evil.capsule", change))
    harmless = [word for stage in STAGES if stage != "reward" for word in ("--stage", stage)]
    assert replay.main([capsule, *harmless]) == 0
    assert not mark.exists()
    replay.main([capsule, "--stage", "reward"])
    assert mark.exists()


def test_who_asks_for_it_has_it(recorded: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    capsule = changed(recorded, tmp_path / "evil.capsule", hostile(mark))
    with suppress(SystemExit):
        replay.main([str(capsule), "--stage", "reward", "--trust-remote-code"])
    assert mark.exists()


def test_a_capsule_that_asks_for_nothing_is_not_spoken_of(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(recorded), "--stage", "adv"]) == 0
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------------------------------------- what else one can be


class Entries(dict[str, bytes]):
    """Those of a capsule."""

    def __repr__(self) -> str:
        return "Entries(...)"  # all of it is too much to show


@pytest.fixture(scope="module")
def plain(recorded: Path) -> Entries:
    """A small one, without models."""
    with zipfile.ZipFile(recorded) as file:
        return Entries({name: file.read(name) for name in ("capsule.json", "batch.safetensors")})


def zipped(path: Path, entries: dict[str, bytes], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(zipfile.ZipInfo(name), content, **options)  # without the time of day
    return path


def reads(path: Path) -> None:
    """It is read and replayed, or there is one error of ours."""
    try:
        list(replay.replay(path, CHEAP))
    except TrainerError as error:
        said = (error.message, error.hint)
    else:
        said = ("fine", "fine")
    assert all(said) and "\n" not in "".join(said)


def test_a_sound_one(plain: Entries, tmp_path: Path) -> None:
    findings = list(replay.replay(zipped(tmp_path / "x.capsule", plain), CHEAP))
    assert findings and {each.verdict for each in findings} == {"same"}


def test_what_is_packed_tightly_is_not_unpacked(plain: Entries, tmp_path: Path) -> None:
    """A capsule stores its entries as they are; one that does not may hold a thousand times of what it takes."""
    bomb = zipped(tmp_path / "x.capsule", plain | {"capsule.json": b" " * 10**7}, compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(CapsuleError, match=r"capsule\.json is compressed"):
        Capsule(bomb)


def test_what_is_encrypted(plain: Entries, tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.capsule", plain)
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = content.find(signature)
        while place >= 0:
            struct.pack_into("<H", content, place + offset, 1)
            place = content.find(signature, place + 4)
    path.write_bytes(content)
    with pytest.raises(CapsuleError, match="cannot read the capsule"):
        Capsule(path)


SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@SHARED
@given(data=st.data())
def test_any_bytes_changed(plain: Entries, tmp_path: Path, data: st.DataObject) -> None:
    path = zipped(tmp_path / "x.capsule", plain)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # of headers as often as of all that lies between them
        near_end = data.draw(st.booleans())
        place = (
            len(content) - data.draw(st.integers(1, 200)) if near_end else data.draw(st.integers(0, len(content) - 1))
        )
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    reads(path)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON document."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for name, item in inner:
        yield from paths(item, (*at, name))


@SHARED
@given(place=st.integers(0, 10**4), value=JSON)
def test_any_value_replaced(plain: Entries, tmp_path: Path, place: int, value: Any) -> None:
    document = json.loads(plain["capsule.json"])
    ways = [at for at in paths(document) if at]
    *way, last = ways[place % len(ways)]
    inner = document
    for name in way:
        inner = inner[name]
    inner[last] = value
    reads(zipped(tmp_path / "x.capsule", plain | {"capsule.json": json.dumps(document).encode()}))


def test_each_part_of_the_batch_that_is_missing(plain: Entries, tmp_path: Path) -> None:
    document = json.loads(plain["capsule.json"])
    ways = [at for at in paths(document["batch"], ("batch",)) if len(at) > 1]
    for *way, last in ways:
        changed = json.loads(plain["capsule.json"])
        inner = changed
        for name in way:
            inner = inner[name]
        inner[last] = None
        reads(zipped(tmp_path / "x.capsule", plain | {"capsule.json": json.dumps(changed).encode()}))


@SHARED
@given(data=st.data())
def test_any_tensor_of_another_kind(plain: Entries, tmp_path: Path, data: st.DataObject) -> None:
    tensors = load(plain["batch.safetensors"])
    name = data.draw(st.sampled_from(sorted(tensors)))
    kinds = st.sampled_from([torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.uint8])
    shape = data.draw(st.lists(st.integers(0, 9), max_size=3))
    filled = data.draw(st.sampled_from([0, 1, -1, 7, 2**40]))
    tensors[name] = torch.full(shape, filled).to(data.draw(kinds))
    reads(zipped(tmp_path / "x.capsule", plain | {"batch.safetensors": save(tensors)}))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.bool])
def test_scores_of_another_kind(plain: Entries, tmp_path: Path, kind: torch.dtype) -> None:
    tensors = load(plain["batch.safetensors"])
    tensors["scores.score_B"] = tensors["scores.score_B"].to(kind)
    with pytest.raises(CapsuleError, match=f"score_B is of {kind}"):
        Capsule(zipped(tmp_path / "x.capsule", plain | {"batch.safetensors": save(tensors)}))


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b"{" * 100_000, b"9" * 5000])
def test_what_is_no_document(plain: Entries, tmp_path: Path, text: bytes) -> None:
    with pytest.raises(CapsuleError, match=r"cannot read the capsule|has another format than 1"):
        Capsule(zipped(tmp_path / "x.capsule", plain | {"capsule.json": text}))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (("algorithm", "kl_ctrl"), "kl_coef", -1),
        (("algorithm",), "gamma", float("nan")),
        (("data",), "max_response_length", 10**12),
        (("trainer",), "seed", 2**70),
        (("actor_rollout_ref", "rollout"), "name", "other"),
    ],
)
def test_settings_that_no_command_could_have(
    plain: Entries, tmp_path: Path, section: tuple[str, ...], key: str, value: object
) -> None:
    document = json.loads(plain["capsule.json"])
    inner = document["config"]
    for name in section:
        inner = inner[name]
    inner[key] = value
    with pytest.raises(CapsuleError, match=rf"config\..*{key}"):
        Capsule(zipped(tmp_path / "x.capsule", plain | {"capsule.json": json.dumps(document).encode()}))
