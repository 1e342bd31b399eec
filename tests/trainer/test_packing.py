"""Packed rows answer as padded ones: actor, critic and reference, losses and gradients, whatever the lengths."""

from __future__ import annotations

import copy
import dataclasses
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig

from tests.trainer.batches import random_ids, rollout_of
from tests.trainer.conftest import ARCHITECTURES, Words
from trainer import ppo, reports
from trainer.balance import PassLimit
from trainer.config import load
from trainer.learner import attention, head
from trainer.learner.forward import Forward, ForwardOptions
from trainer.learner.fsdp import Model
from trainer.learner.layout import is_level, packed, padded
from trainer.learner.models import ValueModel
from trainer.precision import in_precision
from trainer.records import Experience, Rollout, TrainBatch

CPU = torch.device("cpu")
# Prompts of 1 to 9 tokens, padded on the left; responses that are empty, of one token, and at the limit of 6.
PROMPTS, ANSWERS = random_ids([4, 1, 9, 6, 2], 1), random_ids([3, 0, 6, 1, 5], 2)


def rollout(extra: int = 0) -> Rollout:
    return rollout_of(PROMPTS, ANSWERS, extra)


def whole_model(folder: Path, kind: str, config: PretrainedConfig | None = None) -> Any:
    """Unsharded, the same weights each time; a value head as wide as the values are to be told apart."""
    config = copy.deepcopy(config) or AutoConfig.from_pretrained(folder)  # a model notes its attention in it
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    torch.manual_seed(3)
    if kind == "causal_lm":
        return AutoModelForCausalLM.from_config(config, **in_precision(torch.float32))
    model = ValueModel(AutoModel.from_config(config, **in_precision(torch.float32)))
    torch.nn.init.normal_(model.value_head.weight)
    return model


def pair(folder: Path, kind: str, config: PretrainedConfig | None = None) -> dict[str, Model]:
    return {
        name: Model(whole_model(folder, kind, config), CPU, 0.7, ForwardOptions(remove_padding=name == "packed"))
        for name in ("padded", "packed")
    }


def answer(model: Model, kind: str, of: Rollout) -> Tensor:
    """Everything that the model says of a rollout, [X, B, T]."""
    if kind == "value":
        return model.values(of)[None]
    found = model.log_probs(of, entropy=True)
    return torch.stack([found.logp_BT, found.entropy_BT])


def gradients(model: Model) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_answers_and_gradients(models: Path, mesh: Any, architecture: str, kind: str) -> None:
    found = {}
    for name, model in pair(models / architecture, kind).items():
        found[name] = answer(model, kind, rollout())
        found[name].sin().sum().backward()  # every answer with a weight of its own
        assert model.forward.packs is (name == "packed")
        found[f"{name} gradients"] = gradients(model)
    torch.testing.assert_close(found["packed"], found["padded"], atol=1e-5, rtol=1e-5)
    assert found["packed gradients"].keys() == found["padded gradients"].keys()
    for parameter, gradient in found["padded gradients"].items():
        rounding = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found["packed gradients"][parameter], gradient, atol=rounding, rtol=1e-5)


def experience() -> TrainBatch:
    of, dice = rollout(extra=2), torch.Generator().manual_seed(1)

    def reals() -> Tensor:
        return torch.randn(of.mask_BT.shape, generator=dice) * of.mask_BT

    old = -5.7 * of.mask_BT + 0.1 * reals()
    return TrainBatch(Experience(of, reals(), old, old + 0.1 * reals(), reals()), reals(), reals(), reals())


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_losses(models: Path, mesh: Any, words: Words, role: str) -> None:
    """Every term of the loss, and what is reported of it, within 1e-5."""
    config = load(words()).config
    actor = dataclasses.replace(config.actor_rollout_ref.actor, entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1)
    batch, found = experience(), {}
    for name, model in pair(models / "qwen2", "value" if role == "critic" else "causal_lm").items():
        totals = ppo.totals_of(batch.experience.rollout.mask_BT)
        loss = (
            partial(ppo.critic_loss, config=config.critic)
            if role == "critic"
            else partial(ppo.actor_loss, config=actor)
        )
        value, told = loss(model, batch, totals)
        value.backward()
        norm = torch.stack([gradient.norm() for gradient in gradients(model).values()]).norm()
        found[name] = {"loss": float(value.detach()), "grad_norm": float(norm), **reports.read([told])}
    assert found["packed"] == pytest.approx(found["padded"], abs=1e-5, rel=1e-5)
    assert found["padded"]["grad_norm"] > 0


