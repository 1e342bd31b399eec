"""One update computed once more: float64, one row at a time, plain autograd and AdamW written out.

The run's own ranks do a real update on a made-up mini-batch (`made_up`) between two saves. From the first save, this
module comes to the second by other means: a model of `transformers` on unpadded rows, the losses from the papers'
formulas token by token, the optimizer by hand. It runs in the warm process, which has torch and transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from devkit.smoke import plain_lora
from devkit.smoke.gate import made_up_size
from devkit.smoke.plain_adamw import AdamW, Applied, applied
from trainer.config.schema import ActorConfig, Config, CriticConfig, CriticModelConfig, ModelConfig, OptimConfig
from trainer.precision import in_precision
from trainer.records import TrainBatch

RATIOS = (0.25, 0.5, 0.9, 1.1, 1.6, 4.0)  # of new to old probabilities: beyond the clips, and a dual clip of 3

Row = dict[str, Any]
Furthest = tuple[int, int, float, float]  # row, token, what the run says there, and what it should be


@dataclass(frozen=True)
class Settings:
    """What an update depends on, of one role."""

    role: str
    temperature: float
    epochs: int
    mode: str
    horizon: float
    grad_clip: float
    optim: OptimConfig
    total_steps: int
    clip_low: float = 0.0
    clip_high: float = 0.0
    dual_clip: float | None = None
    entropy_coeff: float = 0.0
    kl_coef: float = 0.0  # of the loss; 0: none
    kl_type: str = ""
    value_clip: float = 0.0
    lora_scale: float = 0.0  # that adapters count; 0: the weights train


@dataclass(frozen=True)
class Expected:
    """What the update should have reported and done."""

    furthest: Furthest  # of the run's log-probs or values
    steps: tuple[dict[str, float], ...]  # by optimizer step: losses, fractions, grad_norm
    applied: Applied  # by the run's optimizer, beside AdamW's formulas
    lr: float
    reference: Furthest | None = None  # of the reference's log-probs, where the role is the actor and there is one
    merged: dict[str, str] | None = None  # digests of an actor's weights with their adapters, after the update


def heard(answer: Mapping[str, Any]) -> Expected:
    """From what the warm process answers to `expect`."""
    own = {"furthest": tuple(answer["furthest"]), "steps": tuple(answer["steps"])}
    own |= {"reference": tuple(answer["reference"])} if answer["reference"] else {}
    return Expected(**{**answer, **own, "applied": Applied(**answer["applied"])})


def settings_of(config: Config, role: str, total_steps: int) -> Settings:
    actor, critic = config.actor_rollout_ref.actor, config.critic
    own: ActorConfig | CriticConfig = actor if role == "actor" else critic
    common = Settings(
        role=role,
        temperature=config.actor_rollout_ref.rollout.temperature,
        epochs=own.ppo_epochs,
        mode=own.loss_agg_mode,
        horizon=float(actor.loss_scale_factor or config.data.max_response_length),
        grad_clip=own.grad_clip,
        optim=own.optim,
        total_steps=total_steps,
        lora_scale=scale_of(config.actor_rollout_ref.model if role == "actor" else critic.model),
    )
    if role == "critic":
        return replace(common, value_clip=critic.cliprange_value)
    return replace(
        common,
        clip_low=actor.clip_ratio_low,
        clip_high=actor.clip_ratio_high,
        dual_clip=actor.clip_ratio_c,
        entropy_coeff=actor.entropy_coeff,
        kl_coef=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
        kl_type=actor.kl_loss_type,
    )


def scale_of(model: ModelConfig | CriticModelConfig) -> float:
    return model.lora_alpha / model.lora_rank if model.lora_rank else 0.0


def ratios(actor: ActorConfig) -> Tensor:
    """RATIOS, none of them at a bound of the clips, where rounding would decide whether it is clipped."""
    bounds = (1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high, actor.clip_ratio_c or 0.0)
    return torch.tensor([ratio * (1.03 if min(abs(ratio - at) for at in bounds) < 0.01 else 1) for ratio in RATIOS])


def shortened(batch: TrainBatch) -> TrainBatch:
    """With responses of different lengths: those of a new model are mostly as long as they may be, and then a mean over
    tokens is one over responses. What is cut off stays in its place, outside the mask."""
    rollout = batch.experience.rollout
    lengths_B, rows_B = rollout.mask_BT.sum(-1), torch.arange(len(batch))
    kept_B = lengths_B - rows_B % 4 * lengths_B // 5
    mask_BT = rollout.mask_BT * (torch.arange(rollout.mask_BT.shape[-1]) < kept_B[:, None])
    rollout = replace(rollout, mask_BT=mask_BT, logp_BT=rollout.logp_BT * mask_BT)
    return replace(batch, experience=replace(batch.experience, rollout=rollout))


def made_up(batch: TrainBatch, logp_BT: Tensor, values_BT: Tensor | None, config: Config, seed: int) -> TrainBatch:
    """The rows of `batch` with other numbers: every branch of the losses is taken by some tokens.

    `logp_BT` and `values_BT` are the models' as they are now.
    """
    actor, value_clip = config.actor_rollout_ref.actor, config.critic.cliprange_value
    size = made_up_size(actor)
    generator = torch.Generator().manual_seed(seed)
    seen = batch.experience
    mask_BT = seen.rollout.mask_BT

    def uniform(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(mask_BT.shape, generator=generator)) * mask_BT

    number_BT = (mask_BT.flatten().cumsum(0) - 1).reshape(mask_BT.shape)  # of each token: twelve have all there is
    old_BT = (logp_BT - ratios(actor).log()[number_BT % len(RATIOS)]) * mask_BT
    sign_BT = 1.0 - 2.0 * (number_BT // len(RATIOS) % 2)
    changed = replace(
        seen,
        old_logp_BT=old_BT,
        ref_logp_BT=None if seen.ref_logp_BT is None else (logp_BT + uniform(-0.5, 0.5)) * mask_BT,
        values_BT=None if values_BT is None else (values_BT + uniform(-3 * value_clip, 3 * value_clip)) * mask_BT,
    )
    return replace(
        batch,
        experience=changed,
        advantages_BT=size * uniform(0.2, 1.5) * sign_BT,
        returns_BT=uniform(-1.0, 1.0),
        weights_BT=None if batch.weights_BT is None else uniform(0.5, 2.0),
    )


def write(batch: TrainBatch, said_BT: Tensor, folder: Path, role: str, reference_BT: Tensor | None = None) -> None:
    """The batch of one role as plain rows without padding. `said_BT`: its actor's log-probs, or its critic's values;
    `reference_BT`: the log-probs of its reference, as that has them."""
    seen = batch.experience
    prompts, rollout = seen.rollout.prompts, seen.rollout
    columns = {
        "said": said_BT,
        "reference": reference_BT,
        "old": seen.old_logp_BT,
        "ref": seen.ref_logp_BT,
        "value": seen.values_BT,
        "advantage": batch.advantages_BT,
        "return": batch.returns_BT,
        "weight": batch.weights_BT,
    }
    rows: list[Row] = []
    for row in range(len(batch)):
        real = rollout.mask_BT[row].bool()
        prompt, response = prompts.ids_BP[row][prompts.mask_BP[row].bool()], rollout.response_BT[row][real]
        rows.append({"prompt": prompt, "response": response})
        rows[-1] |= {name: x_BT[row][real].double() for name, x_BT in columns.items() if x_BT is not None}
    torch.save(rows, folder / f"{role}.pt")


# ------------------------------------------------------------------------------------------------ in the warm process


def expect(folder: str, model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`expected_of`, for the warm process."""
    made = Settings(**{**settings, "optim": OptimConfig(**settings["optim"])})
    return asdict(expected_of(Path(folder), model, made))


