"""The keys of adapters: what a command may ask for, and what it hears where that cannot be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from trainer.config import check, load, resolve
from trainer.config.chosen import Device, choose
from trainer.config.fits import adapter_parameters
from trainer.config.lora import adapter_fault, is_the_actor, lora_notes, lora_problems
from trainer.config.schema import Config
from trainer.config.shape import shape_of

A, M, C = "actor_rollout_ref.actor", "actor_rollout_ref.model", "critic.model"
QWEN2 = {
    **{"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944},
    **{"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}


def config_of(*words: str) -> Config:
    return load(words).config


def problems(*words: str) -> dict[str, str]:
    return {each.key: f"{each.message}; {each.hint}" for each in lora_problems(resolve(words).config)}


def test_verls_defaults() -> None:
    model, critic = config_of().actor_rollout_ref.model, config_of().critic.model
    for each in (model, critic):
        assert (each.lora_rank, each.lora_alpha) == (0, 16)
        assert (each.target_modules, each.exclude_modules) == (["all-linear"], None)
    assert model.lora_adapter_path is None and problems() == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("all-linear", ["all-linear"]),
        ("[q_proj,v_proj]", ["q_proj", "v_proj"]),
        (r"'.*\.layers\.\d+\.(q|v)_proj'", [r".*\.layers\.\d+\.(q|v)_proj"]),
    ],
)
def test_modules_are_a_word_a_list_or_an_expression(given: str, expected: list[str]) -> None:
    config = config_of(f"{M}.lora_rank=8", f"{M}.target_modules={given}")
    assert config.actor_rollout_ref.model.target_modules == expected


def test_megatron_has_none() -> None:
    found = problems(f"{M}.lora_rank=8", f"{A}.strategy=megatron")
    said = f"{M}.lora_rank=8 is not there with strategy=megatron; set {A}.strategy=fsdp, or {M}.lora_rank=0"
    assert found == {f"{M}.lora_rank": said}
    assert problems(f"{A}.strategy=megatron") == {}
    assert list(problems(f"{C}.lora_rank=8", "critic.strategy=megatron", "algorithm.adv_estimator=grpo")) == []
    assert list(problems(f"{C}.lora_rank=8", "critic.strategy=megatron")) == [f"{C}.lora_rank"]


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules"])
@pytest.mark.parametrize("section", [M, C])
def test_an_expression_that_is_none(section: str, key: str) -> None:
    found = problems(f"{section}.lora_rank=8", f"{section}.{key}='*_proj'")
    assert "is neither a name nor a regular expression" in found[f"{section}.{key}"]
    assert problems(f"{section}.{key}='*_proj'") == {}  # without adapters nobody reads it


@pytest.mark.parametrize(("word", "said"), [("lora_rank=-1", "out of range"), ("lora_alpha=0", "out of range")])
def test_ranges(word: str, said: str) -> None:
    (problem,) = resolve([f"{M}.{word}"]).problems
    assert said in problem.message


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., str]:
    def written(**settings: Any) -> str:
        found = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", **settings}
        (tmp_path / "adapter_config.json").write_text(json.dumps(found))
        (tmp_path / "adapter_model.safetensors").touch()
        return str(tmp_path)

    return written


def test_an_adapter_to_begin_with(adapter: Callable[..., str], tmp_path: Path) -> None:
    assert problems(f"{M}.lora_rank=8", f"{M}.lora_adapter_path={adapter()}") == {}
    for words, said in (
        ((f"{M}.lora_rank=4",), f"has r=8, and lora_rank is 4; set {M}.lora_rank=8"),
        ((), f"has r=8, and lora_rank is 0; set {M}.lora_rank=8"),
        ((f"{M}.lora_rank=8", f"{M}.lora_alpha=32"), f"has lora_alpha=16, and lora_alpha is 32; set {M}.lora_alpha=16"),
    ):
        found = problems(*words, f"{M}.lora_adapter_path={tmp_path}")
        assert found[f"{M}.lora_adapter_path"].endswith(said)
    odd = {"use_dora": True, "modules_to_save": ["lm_head"], "rank_pattern": {"x": 1}, "peft_type": "IA3"}
    odd |= {"init_lora_weights": "pissa_niter_16", "alora_invocation_tokens": [3, 4], "layer_replication": [[0, 4]]}
    for name, value in odd.items():
        found = problems(f"{M}.lora_rank=8", f"{M}.lora_adapter_path={adapter(**{name: value})}")
        assert f"has {name}=" in found[f"{M}.lora_adapter_path"]
    usual = {"init_lora_weights": "gaussian", "use_dora": False, "modules_to_save": None, "rank_pattern": {}}
    assert problems(f"{M}.lora_rank=8", f"{M}.lora_adapter_path={adapter(**usual)}") == {}


def test_a_pipe_in_the_place_of_an_adapter_is_not_waited_for(adapter: Callable[..., str]) -> None:
    folder = Path(adapter())
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")
    assert adapter_fault(str(folder), 8, 16) == ("is no adapter: it is not a file", ANY)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "~nobody-at-all/x", "x" * 5000, "a\0b"])
def test_a_path_where_nothing_is(path: str) -> None:
    fault = adapter_fault(path, 8, 16)
    assert fault is not None and fault[0].startswith("is no adapter")


def test_what_has_no_effect_is_noted() -> None:
    notes = {each.key for each in lora_notes(config_of(f"{M}.lora_alpha=32", f"{C}.target_modules=[q_proj]"))}
    assert notes == {f"{M}.lora_alpha", f"{C}.target_modules"}
    ref = "actor_rollout_ref.ref.fsdp_config"
    words = (f"{M}.lora_rank=8", f"{A}.use_kl_loss=True", f"{ref}.param_offload=True")
    assert {each.key for each in lora_notes(config_of(*words))} == {f"{ref}.param_offload"}
    assert {each.key for each in lora_notes(config_of(*words[1:]))} == set()
    logits = "actor_rollout_ref.ref.use_torch_compile"
    assert {each.key for each in lora_notes(config_of(*words[:2], f"{logits}=False"))} == {logits}
    assert {each.key for each in lora_notes(config_of(*words[:2], f"{A}.use_torch_compile=False"))} == set()
    bf16 = f"{A}.fsdp_config.dtype=bf16"  # which the reference follows
    assert {each.key for each in lora_notes(config_of(*words, bf16))} == {f"{ref}.param_offload"}


def test_the_reference_is_the_actor_where_both_are_on_the_same_ranks() -> None:
    words = (f"{M}.lora_rank=8", f"{A}.use_kl_loss=True", "trainer.n_gpus_per_node=4")
    mapping = [f"trainer.device_mapping.{role}" for role in ("actor", "rollout", "ref")]
    assert is_the_actor(config_of(*words))
    assert not is_the_actor(config_of(*words[1:]))
    assert not is_the_actor(config_of(words[0]))
    apart = f"{mapping[0]}=[0,1]", f"{mapping[1]}=[0,1]", f"{mapping[2]}=[2,3]"
    assert not is_the_actor(config_of(*words, *apart))


def test_adapters_take_a_fraction_of_the_memory() -> None:
    """Qwen2.5-7B: 2.5 million parameters for each of the columns; no moments and no gradients of the weights."""
    shape = shape_of(QWEN2)
    assert shape is not None
    layer = 4 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18944)  # q and o, k and v, three of the feed-forward network
    assert adapter_parameters(shape, 1) == 28 * layer and 28 * layer == pytest.approx(2.5e6, rel=0.02)
    gpu = Device(cuda=True, compiles=True, free=70 * 2**30, total=80 * 2**30)
    words = (f"{A}.ppo_micro_batch_size_per_gpu=1", "trainer.n_gpus_per_node=8", "algorithm.adv_estimator=grpo")
    needs = [
        float(choose(config_of(*words, *more), {"actor": shape}, gpu)[0].why.split("about ")[1].split(" ")[0])
        for more in ((), (f"{M}.lora_rank=32",), (f"{M}.lora_rank=32", f"{A}.fsdp_config.model_dtype=bf16"))
    ]
    assert needs[0] > needs[1] > needs[2]


def test_check_has_all_of_it(tmp_path: Path) -> None:
    found = check(resolve([f"{M}.lora_rank=8", f"{A}.strategy=megatron", f"{M}.lora_adapter_path={tmp_path}"]))
    assert {f"{M}.lora_rank", f"{M}.lora_adapter_path"} <= {each.key for each in found.problems}