def test_no_padding_token_is_computed(models: Path, mesh: Any) -> None:
    """The embedding sees the real tokens and no other, the head those before a response token."""
    model = pair(models / "qwen2", "causal_lm")["packed"]
    assert model.forward.packs and model.forward.head_is_all
    seen: list[int] = []
    model.module.model.embed_tokens.register_forward_hook(lambda _, args, __: seen.append(args[0].numel()))  # type: ignore[union-attr,operator]
    model.log_probs(rollout(extra=3), entropy=False)
    assert seen == [sum(map(len, PROMPTS)) + sum(map(len, ANSWERS))]
    layout = packed(rollout(), CPU)
    assert len(layout.before_M) == sum(map(len, ANSWERS))


def test_a_pass_without_any_response_token(models: Path, mesh: Any) -> None:
    """It has nothing to say, but its gradient is there and 0: FSDP waits for it on every rank."""
    empty = rollout_of(PROMPTS[:2], [[], []], extra=2)
    for kind in ("causal_lm", "value"):
        for model in pair(models / "qwen2", kind).values():
            found = answer(model, kind, empty)
            assert found.shape[1:] == (2, 2) and not found.any()
            found.sum().backward()
            assert gradients(model) and not any(gradient.any() for gradient in gradients(model).values())


def test_positions_and_bounds() -> None:
    of = rollout_of([[5, 6], [7]], [[8], [9, 10]], extra=1)
    found, wide = packed(of, CPU), padded(of, CPU)
    assert found.inputs["input_ids"].tolist() == [[5, 6, 8, 7, 9, 10]]
    assert found.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2]]
    assert found.inputs["cu_seq_lens_q"].tolist() == [0, 3, 6] and found.inputs["max_length_q"] == 3
    assert found.before_M.tolist() == [1, 3, 4] and found.labels_M.tolist() == [8, 9, 10]
    assert wide.inputs["input_ids"].tolist() == [[5, 6, 8], [7, 9, 10]]
    assert wide.inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert wide.before_M.tolist() == [1, 3, 4]
    numbers = torch.tensor([1.0, 2.0, 3.0])
    assert found.spread(numbers).tolist() == wide.spread(numbers).tolist() == [[1, 0, 0], [2, 3, 0]]


def test_a_pass_computes_what_its_budget_counts() -> None:
    """Tokens without padding where rows are packed; where they are not, rows times the longest sequence."""
    one_longest = rollout_of([[5, 6, 7], [8]], [[9], [10, 11]], extra=1)  # another prompt than response
    for of in (rollout(extra=3), one_longest):
        lengths = of.lengths_B.tolist()
        assert packed(of, CPU).inputs["input_ids"].numel() == PassLimit(tokens=1).size(lengths)
        assert padded(of, CPU).inputs["input_ids"].numel() == PassLimit(tokens=1, padded_to=1).size(lengths)


# ------------------------------------------------------------------------------------ architectures of another kind


def tiny(kind: str, **more: Any) -> PretrainedConfig:
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
    return AutoConfig.for_model(kind, **sizes, **heads, **more)


def naive(config: PretrainedConfig, temperature: float) -> Tensor:
    """Log-probs of each response token from the model's own logits, without batch or padding."""
    model, of = whole_model(Path(), "causal_lm", config), rollout()
    found = torch.zeros(of.mask_BT.shape)
    for b, (prompt, response) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        logits = model(torch.tensor([prompt + response])).logits[0].detach() / temperature
        for t, token in enumerate(response):
            found[b, t] = logits[len(prompt) + t - 1].log_softmax(-1)[token]
    return found


@pytest.mark.parametrize(
    ("config", "packs", "head_is_all"),
    [
        (tiny("cohere", logit_scale=4.0), True, False),
        (tiny("granite", logits_scaling=0.2, attention_multiplier=0.5), True, False),
        (tiny("mistral", sliding_window=3), True, True),
        (tiny("gemma2", final_logit_softcapping=0.1, attn_logit_softcapping=0.1), False, False),
        (tiny("gemma2", final_logit_softcapping=0.1, attn_logit_softcapping=None, sliding_window=3), True, False),
    ],
    ids=["logits-scaled", "scores-scaled", "sliding-window", "scores-capped", "logits-capped"],
)
def test_what_an_architecture_adds_is_kept(
    mesh: Any, caplog: pytest.LogCaptureFixture, config: PretrainedConfig, packs: bool, head_is_all: bool
) -> None:
    """Padded or packed, the log-probs are those of the model's own logits, one sequence at a time."""
    for name, model in pair(Path(), "causal_lm", config).items():
        found = model.log_probs(rollout(), entropy=False).logp_BT
        torch.testing.assert_close(found.detach(), naive(config, 0.7), atol=2e-5, rtol=1e-5)
        assert model.forward.head_is_all is head_is_all
        assert model.forward.packs is (packs and name == "packed")
    notes = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [("no effect" in note, "softcap" in note) for note in notes] == ([] if packs else [(True, True)])