def expected_of(folder: Path, model: str, settings: Settings) -> Expected:
    """`folder` holds the rows, and the saves `before` and `after`; `model` is the folder of the architecture."""
    from trainer.learner.checkpoint import read_tensors

    rows: list[Row] = torch.load(folder / f"{settings.role}.pt", weights_only=True)
    before = read_tensors(folder / "before" / settings.role)
    network, trained = _network(model, settings, before)
    adam = AdamW(trained, before, settings.optim, settings.grad_clip, settings.total_steps)
    furthest = _furthest(network, rows, settings)
    steps = tuple(_step(network, rows, adam, settings) for _ in range(settings.epochs))
    after = read_tensors(folder / "after" / settings.role)
    merged = _merged(network, after, settings) if settings.role == "actor" and settings.lora_scale else None
    reference = _of_reference(model, rows, settings)
    return Expected(furthest, steps, applied(adam, before, after), adam.lr, reference, merged)


def _merged(network: nn.Module, state: Mapping[str, Tensor], settings: Settings) -> dict[str, str]:
    from trainer.learner.snapshot import digest

    whole = plain_lora.sums(network, _model_of(state), settings.lora_scale)
    return {name: digest(tensor) for name, tensor in whole.items()}


def _model_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("model."): x.double() for name, x in state.items() if name.startswith("model.")}


