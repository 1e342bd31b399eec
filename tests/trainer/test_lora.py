"""Low-rank adapters: worked numbers, gradients by the merged formula, and what is saved, sent and read again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from tests.trainer.batches import random_ids, rollout_of, train_batch
from tests.trainer.conftest import ARCHITECTURES, Words
from trainer import ppo
from trainer.config import load
from trainer.config.schema import Config, OptimConfig, TrainedFsdpConfig
from trainer.errors import CheckpointError, ModelError
from trainer.export import export
from trainer.learner import checkpoint, lora, lora_files
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Trained
from trainer.learner.lora import Adapters
from trainer.learner.models import Source, sharded
from trainer.learner.unadapted import Unadapted
from trainer.records import MiniBatch
from trainer.tokenizer import load_tokenizer

RANK_2 = Adapters(rank=2, alpha=3.0, seed=1)
Make = Callable[..., Trained]


@pytest.fixture(scope="module")
def make(models: Path, mesh: Any) -> Make:
    """`make()`: a model with adapters and its optimizer."""

    def trained(
        kind: str = "causal_lm",
        folder: str | Path = "qwen2",
        adapters: Adapters | None = RANK_2,
        memory: TrainedFsdpConfig = TrainedFsdpConfig(dtype="fp32"),  # noqa: B008 - frozen
        packed: bool = False,
        checkpointing: bool = False,
    ) -> Trained:
        source = Source(str(models / folder), False, 1)
        module = sharded(kind, source, memory, mesh, checkpointing=checkpointing, adapters=adapters)
        options, optim = ForwardOptions(remove_padding=packed), OptimConfig(lr=1e-2)
        device = torch.device("cpu")
        return Trained(module, device, optim, grad_clip=1.0, total_steps=10, options=options, memory=memory)

    return trained


@pytest.fixture
def config(words: Words) -> Config:
    return load(words("actor_rollout_ref.actor.entropy_coeff=0.01")).config


def update(model: Trained, config: Config, role: str = "actor", times: int = 1) -> Any:
    batch = train_batch(8)
    loss: Any = partial(ppo.actor_loss, model, config=config.actor_rollout_ref.actor)
    if role == "critic":
        loss = partial(ppo.critic_loss, model, config=config.critic)
    totals = ppo.totals_of(batch.experience.rollout.mask_BT, 6)
    share = MiniBatch(batch, totals, torch.arange(8).split(4))
    with model.training():
        return ppo.update(model, [share] * times, loss)


def kept(model: Trained) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.kept_tensors()}


# ------------------------------------------------------------------------------------------------------ by hand


class One(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.one = kind(3, 2)  # of Conv1D: [out, in], its own order


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_one_module_by_hand(kind: type[nn.Module]) -> None:
    """W = [[1, 2], [3, 4], [5, 6]] and so on, rank 1, alpha 0.5: y = x W' + 0.5 (x A') B'."""
    model = One(lambda _i, _o: nn.Linear(2, 3) if kind is nn.Linear else Conv1D(3, 2))  # type: ignore[arg-type]
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])  # [out, in]
    model.one.weight.data.copy_(weight if kind is nn.Linear else weight.T)
    model.one.bias.data.copy_(torch.tensor([0.25, 0.5, 0.75]))
    lora.adapt(model, Adapters(rank=1, alpha=0.5))
    (adapted,) = lora.adapted(model).values()
    assert type(adapted).__name__ == f"Adapted{kind.__name__}" and isinstance(adapted, kind)
    x = torch.tensor([[1.0, -1.0]])
    assert adapted(x).tolist() == [[-0.75, -0.5, -0.25]]  # B is zeros
    adapted.lora_A.weight.data.copy_(torch.tensor([[2.0, 1.0]]))
    adapted.lora_B.weight.data.copy_(torch.tensor([[1.0], [0.0], [-2.0]]))
    # x A' = 1; times 0.5 B' = [0.5, 0, -1]
    assert adapted(x).tolist() == [[-0.25, -0.5, -1.25]]
    with lora.without(model):
        assert adapted(x).tolist() == [[-0.75, -0.5, -0.25]]
    assert adapted(x).tolist() == [[-0.25, -0.5, -1.25]]
    factors = adapted.lora_A.weight, adapted.lora_B.weight
    whole = lora.merged(adapted.weight, *factors, adapted.lora_scale, transposed=adapted.transposed)
    # 0.5 B A = [[1, 0.5], [0, 0], [-2, -1]]
    expected = torch.tensor([[2.0, 2.5], [3.0, 4.0], [3.0, 5.0]])
    assert torch.equal(whole, expected if kind is nn.Linear else expected.T)