class Leaking(torch.nn.Module):
    """Mixes each token with those before it in its row, as a recurrent state does."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(hidden + hidden.cumsum(1), *args, **kwargs)


def test_a_state_that_leaks_between_sequences_is_noticed(
    models: Path, mesh: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = whole_model(models / "qwen2", "causal_lm")
    module.model.layers[1].mlp = Leaking(module.model.layers[1].mlp)
    model = Model(module, CPU, 1.0, ForwardOptions(remove_padding=True))
    model.log_probs(rollout(), entropy=False)
    assert not model.forward.packs
    assert "use_remove_padding has no effect" in caplog.text and "other results than each alone" in caplog.text


def test_an_old_transformers_pads(models: Path, mesh: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    def register() -> None:
        raise attention.NotPackable("transformers is older than 4.53")

    monkeypatch.setattr(attention, "register", register)
    models_of = pair(models / "qwen2", "causal_lm")
    found = {name: answer(model, "causal_lm", rollout()) for name, model in models_of.items()}
    assert torch.equal(found["packed"], found["padded"]) and "older than 4.53" in caplog.text


def test_the_attention_is_no_part_of_a_saved_model(models: Path, mesh: Any, tmp_path: Path) -> None:
    model = pair(models / "qwen2", "causal_lm")["packed"]
    assert model.forward.packs
    model.module.config.save_pretrained(tmp_path)  # type: ignore[union-attr,operator]
    assert attention.NAME not in (tmp_path / "config.json").read_text()


# --------------------------------------------------------------------------------------------------------- the parts


@pytest.mark.parametrize("window", [None, 1, 2, 4])
def test_attention_one_by_one(window: int | None) -> None:
    """Against one attention over the whole row with a block-diagonal mask."""
    dice = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(9, heads, 8, generator=dice) for heads in (4, 2, 2))
    sequence = torch.tensor([0, 0, 0, 0, 0, 1, 2, 2, 2])
    position = torch.arange(9)
    mask = (sequence[:, None] == sequence) & (position[:, None] >= position)
    mask &= position[:, None] - position < (window or 99)
    rows = (x.transpose(0, 1)[None] for x in (q, k, v))
    expected = scaled_dot_product_attention(*rows, attn_mask=mask, scale=0.3, enable_gqa=True)[0].transpose(0, 1)
    bounds = torch.tensor([0, 5, 6, 9], dtype=torch.int32)
    torch.testing.assert_close(attention.one_by_one(q, k, v, bounds, 0.3, window), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 2])
def test_flash_is_asked_where_it_fits(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """Half precision on a GPU goes to the kernel, in its shapes; what it does not know goes one by one."""
    asked: list[tuple[Any, ...]] = []

    def flash(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float, window: int | None
    ) -> Tensor:
        asked.append((tuple(q.shape), tuple(k.shape), bounds.tolist(), longest, window))
        return attention.one_by_one(q, k, v, bounds, scale, window)

    monkeypatch.setattr(attention, "_KERNEL", {"flash": flash})
    q, k, v = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    bounds = {"cu_seq_lens_q": torch.tensor([0, 5, 9], dtype=torch.int32), "max_length_q": 5, "sliding_window": window}
    plain, _ = attention.attend(torch.nn.Module(), q, k, v, None, **bounds)
    assert not asked and plain.shape == (1, 9, 4, 8)
    monkeypatch.setattr(attention, "_fits_flash", lambda query: True)
    kernel, _ = attention.attend(torch.nn.Module(), q, k, v, None, **bounds)
    assert asked == [((9, 4, 8), (9, 2, 8), [0, 5, 9], 5, window)] and torch.equal(kernel, plain)
    assert attention._window(window) == ((-1, 0) if window is None else (1, 0))


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk_logits", [7, 2 * 7, 10_000])
@pytest.mark.parametrize("kept", [0, 2, 5])
def test_head(entropy: bool, bias: bool, chunk_logits: int, kept: int) -> None:
    """Values and gradients, in float64, against autograd through a log-softmax; in chunks of 1, 2 and all tokens, with
    the logits of none, some and all of the five kept.
    """
    dice = torch.Generator().manual_seed(0)
    numbers = [torch.randn(*shape, generator=dice, dtype=torch.float64) for shape in ((5, 3), (7, 3), (7,))]
    labels = torch.tensor([0, 6, 3, 3, 1])
    weights = torch.randn(2, 5, generator=dice, dtype=torch.float64)

    def run(naive: bool) -> list[Tensor]:
        hidden, weight, b = (x.clone().requires_grad_() for x in numbers)
        shift = b if bias else None
        if naive:
            log_p = (torch.nn.functional.linear(hidden, weight, shift) / 0.7).log_softmax(-1)
            logp, ent = log_p.gather(-1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1) * entropy
        else:
            sizes = {"chunk_logits": chunk_logits, "kept_bytes": kept * 7 * 8}
            logp, ent = head.log_probs(hidden, weight, shift, labels, 0.7, entropy=entropy, **sizes)
        (weights[0] @ logp + weights[1] @ ent).backward()
        return [logp.detach(), ent.detach(), *(x.grad for x in (hidden, weight, b) if x.grad is not None)]

    for found, expected in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


def test_head_in_bf16_sums_its_chunks_in_float32() -> None:
    """The weight's gradient of many chunks is as near to the exact one as that of a single chunk."""
    dice = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=dice).bfloat16() for shape in ((512, 8), (16, 8)))
    labels = torch.randint(16, (512,), generator=dice)

    def gradient(dtype: torch.dtype, chunk_logits: int) -> Tensor:
        w = weight.to(dtype, copy=True).requires_grad_()
        head.log_probs(hidden.to(dtype), w, None, labels, 1.0, entropy=False, chunk_logits=chunk_logits)[
            0
        ].sum().backward()
        assert w.grad is not None
        return w.grad.double()

    exact = gradient(torch.float64, 10**6)
    one, many = ((gradient(torch.bfloat16, size) - exact).norm() for size in (10**6, 16 * 4))
    assert many < 1.5 * one