def _of_reference(model: str, rows: Sequence[Row], settings: Settings) -> Furthest | None:
    """By the weights in the model's folder, which the run began with."""
    from transformers import AutoModelForCausalLM

    if "reference" not in rows[0]:
        return None
    first = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False, **in_precision(torch.float64)).eval()
    return _furthest(first, [row | {"said": row["reference"]} for row in rows], settings)


def _network(model: str, settings: Settings, state: Mapping[str, Tensor]) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """The model in float64, and what of it trains, by the run's names."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    network: nn.Module
    if settings.role == "actor":
        network = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **in_precision(torch.float64))
    else:
        backbone = AutoModel.from_config(config, trust_remote_code=False, **in_precision(torch.float64))
        head = nn.Linear(config.get_text_config().hidden_size, 1, dtype=torch.float64)
        network = nn.ModuleDict({"backbone": backbone, "value_head": head})
    weights = _model_of(state)
    factors = {name for name in weights if settings.lora_scale and plain_lora.is_factor(name)}
    plain = {name: x for name, x in weights.items() if name not in factors}
    unknown = network.load_state_dict(plain, strict=False)
    if unknown.unexpected_keys:
        raise ValueError(f"the save has {unknown.unexpected_keys[0]}, which the model has not")
    trained = plain_lora.attach(network, weights, settings.lora_scale) if factors else dict(network.named_parameters())
    return network.eval(), trained


@torch.no_grad()
def _furthest(network: nn.Module, rows: Sequence[Row], settings: Settings) -> Furthest:
    """The token whose log-prob or value of the run is furthest from the model's."""
    found = []
    for number, row in enumerate(rows):
        if settings.role == "actor":
            right_T = _of_response(_all_log_probs(network, row, settings), row)
        else:
            right_T = _values(network, row)
        token = int((row["said"] - right_T).abs().nan_to_num(math.inf).argmax())
        found.append((number, token, float(row["said"][token]), float(right_T[token])))
    return max(found, key=lambda at: abs(at[2] - at[3]) if math.isfinite(at[2]) else math.inf)


def _step(network: nn.Module, rows: Sequence[Row], adam: AdamW, settings: Settings) -> dict[str, float]:
    """One optimizer step on all rows -> what it should report."""
    tokens = [(_actor_tokens if settings.role == "actor" else _critic_tokens)(network, row, settings) for row in rows]
    loss = sum((_aggregate([each[name] for each in tokens], settings) * factor for name, factor in _terms(settings)))
    assert isinstance(loss, Tensor)
    network.zero_grad(set_to_none=True)
    loss.backward()
    told = {
        name: float(_aggregate([each[term] for each in tokens], settings).detach()) * factor
        for name, (term, factor) in _losses(settings).items()
    }
    count = sum(len(row["response"]) for row in rows)
    told |= {
        name: sum(float(each[name].detach().sum()) for each in tokens) / count for name in tokens[0] if "/" in name
    }
    return told | {"grad_norm": adam.step()}


def _terms(settings: Settings) -> list[tuple[str, float]]:
    """What the loss is the sum of, with the factor of each."""
    if settings.role == "critic":
        return [("value", 0.5)]
    terms = [("surrogate", 1.0)]
    terms += [("entropy", -settings.entropy_coeff)] if settings.entropy_coeff else []
    return terms + ([("kl", settings.kl_coef)] if settings.kl_coef else [])


def _losses(settings: Settings) -> dict[str, tuple[str, float]]:
    """What is reported of them."""
    if settings.role == "critic":
        return {"critic/vf_loss": ("value", 0.5)}
    return {"actor/pg_loss": ("surrogate", 1.0)} | ({"actor/kl_loss": ("kl", 1.0)} if settings.kl_coef else {})


def _aggregate(rows: Sequence[Tensor], settings: Settings) -> Tensor:
    """A loss per token of each row -> one number. Every row has a token."""
    sums = torch.stack([row.sum() for row in rows])
    if settings.mode == "token-mean":
        return sums.sum() / sum(len(row) for row in rows)
    if settings.mode == "token-sum":
        return sums.sum()
    if settings.mode == "seq-mean-token-mean":
        return torch.stack([row.mean() for row in rows]).mean()
    if settings.mode == "seq-mean-token-sum":
        return sums.mean()
    return sums.mean() / settings.horizon