def test_merging_rounds_once_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = torch.Generator().manual_seed(3)
    weight, a, b = (torch.randn(*shape, generator=dice) for shape in ((37, 19), (4, 19), (37, 4)))
    exact = weight.double() + 1.7 * sum(torch.outer(b[:, k].double(), a[k].double()) for k in range(4))
    whole = lora.merged(weight, a, b, 1.7)
    assert whole.dtype == torch.float32 and torch.equal(whole, exact.float())
    monkeypatch.setattr(lora, "CHUNK", 40)
    assert torch.equal(lora.merged(weight, a, b, 1.7), whole)
    assert torch.equal(lora.merged(weight.T.contiguous(), a, b, 1.7, transposed=True), whole.T)
    halves = lora.merged(weight.bfloat16(), a, b, 1.7)
    assert halves.dtype == torch.float32 and torch.allclose(halves, whole, atol=0.02)


def test_new_adapters_are_uniform_with_the_variance_of_the_paper(make: Make) -> None:
    """A in +-1 / sqrt(in), by the seed alone; B zeros, so that nothing has changed yet."""
    first, again, other = (kept(make(adapters=dataclasses.replace(RANK_2, seed=seed))) for seed in (1, 1, 2))
    wide = torch.cat([x.flatten() * x.shape[1] ** 0.5 for name, x in first.items() if name.endswith(lora.A)])
    assert wide.abs().max() <= 1 and wide.var() == pytest.approx(1 / 3, rel=0.1)
    assert all(not x.any() for name, x in first.items() if name.endswith(lora.B))
    assert all(torch.equal(x, again[name]) for name, x in first.items())
    assert all(torch.equal(x, other[name]) != name.endswith(lora.A) for name, x in first.items())


# -------------------------------------------------------------------------------------------------- what is adapted

ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]


