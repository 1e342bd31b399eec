"""Code that lies in a model's folder runs if the command says so, and never because a library asks at the terminal."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.smoke import tiny
from tests.trainer import encoders
from trainer.errors import ModelError
from trainer.retrieval.encoder import Encoder

ROOT = Path(__file__).parents[2]
LOADS = ("from_pretrained", "from_config")
ANSWER = "y\n" * 9


def unsaid(text: str) -> Iterator[str]:
    """The calls that leave it to transformers, which asks, whether code of a folder may run."""
    if not any(each in text for each in LOADS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADS:
            kind, names = ast.unparse(node.func.value), {each.arg for each in node.keywords}
            if kind.startswith(("Auto", "kind")) and "trust_remote_code" not in names:
                yield ast.unparse(node)


def test_every_load_says_whether_code_may_run() -> None:
    assert list(unsaid("AutoConfig.from_pretrained(path)"))
    assert not list(unsaid("AutoConfig.from_pretrained(path, trust_remote_code=x); Qwen2Config.from_pretrained(path)"))
    files = [path for package in ("trainer", "devkit") for path in (ROOT / package).rglob("*.py")]
    assert [found for path in files for found in unsaid(path.read_text())] == []


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole encoder whose architecture is code beside it, and somebody who types y at whatever is asked."""
    import transformers.dynamic_module_utils as dynamic

    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(dynamic, "TIME_OUT_REMOTE_CODE", 60)
    monkeypatch.setattr("sys.stdin", io.StringIO(ANSWER))
    monkeypatch.setattr("builtins.input", lambda prompt="": "y")
    folder = encoders.tiny(tmp_path / "evil")
    code = f"import os\nos.makedirs({str(tmp_path / 'ran')!r}, exist_ok=True)\n"
    (folder / "own.py").write_text(
        f"{code}from transformers import BertConfig, BertModel\n"
        "class C(BertConfig):\n    model_type = 'evilish'\nclass M(BertModel):\n    config_class = C\n"
    )
    file = folder / "config.json"
    kinds = {"AutoConfig": "own.C", "AutoModel": "own.M", "AutoModelForCausalLM": "own.M"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "evilish", "auto_map": kinds}))
    return folder


def test_an_encoder_runs_no_code_of_its_folder(evil: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        Encoder(str(evil), "e5")
    assert "code" in caught.value.message and not (tmp_path / "ran").exists()


def test_the_smoke_test_takes_another_architecture(evil: Path, tmp_path: Path) -> None:
    made = tmp_path / "tiny"
    given = {"folder": str(made), "like": str(evil), "texts": ["a b c"], "seed": 0, "max_positions": 64}
    assert tiny.build_from(**given)["is_like"] is False
    assert not (tmp_path / "ran").exists()
    assert json.loads((made / "config.json").read_text())["model_type"] == "qwen2"


def test_an_architecture_of_transformers_stays_one(evil: Path, tmp_path: Path) -> None:
    """Code beside one that transformers has, too, is passed by; the tiny model does not name it."""
    made, file = tmp_path / "tiny", evil / "config.json"
    llama = {"model_type": "llama", "auto_map": json.loads(file.read_text())["auto_map"]}
    file.write_text(json.dumps(llama))
    given = {"folder": str(made), "like": str(evil), "texts": ["a b c"], "seed": 0, "max_positions": 64}
    assert tiny.build_from(**given)["is_like"] is True
    config = json.loads((made / "config.json").read_text())
    assert config["model_type"] == "llama" and "auto_map" not in config
    assert not (tmp_path / "ran").exists()