def test_the_whole_vocabulary_is_never_there_in_float32() -> None:
    """The largest float32 tensor of a pass forward and back is a chunk."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return out

    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(100, 4, requires_grad=True)
    with Largest() as largest:
        logp, ent = head.log_probs(hidden, weight, None, torch.arange(64), 1.0, entropy=True, chunk_logits=800)
        (logp + ent).sum().backward()
    assert largest.numel == 800


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """The rows of each product of a hidden state and the head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and out.shape[1] == 100:
            self.rows.append(len(out))
        return out


@pytest.mark.parametrize(("kept", "forward", "back"), [(0, [8] * 8, [8] * 8), (20, [20, *[8] * 5, 4], [*[8] * 5, 4])])
def test_logits_that_are_kept_are_not_made_again(kept: int, forward: list[int], back: list[int]) -> None:
    """And whatever is kept, the log-probs are the same to the bit, and the gradients but for the order of sums."""
    dice, found = torch.Generator().manual_seed(0), {}
    hidden, weight = (torch.randn(*shape, generator=dice) for shape in ((64, 4), (100, 4)))
    for budget in (kept, 0):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with Products() as products:
            sizes = {"chunk_logits": 800, "kept_bytes": budget * 400}
            logp, ent = head.log_probs(h, w, None, torch.arange(64), 1.0, entropy=True, **sizes)
            made = list(products.rows)
            (logp.sin() + ent).sum().backward()
        assert h.grad is not None and w.grad is not None
        if budget == kept:
            assert (made, products.rows[len(made) :]) == (forward, back)
        found[budget] = logp.detach(), ent.detach(), h.grad, w.grad
    assert all(torch.equal(*pair) for pair in zip(found[kept][:2], found[0][:2], strict=True))
    torch.testing.assert_close(found[kept], found[0], atol=1e-5, rtol=1e-5)


def test_without_a_gradient_nothing_is_kept() -> None:
    hidden, weight = torch.randn(64, 4), torch.randn(100, 4, requires_grad=True)
    with torch.no_grad(), Products() as products:
        head.log_probs(hidden, weight, None, torch.arange(64), 1.0, entropy=False, chunk_logits=800, kept_bytes=8000)
    assert products.rows == [8] * 8


def test_what_is_kept_is_a_budget() -> None:
    """None on a CPU; of whole tiles where it is large; and no more elements than kernels count in 32 bits."""
    weight = torch.empty(1000, 4, dtype=torch.bfloat16)
    assert head.plan(weight).kept == 0
    assert head.plan(weight, kept_bytes=300 * 2000).kept == 256 and head.plan(weight, kept_bytes=3 * 2000).kept == 3
    assert head.plan(weight, kept_bytes=2**40).kept == 2**31 // 1000 // 128 * 128
    assert [*head.Plan(4, 3).parts(9)] == [slice(0, 4), slice(4, 7), slice(7, 10)]
    assert [*head.Plan(4, 3).parts(2)] == [slice(0, 2)] and not [*head.Plan(4, 3).parts(0)]


