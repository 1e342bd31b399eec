"""Any architecture becomes tiny and stays itself, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from devkit.smoke import tiny
from devkit.smoke.problems import word_problems

TEXTS = [problem["question"] for problem in word_problems(32, seed=0)]
LARGE = {
    "qwen2": {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584},
    "llama": {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
    "mistral": {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
    "gemma": {"num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "hidden_size": 2048},
    "gpt2": {"n_layer": 12, "n_head": 12, "n_embd": 768},
}
PARAMETERS = 400_000


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.make_tokenizer(TEXTS)


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_model_becomes_tiny(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    like, made = tmp_path / "large", tmp_path / "tiny"
    AutoConfig.for_model(kind, **LARGE[kind]).save_pretrained(like)
    tiny.build_from(folder=str(made), like=str(like), texts=TEXTS, seed=0, max_positions=64)
    model = AutoModelForCausalLM.from_pretrained(made)
    assert model.config.model_type == kind
    assert sum(parameter.numel() for parameter in model.parameters()) < PARAMETERS
    assert model.config.num_hidden_layers == tiny.LAYERS
    assert model.config.eos_token_id == tokenizer.eos_token_id
    logits = model(torch.tensor([[5, 6, 7]])).logits
    assert logits.shape == (1, 3, len(tokenizer))


def test_grouped_attention_stays_grouped(tokenizer: Any) -> None:
    grouped = tiny.shrink(AutoConfig.for_model("llama", **LARGE["llama"]), tokenizer, 64)
    whole = tiny.shrink(AutoConfig.for_model("llama", num_attention_heads=32, num_key_value_heads=32), tokenizer, 64)
    assert (grouped.num_key_value_heads, whole.num_key_value_heads) == (tiny.HEADS // 2, tiny.HEADS)


def test_what_is_no_size_stays(tokenizer: Any) -> None:
    config = AutoConfig.for_model(
        "llama", **LARGE["llama"], rms_norm_eps=1e-3, hidden_act="gelu", tie_word_embeddings=True
    )
    shrunk = tiny.shrink(config, tokenizer, 64)
    assert (shrunk.rms_norm_eps, shrunk.hidden_act, shrunk.tie_word_embeddings) == (1e-3, "gelu", True)


def test_without_a_model_it_is_a_qwen2_and_a_seed_decides_it(tmp_path: Path) -> None:
    digests = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        tiny.build_from(folder=str(tmp_path / folder), like=None, texts=TEXTS, seed=seed, max_positions=64)
        digests.append(tiny.digests_of(str(tmp_path / folder))["digests"])
    assert AutoConfig.from_pretrained(tmp_path / "a").model_type == "qwen2"
    assert digests[0] == digests[1] != digests[2]


def test_the_tokenizer_round_trips_any_text(tokenizer: Any, tmp_path: Path) -> None:
    assert 256 < len(tokenizer) <= tiny.VOCABULARY
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXTS[0], "été 日本 🙂\n\ttab", ""):
        assert again.decode(again.encode(text)) == text
    chat = again.apply_chat_template([{"role": "user", "content": "2+2?"}], tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