def _actor_tokens(network: nn.Module, row: Row, settings: Settings) -> dict[str, Tensor]:
    """By name, a number for each token: terms of the loss, and under the names of metrics what is averaged."""
    all_TV = _all_log_probs(network, row, settings)
    logp_T = _of_response(all_TV, row)
    found: dict[str, list[Tensor]] = {name: [] for name in ("surrogate", "cut", "floored")}
    for new, old, advantage, weight in zip(
        logp_T, row["old"], row["advantage"], row.get("weight", torch.ones(len(logp_T))), strict=True
    ):
        surrogate, cut, floored = _surrogate(new, old, float(advantage), settings)
        for name, number in (("surrogate", -surrogate * weight), ("cut", cut), ("floored", floored)):
            found[name].append(torch.as_tensor(number, dtype=torch.float64))
    stacked = {name: torch.stack(numbers) for name, numbers in found.items()}
    told = {
        "surrogate": stacked["surrogate"],
        "entropy": -(all_TV.exp() * all_TV).sum(-1),
        "actor/pg_clipfrac": stacked["cut"],
        "actor/pg_clipfrac_lower": stacked["floored"],
        "actor/ppo_kl": row["old"] - logp_T,
    }
    return told | ({"kl": _kl(logp_T - row["ref"], settings.kl_type)} if settings.kl_coef else {})


def _all_log_probs(network: nn.Module, row: Row, settings: Settings) -> Tensor:
    """Of each token of the vocabulary, before each token of the response is taken."""
    ids, first = torch.cat([row["prompt"], row["response"]]), len(row["prompt"])
    logits_TV = network(input_ids=ids[None], use_cache=False).logits[0, first - 1 : -1] / settings.temperature
    all_TV: Tensor = logits_TV - logits_TV.logsumexp(-1, keepdim=True)
    return all_TV


def _of_response(all_TV: Tensor, row: Row) -> Tensor:
    return all_TV.gather(-1, row["response"][:, None])[:, 0]


def _surrogate(new: Tensor, old: Tensor, advantage: float, settings: Settings) -> tuple[Tensor, float, float]:
    """Schulman et al. 2017, eq. 7, which is to be made large, with the floor of Ye et al. 2020, eq. 5."""
    ratio = (new - old).exp()
    allowed = min(max(float(ratio.detach()), 1 - settings.clip_low), 1 + settings.clip_high)
    plain, clipped = ratio * advantage, allowed * advantage
    cut = clipped < float(plain.detach())
    best: Tensor = torch.full_like(ratio, clipped) if cut else plain
    floor = settings.dual_clip
    floored = floor is not None and advantage < 0 and float(best.detach()) < floor * advantage
    if floored:
        assert floor is not None
        best = torch.full_like(ratio, floor * advantage)
    return best, float(cut), float(floored)


def _kl(d_T: Tensor, kind: str) -> Tensor:
    """Schulman 2020, of d = log p(actor) - log p(reference); "+" has the gradient of k2."""
    if kind.endswith("+"):
        value, slope = _kl(d_T, kind[:-1]).detach(), d_T.square() / 2
        return value + slope - slope.detach()
    if kind in ("kl", "k1"):
        return d_T
    if kind == "abs":
        return d_T.abs()
    if kind in ("mse", "k2"):
        return d_T.square() / 2
    return (-d_T).exp() - 1 + d_T


def _critic_tokens(network: nn.Module, row: Row, settings: Settings) -> dict[str, Tensor]:
    """The larger of two squared errors: of the value, and of the value kept near the old one (OpenAI's ppo2)."""
    value_T = _values(network, row)
    # To the bit the value itself where nothing is cut: rounding must not count as clipped.
    near_T = value_T.clamp(row["value"] - settings.value_clip, row["value"] + settings.value_clip)
    error_T, near_error_T = (value_T - row["return"]).square(), (near_T - row["return"]).square()
    return {
        "value": torch.maximum(error_T, near_error_T),
        "critic/vf_clipfrac": (near_error_T > error_T).double(),
        "critic/vpred_mean": value_T,
    }


def _values(network: nn.Module, row: Row) -> Tensor:
    """Before each token of the response is taken."""
    assert isinstance(network, nn.ModuleDict)
    ids, first = torch.cat([row["prompt"], row["response"]]), len(row["prompt"])
    hidden_TD = network["backbone"](input_ids=ids[None], use_cache=False).last_hidden_state[0, first - 1 : -1]
    value_T: Tensor = network["value_head"](hidden_TD)[:, 0]
    return value_T