def test_a_sharded_model_answers_as_a_whole_one(models: Path, mesh: Any) -> None:
    """FSDP's root holds head and embeddings: they are whole within its forward methods only."""
    from trainer.config.schema import FsdpConfig
    from trainer.learner.models import Source, sharded

    source = Source(str(models / "qwen2-tied"), False, 1)
    module = sharded("causal_lm", source, FsdpConfig(dtype="fp32"), mesh, checkpointing=True)
    one = Model(module, CPU, 0.7, ForwardOptions(remove_padding=True))
    plain = AutoModelForCausalLM.from_pretrained(models / "qwen2-tied", **in_precision(torch.float32))
    other = Model(plain, CPU, 0.7)
    assert isinstance(one.forward, Forward) and one.forward.packs and one.forward.head_is_all
    torch.testing.assert_close(
        answer(one, "causal_lm", rollout()), answer(other, "causal_lm", rollout()), atol=1e-5, rtol=1e-5
    )


# ------------------------------------------------------------------------------------------------------- level rows


def level_rollout() -> Rollout:
    """Three rows of 28, 28 and 27 tokens, their responses at the batch's limit of 25 or one short of it."""
    return rollout_of(random_ids([3, 2, 3], 4), random_ids([25, 25, 24], 5))


def on_a_gpu(model: Model) -> Model:
    model.forward._may_level = True  # a CPU has nothing to gain by it
    return model


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gemma"])
@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_level_rows_answer_as_padded_ones(models: Path, mesh: Any, architecture: str, kind: str) -> None:
    """And their gradients; what is computed is the rows side by side, without a mask."""
    found = {}
    for name, model in pair(models / architecture, kind).items():
        seen: list[tuple[int, ...]] = []
        embedding = model.forward.backbone.get_input_embeddings()
        assert on_a_gpu(model).forward.levels is (name == "packed")
        embedding.register_forward_hook(lambda _, args, __, seen=seen: seen.append(tuple(args[0].shape)))
        found[name] = answer(model, kind, level_rollout())
        assert seen[-1] == (3, 28) and len(found[name]) == (2 if kind == "causal_lm" else 1)
        found[name].sin().sum().backward()
        found[f"{name} gradients"] = gradients(model)
    torch.testing.assert_close(found["packed"], found["padded"], atol=1e-5, rtol=1e-5)
    for parameter, gradient in found["padded gradients"].items():
        rounding = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found["packed gradients"][parameter], gradient, atol=rounding, rtol=1e-5)


def test_rows_of_other_lengths_stay_packed(models: Path, mesh: Any) -> None:
    model = on_a_gpu(pair(models / "qwen2", "causal_lm")["packed"])
    assert model.forward.lay_out(level_rollout()).inputs["input_ids"].shape == (3, 28)
    assert model.forward.lay_out(rollout()).inputs["input_ids"].shape[0] == 1
    cpu = pair(models / "qwen2", "causal_lm")["packed"]
    assert cpu.forward.lay_out(level_rollout()).inputs["input_ids"].shape[0] == 1


def test_windows_stay_packed(mesh: Any) -> None:
    model = on_a_gpu(pair(Path(), "causal_lm", tiny("mistral", sliding_window=3))["packed"])
    assert model.forward.packs and not model.forward.levels


@pytest.mark.parametrize(
    ("prompts", "responses", "expected"),
    [
        ([3, 3], [25, 25], True),
        ([3, 2], [25, 24], True),
        ([9, 1], [25, 25], False),  # 8 of 68 are padding
        ([3, 3], [25, 23], False),  # 4 % short of the batch's longest, and of the pass
        ([3], [25], True),
    ],
)
def test_what_level_means(prompts: list[int], responses: list[int], expected: bool) -> None:
    of = rollout_of([[5] * n for n in prompts], [[6] * n for n in responses])
    assert is_level(of) is expected


def test_a_row_that_is_short_for_its_batch_is_packed() -> None:
    """Alone in its pass as well: in a pass of another cut it would stand beside longer ones."""
    of = rollout_of([[5, 6]], [[7] * 20], extra=5)
    assert not is_level(of) and is_level(rollout_of([[5, 6]], [[7] * 20]))