@pytest.mark.parametrize(
    ("targets", "exclude", "expected"),
    [
        (("all-linear",), (), [*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]),
        (("q_proj", "self_attn.v_proj"), (), ["self_attn.q_proj", "self_attn.v_proj"]),
        ((r"model\.layers\.\d+\.mlp\.(up|down)_proj",), (), ["mlp.up_proj", "mlp.down_proj"]),
        (("all-linear",), (r".*mlp.*", "k_proj"), ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj"]),
    ],
)
@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_targets(make: Make, kind: str, targets: Any, exclude: Any, expected: list[str]) -> None:
    """Names are those of the language model, of a critic too; the output layer is none of `all-linear`."""
    model = make(kind, adapters=dataclasses.replace(RANK_2, targets=targets, exclude=exclude))
    prefix = "model.layers" if kind == "causal_lm" else "backbone.layers"
    wanted = {f"{prefix}.{layer}.{name}.weight" for layer in (0, 1) for name in expected}
    assert lora.adapted(model.module).keys() == wanted
    heads = {"value_head.weight", "value_head.bias"} if kind == "value" else set()
    factors = {f"{name.removesuffix('.weight')}{part}" for name in wanted for part in (lora.A, lora.B)}
    assert model.parameter_names == factors | heads
    trained = {id(p) for group in model.optimizer.param_groups for p in group["params"]}
    named = dict(model.module.named_parameters())
    assert trained == {id(named[name]) for name in model.parameter_names}
    assert {named[name].dtype for name in model.parameter_names} == {torch.float32}


@pytest.mark.parametrize(
    ("folder", "targets", "said"),
    [
        ("qwen2", ("c_attn",), "names no module of the model"),
        ("qwen2", ("embed_tokens",), r"embed_tokens \(Embedding\): linear modules alone"),
        ("qwen2", ("mlp",), r"\(Qwen2MLP\): linear modules alone"),
        ("qwen2-tied", ("lm_head",), "lm_head, whose weight is also another module's"),
    ],
)
def test_what_cannot_be_adapted_is_one_error(make: Make, folder: str, targets: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        make(folder=folder, adapters=dataclasses.replace(RANK_2, targets=targets))
    assert caught.value.hint


# ------------------------------------------------------------------------------------------------------- computation

PROMPTS, ANSWERS = random_ids([4, 1, 6], 1), random_ids([3, 5, 1], 2)


def moved(model: Trained) -> Trained:
    """With a B that is not zeros."""
    dice = torch.Generator().manual_seed(8)
    for each in lora.adapted(model.module).values():
        factor = each.lora_B.weight.to_local()  # type: ignore[operator]
        factor.data.copy_(0.1 * torch.randn(factor.shape, generator=dice))
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_merged_formula(
    make: Make, models: Path, architecture: str, packed: bool, checkpointing: bool
) -> None:
    """By autograd through W + scale B A in a plain transformers model; no weight has a gradient."""
    model = moved(make(folder=architecture, packed=packed, checkpointing=checkpointing))
    rollout = rollout_of(PROMPTS, ANSWERS)
    model.log_probs(rollout, entropy=False).logp_BT.square().sum().backward()
    named = dict(model.module.named_parameters())
    assert {name for name, p in named.items() if p.grad is not None} == model.parameter_names

    plain = AutoModelForCausalLM.from_pretrained(models / architecture).double().eval().requires_grad_(False)
    leaves = {n: x.double().requires_grad_(lora.is_factor(n)) for n, x in kept(model).items()}
    weights = {}
    for name in lora.adapted(model.module):
        stem = name.removesuffix(".weight")
        a, b = leaves[stem + lora.A], leaves[stem + lora.B]
        delta = 1.5 * b @ a
        weights[name] = leaves[name].detach() + (delta.T if architecture == "gpt2" else delta)
    total = torch.zeros((), dtype=torch.float64)
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = torch.tensor([[*prompt, *answer]])
        logits = functional_call(plain, weights, kwargs={"input_ids": ids, "use_cache": False}).logits[0]
        at = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])
        total = total + at.square().sum()
    total.backward()
    for name in model.parameter_names:
        found, wanted = named[name].grad.full_tensor().double(), leaves[name].grad  # type: ignore[union-attr]
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_weights_say_the_same(make: Make, mesh: Any, architecture: str) -> None:
    """What an engine gets, in a plain model of the same architecture; without adapters it is the first model."""
    model, rollout = moved(make(folder=architecture)), rollout_of(PROMPTS, ANSWERS)
    plain = make(folder=architecture, adapters=None)
    with torch.no_grad():
        first = plain.log_probs(rollout, entropy=False).logp_BT
        reference = Unadapted(model).log_probs(rollout, entropy=False).logp_BT
        torch.testing.assert_close(reference, first, atol=0, rtol=0)
        adapted = model.log_probs(rollout, entropy=False).logp_BT
        assert (adapted - first).abs().max() > 1e-3
        before = kept(model)
        sent = dict(model.full_tensors())
        assert sent.keys() == dict(plain.full_tensors()).keys()
        assert all(torch.equal(x, before[name]) for name, x in kept(model).items())  # the actor's own are untouched
        for name, parameter in plain.module.named_parameters():
            parameter.to_local().copy_(sent[name])  # type: ignore[operator]
        again = plain.log_probs(rollout, entropy=False).logp_BT
    torch.testing.assert_close(adapted, again, atol=2e-5, rtol=1e-4)


def test_an_adapted_output_layer_counts(make: Make) -> None:
    """Log-probs are not computed from its weight alone."""
    rollout = rollout_of(PROMPTS, ANSWERS)
    model = make(adapters=dataclasses.replace(RANK_2, targets=("lm_head",)))
    with torch.no_grad():
        before = model.log_probs(rollout, entropy=False).logp_BT
        after = moved(model).log_probs(rollout, entropy=False).logp_BT
    assert not model.forward.head_is_all and (after - before).abs().max() > 1e-3


# ------------------------------------------------------------------------------------------------------------ updates


