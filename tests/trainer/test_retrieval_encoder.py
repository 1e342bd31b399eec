"""Encoders: what stands before a text, what is taken of its tokens, a digest of what decides, and folders of no use."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertModel, BertTokenizerFast, DPRConfig, DPRQuestionEncoder, T5Config, T5Model

from tests.trainer.encoders import tiny
from trainer.errors import ConfigError, ModelError
from trainer.retrieval.encoder import Encoder

TEXTS = ["who wrote Faust?", "", "a", "German writer of Faust, a tragedy " * 60, "Atomic number 74, symbol W"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("encoders") / "tiny")


def alone(folder: Path, text: str, pooling: str) -> Any:
    """By hand: one text without padding, in numpy from the last layer on."""
    model, tokenizer = BertModel.from_pretrained(folder).eval(), BertTokenizerFast.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    ids = ids if len(ids) <= 256 else [*ids[:255], tokenizer.sep_token_id]
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
    found = hidden.mean(0) if pooling == "mean" else hidden[0]
    return found / np.sqrt((found**2).sum())


@pytest.mark.parametrize(
    ("kind", "query", "passage", "pooling"),
    [
        ("e5", "query: ", "passage: ", "mean"),
        ("bge", "Represent this sentence for searching relevant passages: ", "", "cls"),
        ("contriever", "", "", "mean"),
    ],
)
def test_vectors_are_those_of_each_text_alone(folder: Path, kind: str, query: str, passage: str, pooling: str) -> None:
    encoder = Encoder(str(folder), kind)
    assert encoder.width == 32
    for found, before in ((encoder.queries(TEXTS), query), (encoder.passages(TEXTS), passage)):
        assert found.dtype == np.float32
        wanted = np.array([alone(folder, before + text, pooling) for text in TEXTS])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
    assert encoder.queries([]).shape == (0, 32)


def test_more_than_a_pass_come_back_in_their_order(folder: Path) -> None:
    dice = np.random.default_rng(0)
    texts = ["faust " * int(n) + str(i) for i, n in enumerate(dice.integers(0, 40, 200))]
    encoder = Encoder(str(folder), "e5")
    together = encoder.passages(texts)
    for i in dice.integers(0, 200, 10):
        np.testing.assert_allclose(together[i], encoder.passages([texts[i]])[0], atol=2e-6)


def test_the_digest_is_of_all_that_decides(folder: Path, tmp_path: Path) -> None:
    usual = Encoder(str(folder), "e5").digest
    copied = shutil.copytree(folder, tmp_path / "other-name")
    (copied / "README.md").write_text("hello")
    torch.save(BertModel.from_pretrained(folder).state_dict(), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    assert Encoder(str(copied), "e5").digest == usual  # the same weights in another file
    assert Encoder(str(folder), "contriever").digest != usual
    assert Encoder(str(tiny(tmp_path / "seed", seed=1)), "e5").digest != usual

    def changed(name: str, change: Callable[[str], str]) -> str:
        place = shutil.copytree(folder, tmp_path / f"changed-{name}")
        (place / name).write_text(change((place / name).read_text()))
        return Encoder(str(place), "e5").digest

    assert changed("config.json", lambda text: text.replace('"gelu"', '"relu"')) != usual
    assert changed("tokenizer.json", lambda text: text.replace('"faust"', '"werther"')) != usual


def test_a_layer_that_is_not_used_may_be_missing(folder: Path, tmp_path: Path) -> None:
    """Its weights are drawn anew each time, and the digest is the same."""
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(tmp_path)
    BertTokenizerFast.from_pretrained(folder).save_pretrained(tmp_path)
    assert Encoder(str(tmp_path), "e5").digest == Encoder(str(folder), "e5").digest


def broken(folder: Path, name: str) -> Path:
    """`folder`, made of no use."""
    if name == "no config":
        (folder / "config.json").unlink()
    elif name == "no tokenizer":
        for each in ("tokenizer.json", "vocab.txt"):
            (folder / each).unlink()
    elif name == "half of its weights":
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    elif name == "a layer less":
        model = BertModel.from_pretrained(folder)
        kept = {key: value for key, value in model.state_dict().items() if "layer.1.output" not in key}
        model.save_pretrained(folder, state_dict=kept)
    elif name == "dpr":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        DPRQuestionEncoder(DPRConfig(**sizes, vocab_size=121)).save_pretrained(folder)
    elif name == "t5":
        T5Model(T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=121)).save_pretrained(
            folder
        )
    elif name == "cls pooling":
        (folder / "1_Pooling").mkdir()
        said = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no config", "has no config.json"),
        ("no tokenizer", "has no tokenizer files"),
        ("half of its weights", "model.safetensors"),
        ("a layer less", "it has no weights for encoder.layer.1.output"),
        ("dpr", "it is one half of DPR"),
        ("t5", "it is an encoder and a decoder"),
        ("cls pooling", "is not of kind e5: its 1_Pooling/config.json asks for cls pooling"),
    ],
)
def test_folders_of_no_use(folder: Path, tmp_path: Path, name: str, said: str) -> None:
    place = broken(shutil.copytree(folder, tmp_path / "broken"), name)
    with pytest.raises(ModelError) as caught:
        Encoder(str(place), "e5")
    assert said in caught.value.message and "\n" not in caught.value.message and caught.value.hint
    if name == "cls pooling":
        assert Encoder(str(place), "bge").kind == "bge"


def test_no_folder_and_no_device(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no folder .*gone on"):
        Encoder(str(tmp_path / "gone"), "e5")
    for path in ("e5-gone", str(folder / "config.json")):
        with pytest.raises(ModelError, match="is neither a folder here nor a name on the hub"):
            Encoder(os.path.relpath(path), "e5")
    for device in ("tpu", "cuda:99"):
        with pytest.raises(ConfigError, match=f"--device {device} cannot be used"):
            Encoder(str(folder), "e5", device)


def test_numbers_that_are_not_finite(folder: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(shutil.copytree(folder, tmp_path / "nan"))
    faust = BertTokenizerFast.from_pretrained(folder).convert_tokens_to_ids("faust")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[faust] = torch.nan
    model.save_pretrained(tmp_path / "nan")
    encoder = Encoder(str(tmp_path / "nan"), "e5")
    assert np.isfinite(encoder.queries(["tragedy"])).all()
    with pytest.raises(ModelError, match="not finite for 'query: who wrote faust'"):
        encoder.queries(["tragedy", "who wrote faust"])
