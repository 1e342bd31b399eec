"""Model folders that cannot be loaded are told by `--check`, each with what is wrong; those that can be are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from trainer.config import check_command
from trainer.config.model_folder import model_faults, tokenizer_faults
from trainer.config.splits import read_shape

Command = Callable[..., list[str]]
KEY = "actor_rollout_ref.model.path"
DEEP = "[" * 100_000


def said(command: Command) -> str:
    """What is wrong with the model's folder; nothing else is wrong."""
    found = check_command(command()).problems
    assert {problem.key for problem in found} <= {KEY}
    assert all(problem.hint and "\n" not in problem.message for problem in found)
    return "; ".join(problem.message for problem in found)


def config(folder: Path, **values: Any) -> None:
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(old | values))


def layers(folder: Path, *numbers: int, told: int) -> None:
    """Weights with these layers, and a config.json that tells of so many."""
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.layers.{number}.mlp.weight": np.zeros(1, np.float32) for number in numbers}
    save_file(tensors, folder / "model.safetensors")
    config(folder, num_hidden_layers=told)


def in_shards(folder: Path, **places: str) -> None:
    """The weights in two files with an index; `places` puts other tensors elsewhere."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model-1.safetensors")
    save_file({"lm_head.weight": np.ones((3, 4), np.float32)}, folder / "model-2.safetensors")
    weight_map = {"model.embed_tokens.weight": "model-1.safetensors", "lm_head.weight": "model-2.safetensors"} | places
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "has no weights"),
    "empty weights": (lambda at: cut(at / "model.safetensors", 0), "model.safetensors of 0 bytes that is incomplete"),
    "cut header": (lambda at: cut(at / "model.safetensors", 20), "that is incomplete"),
    "cut tensors": (lambda at: cut(at / "model.safetensors", -1), "that is incomplete"),
    "grown": (lambda at: grow(at / "model.safetensors"), "that is incomplete"),
    "a pipe": (lambda at: to_fifo(at / "model.safetensors"), "model.safetensors that cannot be read: it is not a file"),
    "a folder": (lambda at: ((at / "config.json").unlink(), (at / "config.json").mkdir()), "it is not a file"),
    "a pointer": (
        lambda at: (at / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1"),
        "a pointer of Git LFS",
    ),
    "header too long": (
        lambda at: (at / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}"),
        "header too large",
    ),
    "other shapes": (lambda at: config(at, vocab_size=5), "of shape [3, 4], and a config.json of 5 x 4"),
    "more layers": (lambda at: layers(at, 0, 1, told=3), "a config.json of 3 layers, and weights without layer 2"),
    "a lost layer": (lambda at: layers(at, 0, 2, told=3), "and weights without layer 1"),
    "very many layers": (lambda at: layers(at, 0, told=2**31 - 1), "and weights without layer 1"),
    "layers in shards": (
        lambda at: (layers(at, told=2), in_shards(at, **{"model.layers.1.mlp.weight": "model-1.safetensors"})),
        "and weights without layer 0",
    ),
    "no tensors": (lambda at: save_file({}, at / "model.safetensors"), "without a tensor"),
    "no json": (
        lambda at: (at / "config.json").write_text("{"),
        "config.json that cannot be read: it is not valid JSON",
    ),
    "no text": (lambda at: (at / "config.json").write_bytes(b"\xff\xfe"), "it is not text"),
    "empty": (lambda at: (at / "config.json").write_text(""), "it is not valid JSON"),
    "a list": (lambda at: (at / "config.json").write_text("[]"), "it holds a list, and no object"),
    "a number": (lambda at: (at / "config.json").write_text("9" * 5000), "it is not valid JSON"),
    "nested": (lambda at: (at / "config.json").write_text(DEEP), "it is nested too deeply"),
    "no kind": (lambda at: (at / "config.json").write_text("{}"), "without a model_type"),
    "negative": (lambda at: config(at, hidden_size=-5), "with hidden_size=-5"),
    "zero": (lambda at: config(at, num_attention_heads=0), "with num_attention_heads=0"),
    "a text": (lambda at: config(at, num_hidden_layers="2"), "with num_hidden_layers='2'"),
    "true": (lambda at: config(at, vocab_size=True), "with vocab_size=True"),
    "half": (lambda at: config(at, intermediate_size=1.5), "with intermediate_size=1.5"),
    "vast": (lambda at: config(at, num_attention_heads=10**12), "with num_attention_heads=1000000000000"),
    "inside": (lambda at: config(at, text_config={"hidden_size": -1}), "with hidden_size=-1"),
    "a broken index": (
        lambda at: (in_shards(at), (at / "model.safetensors.index.json").write_text(DEEP)),
        "model.safetensors.index.json that cannot be read: it is nested too deeply",
    ),
    "an empty index": (
        lambda at: (in_shards(at), (at / "model.safetensors.index.json").write_text("{}")),
        "does not say where the weights are",
    ),
    "an index that leads out": (lambda at: in_shards(at, x="../x.safetensors"), "does not say where the weights are"),
    "a lost shard": (
        lambda at: (in_shards(at), (at / "model-2.safetensors").unlink()),
        "lacks model-2.safetensors, which its model.safetensors.index.json names",
    ),
    "a cut shard": (lambda at: (in_shards(at), cut(at / "model-2.safetensors", -1)), "model-2.safetensors of "),
    "a lost tensor": (lambda at: in_shards(at, y="model-1.safetensors"), "model-1.safetensors without y"),
    "older weights": (
        lambda at: ((at / "model.safetensors").unlink(), (at / "pytorch_model.bin").write_text("no")),
        "pytorch_model.bin that is none of torch's",
    ),
    "an empty tokenizer": (lambda at: cut(at / "tokenizer.json", 0), "an empty tokenizer.json"),
    "a cut tokenizer": (lambda at: cut(at / "tokenizer.json", -5), "tokenizer.json that cannot be read"),
    "no tokenizer": (lambda at: (at / "tokenizer.json").write_text("{}"), "tokenizer.json that cannot be read"),
    "a nested tokenizer": (lambda at: (at / "tokenizer.json").write_text(DEEP), "tokenizer.json that cannot be read"),
    "a broken setting": (
        lambda at: (at / "tokenizer_config.json").write_text("["),
        "tokenizer_config.json that cannot be read",
    ),
    "a broken generation": (
        lambda at: (at / "generation_config.json").write_text("[]"),
        "generation_config.json that cannot be read",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_folder_that_cannot_be_loaded_is_told(command: Command, model_dir: Path, name: str) -> None:
    assert said(command) == ""
    damage, expected = DAMAGE[name]
    damage(model_dir)
    assert expected in said(command)


@pytest.mark.parametrize(
    "change",
    [
        lambda at: in_shards(at),
        lambda at: config(at, num_key_value_heads=None, head_dim=None),
        lambda at: config(at, intermediate_size=[8, 16]),
        lambda at: layers(at, 0, 1, told=2),
        lambda at: layers(at, 0, 1, 2, told=2),  # one more, of another head
        lambda at: ((at / "model.safetensors").unlink(), (at / "pytorch_model.bin").write_bytes(b"PK\x03\x04")),
        lambda at: (at / "generation_config.json").write_text("{}"),
    ],
)
def test_a_folder_that_can_be_loaded_is_not(
    command: Command, model_dir: Path, change: Callable[[Path], object]
) -> None:
    change(model_dir)
    assert said(command) == ""


def test_folders_that_transformers_writes(tmp_path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    small = Qwen2Config(hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
    torch.manual_seed(0)
    Qwen2ForCausalLM(small).save_pretrained(tmp_path / "whole")
    Qwen2ForCausalLM(small).save_pretrained(tmp_path / "shards", max_shard_size="3KB")
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=40)).save_pretrained(tmp_path / "gpt2")
    for name in ("whole", "shards", "gpt2"):
        assert list(model_faults(tmp_path / name)) == []
    assert (tmp_path / "shards/model.safetensors.index.json").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text_config", "hidden_size", "vocab_size", "weight_map", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()), name=st.integers(0, 4))
def test_any_content_of_any_file(model_dir: Path, content: bytes, name: int) -> None:
    names = ("config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "vocab.json")
    file = model_dir / names[name]
    before = file.read_bytes() if file.exists() else None
    file.write_bytes(content)
    try:
        for what, hint in (*model_faults(model_dir), *tokenizer_faults(model_dir)):
            assert what and hint and "\n" not in what
        read_shape(str(model_dir))
    finally:
        file.unlink() if before is None else file.write_bytes(before)
