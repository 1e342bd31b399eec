"""Log-probs, entropy and values against transformers itself, one token at a time; for every architecture we name."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from tests.trainer.batches import random_ids, rollout_of
from tests.trainer.conftest import ARCHITECTURES
from trainer.config.schema import FsdpConfig, ModelConfig
from trainer.errors import ModelError
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Model, forward_only
from trainer.learner.layout import trim
from trainer.learner.models import Source, ValueModel, read_causal_lm, read_config, read_value_model, sharded
from trainer.precision import in_precision
from trainer.records import Rollout
from trainer.rows import take
from trainer.tokenizer import load_tokenizer

PROMPTS, ANSWERS = random_ids([4, 1, 6], 1), random_ids([3, 5, 1], 2)
FP32 = FsdpConfig(dtype="fp32")


def model_of(
    folder: Path,
    mesh: Any,
    *,
    kind: str = "causal_lm",
    temperature: float = 1.0,
    save_memory: str | None = None,
    packed: bool = False,
) -> Model:
    source = Source(str(folder), False, 1)
    module = sharded(kind, source, FP32, mesh, checkpointing=save_memory is not None, recompute=save_memory or "full")
    return Model(module, torch.device("cpu"), temperature, ForwardOptions(remove_padding=packed))


@torch.no_grad()
def naive(folder: Path, rollout: Rollout, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies: for each response token a forward pass over exactly what stands before it."""
    model = AutoModelForCausalLM.from_pretrained(folder, **in_precision(torch.float32)).eval()
    logp, entropy = torch.zeros(rollout.mask_BT.shape), torch.zeros(rollout.mask_BT.shape)
    for b in range(len(rollout)):
        ids = rollout.prompts.ids_BP[b][rollout.prompts.mask_BP[b].bool()].tolist()
        for t in range(int(rollout.mask_BT[b].sum())):
            distribution = (model(torch.tensor([ids])).logits[0, -1] / temperature).log_softmax(-1)
            token = int(rollout.response_BT[b, t])
            logp[b, t] = distribution[token]
            entropy[b, t] = -(distribution.exp() * distribution).sum()
            ids.append(token)
    return logp, entropy


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_entropy(models: Path, mesh: Any, architecture: str, temperature: float) -> None:
    folder, rollout = models / architecture, rollout_of(PROMPTS, ANSWERS)
    found = model_of(folder, mesh, temperature=temperature).log_probs(rollout, entropy=True)
    logp, entropy = naive(folder, rollout, temperature)
    torch.testing.assert_close(found.logp_BT.detach(), logp, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found.entropy_BT.detach(), entropy, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_padding_and_neighbours_change_nothing(models: Path, mesh: Any, kind: str) -> None:
    """More padding on both sides is trimmed away; a row alone gets what it gets among others."""
    model = model_of(models / "qwen2", mesh, kind=kind)

    def run(rollout: Rollout) -> Tensor:
        answer = model.values(rollout) if kind == "value" else model.log_probs(rollout, entropy=False).logp_BT
        return answer.detach()

    plain, wide = rollout_of(PROMPTS, ANSWERS), rollout_of(PROMPTS, ANSWERS, extra=4)
    together = run(plain)
    assert run(wide).shape == wide.mask_BT.shape
    assert torch.equal(run(wide)[:, :5], together)
    assert (run(wide)[:, 5:] == 0).all() and (together[~plain.mask_BT.bool()] == 0).all()
    for b in range(3):
        torch.testing.assert_close(run(take(plain, slice(b, b + 1)))[0], together[b], atol=1e-5, rtol=1e-5)


def test_trim_keeps_every_token(models: Path) -> None:
    wide = rollout_of(PROMPTS, ANSWERS, extra=4)
    short = trim(wide)
    assert short.ids_BS.shape == (3, 6 + 5)
    assert torch.equal(short.ids_BS[short.attention_BS.bool()], wide.ids_BS[wide.attention_BS.bool()])


def test_values_stand_before_the_tokens(models: Path, mesh: Any) -> None:
    """The value of response token t is read off the position before it: what it would be without t and all later."""
    model = model_of(models / "qwen2", mesh, kind="value")
    whole = model.values(rollout_of(PROMPTS, ANSWERS)).detach()
    reference = read_value_model(Source(str(models / "qwen2"), False, 1), read_config_of(models), torch.float32).eval()
    for b in range(3):
        for t in range(len(ANSWERS[b])):
            ids = torch.tensor([PROMPTS[b] + ANSWERS[b][:t]])
            with torch.no_grad():
                expected = reference(input_ids=ids)[0, -1, 0]
            torch.testing.assert_close(whole[b, t], expected, atol=1e-5, rtol=1e-5)


def read_config_of(models: Path) -> Any:
    return read_config(Source(str(models / "qwen2"), False, 1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["causal_lm", "value"])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_reach_every_parameter_with_and_without_checkpointing(
    models: Path, mesh: Any, architecture: str, kind: str, packed: bool
) -> None:
    def gradients(save_memory: str | None) -> dict[str, Tensor]:
        model = model_of(models / architecture, mesh, kind=kind, save_memory=save_memory, packed=packed)
        rollout = rollout_of(PROMPTS, ANSWERS)
        answer = model.values(rollout) if kind == "value" else model.log_probs(rollout, entropy=False).logp_BT
        answer.square().sum().backward()
        return {name: p.grad.full_tensor() for name, p in model.module.named_parameters()}  # type: ignore[union-attr]

    plain, full, selective = gradients(None), gradients("full"), gradients("selective")
    assert plain.keys() == full.keys() == selective.keys()
    for name, gradient in plain.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(full[name], gradient, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(selective[name], gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_selective_checkpointing_repeats_no_product(models: Path, mesh: Any, packed: bool) -> None:
    """Full: each layer's matrix products and attention once more. Selective: as many as without checkpointing."""

    def flops(save_memory: str | None) -> int:
        model = model_of(models / "qwen2", mesh, save_memory=save_memory, packed=packed)
        rollout = rollout_of(PROMPTS, ANSWERS)
        model.log_probs(rollout, entropy=False)  # the first pass tries the architecture
        with FlopCounterMode(display=False) as counter:
            model.log_probs(rollout, entropy=False).logp_BT.square().sum().backward()
        return counter.get_total_flops()

    assert flops("selective") == flops(None) < 0.9 * flops("full")


def test_tied_models_have_one_weight_for_both_ends(models: Path, mesh: Any) -> None:
    tied, untied = (model_of(models / name, mesh).module for name in ("qwen2-tied", "qwen2"))
    assert "lm_head.weight" not in dict(tied.named_parameters())
    assert "lm_head.weight" in dict(untied.named_parameters())
    assert torch.equal(tied.lm_head.weight.full_tensor(), tied.model.embed_tokens.weight.full_tensor())


@pytest.mark.parametrize("save_memory", [None, "full"])
def test_dropout_is_off(models: Path, mesh: Any, save_memory: str | None) -> None:
    """GPT-2's configuration has dropouts of 0.1; all the same, the ratio is 1 before any update."""
    model = model_of(models / "gpt2", mesh, save_memory=save_memory)
    assert model.module.training
    rollout = rollout_of(PROMPTS, ANSWERS)
    passes = torch.tensor([2, 0]), torch.tensor([1])
    old = forward_only(lambda part: model.log_probs(part, entropy=False), rollout, passes).logp_BT
    new = model.log_probs(rollout, entropy=False).logp_BT.detach()
    torch.testing.assert_close((new - old).exp(), torch.ones_like(new), atol=1e-5, rtol=0)


def test_value_head_is_saved_and_found_again(models: Path, mesh: Any, tmp_path: Path) -> None:
    source = Source(str(models / "qwen2"), False, seed=7)
    first = read_value_model(source, read_config(source), torch.float32)
    assert isinstance(first, ValueModel)
    again = read_value_model(source, read_config(source), torch.float32)
    assert torch.equal(first.value_head.weight, again.value_head.weight)  # the seed decides, not the moment
    with torch.no_grad():
        first.value_head.weight.fill_(0.25)
        first.value_head.bias.fill_(-1.0)
    first.save_pretrained(tmp_path)

    loaded = model_of(tmp_path, mesh, kind="value").module

    assert (loaded.value_head.weight.full_tensor() == 0.25).all()
    assert (loaded.value_head.bias.full_tensor() == -1.0).all()


def test_missing_model_is_named(tmp_path: Path, mesh: Any) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        model_of(tmp_path, mesh)


def changed(model: Path, to: Path, **settings: object) -> Source:
    """A copy of a model whose config.json says something else."""
    shutil.copytree(model, to)
    config = json.loads((to / "config.json").read_text())
    config.pop("layer_types", None)
    (to / "config.json").write_text(json.dumps(config | settings))
    return Source(str(to), False, 1)


@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_a_model_without_all_of_its_weights_is_refused(models: Path, mesh: Any, tmp_path: Path, kind: str) -> None:
    """transformers makes up what is not there, and a run would train random layers."""
    layers = read_config(Source(str(models / "qwen2"), False, 1)).num_hidden_layers
    source = changed(models / "qwen2", tmp_path / "model", num_hidden_layers=layers + 1)
    with pytest.raises(ModelError, match=rf"lacks \d+ of its weights: .*layers\.{layers}\."):
        sharded(kind, source, FP32, mesh, checkpointing=False)


@pytest.mark.parametrize("odd", [{"rms_norm_eps": "x"}, {"rope_scaling": 7}, {"num_attention_heads": 0}])
def test_a_config_of_odd_values_is_one_error(models: Path, tmp_path: Path, odd: dict[str, object]) -> None:
    source = changed(models / "qwen2", tmp_path / "model", **odd)
    with pytest.raises(ModelError) as caught:
        read_causal_lm(source, read_config(source), torch.float32)
    assert source.path in caught.value.message and "\n" not in caught.value.message
    assert not caught.value.message.endswith(":")


def test_a_path_that_this_node_has_not_is_told_as_one_and_the_hub_is_not_asked(tmp_path: Path, mesh: Any) -> None:
    missing = tmp_path / "none"
    said = f"there is no folder {missing} on {socket.gethostname()}"
    with pytest.raises(ModelError, match=said):
        model_of(missing, mesh)
    with pytest.raises(ModelError, match=said):
        load_tokenizer(ModelConfig(path="org/name", tokenizer_path=str(missing)))