@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize("model_dtype", ["fp32", "bf16"])
def test_adapters_train_and_weights_stay(make: Make, config: Config, role: str, model_dtype: str) -> None:
    """A moves from the second step on: its gradient is 0 as long as B is."""
    kind = "causal_lm" if role == "actor" else "value"
    model = make(kind, memory=TrainedFsdpConfig(model_dtype=model_dtype, dtype="fp32"))
    before = kept(model)
    first = update(model, config, role)
    assert set(first.untrained) == {name for name in model.parameter_names if name.endswith(lora.A)}
    assert update(model, config, role).untrained == ()
    for name, tensor in kept(model).items():
        assert torch.equal(tensor, before[name]) == (name not in model.parameter_names), name
        assert tensor.dtype == (
            torch.float32 if name in model.parameter_names or model_dtype == "fp32" else torch.bfloat16
        )
    reference = Unadapted(model)
    assert {n: x.shape for n, x in reference.full_tensors()} == {n: x.shape for n, x in model.full_tensors()}
    assert all(torch.equal(x, before[n]) for n, x in reference.full_tensors() if "value_head" not in n)


def test_offload_changes_no_bit(make: Make, config: Config) -> None:
    away = TrainedFsdpConfig(dtype="fp32", param_offload=True, optimizer_offload=True, grad_offload=True)
    models = [make(), make(memory=away)]
    for model in models:
        update(model, config, times=2)
    first, other = map(kept, models)
    assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())


# -------------------------------------------------------------------------------------------------------- on the disk


def saved(model: Trained, folder: Path, models: Path) -> Path:
    """As a run saves it."""
    checkpoint.save(model, folder / "actor")
    checkpoint.save_identity(model.module, load_tokenizer_of(models), folder / "actor" / "huggingface")
    checkpoint.save_adapter(model, folder / "actor" / lora_files.FOLDER, write=True)
    return folder


def load_tokenizer_of(models: Path) -> Any:
    from trainer.config.schema import ModelConfig

    return load_tokenizer(ModelConfig(path=str(models / "qwen2")))


def test_a_checkpoint_goes_on_to_the_bit(make: Make, config: Config, tmp_path: Path) -> None:
    model = make()
    update(model, config, times=2)
    checkpoint.save(model, tmp_path / "actor")
    resumed = make(adapters=dataclasses.replace(RANK_2, seed=9))
    checkpoint.load(resumed, tmp_path / "actor")
    steps = [update(each, config, times=2).steps for each in (model, resumed)]
    assert steps[0] == steps[1]
    first, other = kept(model), kept(resumed)
    assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("writes", "reads", "said"),
    [
        (RANK_2, None, "has adapters, and this run has none"),
        (None, RANK_2, "has no adapters, and this run has some"),
        (RANK_2, dataclasses.replace(RANK_2, alpha=4.0), "lora_alpha / lora_rank = 1.5, and this run has 2"),
        (RANK_2, Adapters(rank=4, alpha=6.0), "other adapters than this run: .*down_proj.lora_A.weight"),
        (RANK_2, dataclasses.replace(RANK_2, targets=("q_proj",)), "other adapters than this run"),
    ],
)
def test_a_checkpoint_of_other_adapters_is_refused(
    make: Make, tmp_path: Path, writes: Adapters | None, reads: Adapters | None, said: str
) -> None:
    checkpoint.save(make(adapters=writes), tmp_path / "actor")
    with pytest.raises(CheckpointError, match=said) as caught:
        checkpoint.load(make(adapters=reads), tmp_path / "actor")
    assert caught.value.hint


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_export_is_merged_and_has_the_adapter_beside(
    make: Make, models: Path, tmp_path: Path, config: Config, architecture: str
) -> None:
    model = make(folder=architecture)
    update(model, config, times=2)
    folder, output = saved(model, tmp_path / "global_step_1", models), tmp_path / "exported"
    (folder / "state.json").write_text("{}")
    tensors = checkpoint.read_model(folder / "actor")
    sent = dict(model.full_tensors())
    assert all(torch.equal(tensors[name], x) for name, x in sent.items()) and not any(map(lora.is_factor, tensors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.resuming.require_whole", lambda *_: None)
        export(folder, output)
    loaded = AutoModelForCausalLM.from_pretrained(output)
    assert all(torch.equal(parameter, sent[name]) for name, parameter in loaded.named_parameters())
    settings = json.loads((output / "lora_adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["fan_in_fan_out"]) == (2, 3, architecture == "gpt2")
    assert len(settings["target_modules"]) == len(lora.adapted(model.module))
    given = load_file(output / "lora_adapter" / "adapter_model.safetensors")
    factors = {name: x for name, x in kept(model).items() if lora.is_factor(name)}
    assert {f"base_model.model.{name}" for name in factors} == given.keys()
    assert all(torch.equal(given[f"base_model.model.{name}"], x) for name, x in factors.items())


@pytest.fixture
def both_ways(models: Path, tmp_path: Path) -> Path:
    """A GPT-2 whose output layer has a weight of its own, [out, in] where those of its layers are [in, out]."""
    config = AutoConfig.from_pretrained(models / "gpt2", tie_word_embeddings=False)
    torch.manual_seed(4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "both-ways")
    return tmp_path / "both-ways"


@pytest.mark.parametrize("targets", [("all-linear", "lm_head"), ("lm_head",)])
def test_weights_that_are_kept_both_ways_are_merged(
    make: Make, both_ways: Path, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    model = moved(make(folder=both_ways, adapters=dataclasses.replace(RANK_2, targets=targets)))
    checkpoint.save(model, tmp_path / "actor")
    tensors, sent = checkpoint.read_model(tmp_path / "actor"), dict(model.full_tensors())
    assert tensors.keys() == sent.keys() and all(torch.equal(tensors[name], x) for name, x in sent.items())


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # between the two libraries
def test_peft_loads_the_adapter(make: Make, models: Path, tmp_path: Path, config: Config, architecture: str) -> None:
    peft = pytest.importorskip("peft")
    model = make(folder=architecture)
    update(model, config, times=2)
    checkpoint.save_adapter(model, tmp_path / "adapter", write=True)
    plain = AutoModelForCausalLM.from_pretrained(models / architecture)
    found = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").merge_and_unload()
    sent = dict(model.full_tensors())
    for name, parameter in found.named_parameters():
        torch.testing.assert_close(parameter.detach(), sent[name], atol=1e-6, rtol=1e-5)


def test_a_run_begins_with_an_adapter(make: Make, tmp_path: Path, config: Config) -> None:
    model = make()
    update(model, config, times=2)
    checkpoint.save_adapter(model, tmp_path / "adapter", write=True)
    again = make(adapters=dataclasses.replace(RANK_2, seed=5, path=str(tmp_path / "adapter")))
    first, other = kept(model), kept(again)
    assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 4, "alpha": 6.0}, "has r=2, and lora_rank is 4"),
        ({"alpha": 8.0}, "has lora_alpha=3, and lora_alpha is 8"),
        ({"targets": ("q_proj",)}, "has model.layers.0.mlp.down_proj.lora_A.weight"),
    ],
)
def test_an_adapter_for_something_else_is_refused(
    make: Make, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    checkpoint.save_adapter(make(), tmp_path / "adapter", write=True)
    with pytest.raises(ModelError, match=said) as caught:
        make(adapters=dataclasses.replace(RANK_2, path=str(tmp_path / "adapter"), **changes))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("adapter_config.json", '{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_dora": true}', "use_dora=True"),
        ("adapter_config.json", '{"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "all"}', "bias='all'"),
        ("adapter_config.json", "{", "cannot be read"),
        ("adapter_model.safetensors", "xxxxxxxxxxxx", "cannot be read"),
        ("adapter_model.safetensors", None, "is no adapter"),
    ],
)
def test_a_folder_that_is_no_plain_adapter_is_refused(
    make: Make, tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    checkpoint.save_adapter(make(), tmp_path / "adapter", write=True)
    file = tmp_path / "adapter" / name
    file.write_text(content) if content is not None else file.unlink()
    with pytest.raises(ModelError, match=said) as caught:
        make(adapters=dataclasses.replace(RANK_2, path=str(tmp_path / "adapter")))
    assert caught.value.hint and "\n" not in caught.value.message
