"""Each check passes on what is right and names what is wrong."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from devkit.smoke import checks, recompute
from devkit.smoke.checks import metrics, recorded, updates, weights, whole_run
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.plain_adamw import Applied
from devkit.smoke.plain_update import Expected
from devkit.smoke.recompute import Advantages
from trainer.config.schema import AlgorithmConfig, Config, DataConfig
from trainer.errors import RewardError, WorkerDied
from trainer.metrics import data_metrics, update_metrics
from trainer.ppo import kl_penalty
from trainer.records import Experience, LogProbs, Prompts, Rollout, Row, TrainBatch, UpdateReport

EOS, PAD = 9, 0
RESPONSES = [[5, 6, EOS, PAD], [7, 8, 5, 6], [EOS, PAD, PAD, PAD], [5, EOS, PAD, PAD]]
SCORES = [1.0, 0.0, 0.5, 0.25]
LAST = [2, 3, 0, 1]
KL = AlgorithmConfig(use_kl_in_reward=True, kl_penalty="kl")


def rollout() -> Rollout:
    response = torch.tensor(RESPONSES)
    mask = (response != PAD).long()
    rows = tuple(Row(i, "made up", "none", "") for i in range(4))
    prompts = Prompts(torch.ones(4, 2).long(), torch.ones(4, 2).long(), torch.arange(4), torch.zeros(4).long(), rows)
    return Rollout(prompts, response, mask, -1.5 * mask)


def batch(kl_coef: float = 0.1, **changes: Any) -> TrainBatch:
    """A batch as a healthy step has it; `changes` replace fields of its experience."""
    seen = rollout()
    scores = torch.zeros(4, 4).scatter(1, torch.tensor(LAST)[:, None], torch.tensor(SCORES)[:, None])
    old, ref = -1.5 * seen.mask_BT, -1.25 * seen.mask_BT
    advantages = (torch.tensor(SCORES) - 0.4)[:, None] * seen.mask_BT
    made = Experience(seen, scores, old, ref, 0.5 * seen.mask_BT)
    return TrainBatch(replace(made, **changes), scores - kl_coef * (old - ref), advantages, 0.5 * seen.mask_BT)


def with_rollout(of: TrainBatch, **changes: Any) -> TrainBatch:
    return replace(of, experience=replace(of.experience, rollout=replace(of.experience.rollout, **changes)))


def set_at(x: Tensor, row: int, column: int, value: float) -> Tensor:
    changed = x.clone()
    changed[row, column] = value
    return changed


def report(*, kl: float = 0.0, clipped: float = 0.0, untrained: tuple[str, ...] = (), skipped: int = 0) -> UpdateReport:
    return UpdateReport(
        ({"actor/ppo_kl": kl, "actor/pg_clipfrac": clipped, "grad_norm": 1.0},), untrained, 1e-3, skipped
    )


def passes(outcome: Outcome) -> None:
    assert outcome.ok is True, outcome.detail


def fails(outcome: Outcome, words: str) -> None:
    assert outcome.ok is False, outcome.detail
    assert re.search(r"[:?] look at trainer/\w[\w/]*\.py:\d+", outcome.detail), "it says where to look"
    assert re.search(words, outcome.detail), outcome.detail


def has_nothing_to_say(outcome: Outcome) -> None:
    assert outcome.ok is None, outcome.detail


def test_rollout_logprobs() -> None:
    seen, old = rollout(), batch().experience.old_logp_BT
    passes(recorded.rollout_logprobs(seen, old + 1e-6))
    passes(recorded.rollout_logprobs(seen, set_at(old, 2, 3, -9.0)))  # padding
    fails(recorded.rollout_logprobs(seen, set_at(old, 0, 1, -1.4)), r"differ by 1\.0e-01 nats")


def test_masks() -> None:
    good = batch()
    passes(recorded.masks(good, EOS, 4))
    mask = good.experience.rollout.mask_BT
    for row, column, value in ((0, 3, 1), (0, 2, 0), (2, 0, 0)):
        fails(
            recorded.masks(with_rollout(good, mask_BT=set_at(mask, row, column, value)), EOS, 4),
            "1 of 4 response masks",
        )


def test_masks_finds_responses_that_stop_short() -> None:
    """Row 1 has four tokens and no EOS."""
    fails(recorded.masks(batch(), EOS, 5), r"4 tokens and no EOS, and data\.max_response_length=5: look at trainer/")
    fails(recorded.masks(batch(), EOS, 3), r"a response has 4 tokens, and data\.max_response_length=3")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("old_logp_BT", "old log-probs"),
        ("ref_logp_BT", "reference log-probs"),
        ("values_BT", "values"),
    ],
)
def test_masks_finds_what_is_set_on_padding(field: str, name: str) -> None:
    spilt = set_at(getattr(batch().experience, field), 0, 3, 0.5)
    fails(recorded.masks(batch(**{field: spilt}), EOS, 4), f"^{name} are set outside the response")


def test_masks_finds_rewards_on_padding_and_missing_log_probs() -> None:
    good = batch()
    fails(
        recorded.masks(replace(good, rewards_BT=set_at(good.rewards_BT, 0, 3, 1.0)), EOS, 4), "^rewards are set outside"
    )
    missing = set_at(good.experience.old_logp_BT, 1, 1, 0.0)
    fails(recorded.masks(batch(old_logp_BT=missing), EOS, 4), "old log-probs are missing")


def test_rewards() -> None:
    seen = batch().experience
    passes(recorded.rewards(seen, torch.tensor(SCORES)))
    fails(recorded.rewards(seen, torch.tensor(SCORES).roll(1)), "4 of 4 rows")
    early = replace(
        seen, scores_BT=torch.zeros(4, 4).scatter(1, torch.tensor([[0]] * 4), torch.tensor(SCORES)[:, None])
    )
    fails(recorded.rewards(early, torch.tensor(SCORES)), "rows have a score that does not match")
    strewn = replace(seen, scores_BT=set_at(seen.scores_BT, 1, 0, 0.5))
    fails(recorded.rewards(strewn, torch.tensor(SCORES)), "1 of 4 rows have scores before the last token")


@pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k3+"])
def test_kl_in_reward(kind: str) -> None:
    config = replace(KL, kl_penalty=kind)
    good = batch()
    seen = good.experience
    assert seen.ref_logp_BT is not None
    penalty = 0.1 * kl_penalty(seen.old_logp_BT, seen.ref_logp_BT, kind)
    passes(recorded.kl_in_reward(replace(good, rewards_BT=seen.scores_BT - penalty), 0.1, config))
    fails(recorded.kl_in_reward(replace(good, rewards_BT=seen.scores_BT + penalty), 0.1, config), "penalty within")
    fails(recorded.kl_in_reward(replace(good, rewards_BT=seen.scores_BT), 0.1, config), "penalty within")


def test_kl_in_reward_has_nothing_to_say_without_kl() -> None:
    has_nothing_to_say(recorded.kl_in_reward(batch(), 0.1, AlgorithmConfig(use_kl_in_reward=False)))
    has_nothing_to_say(recorded.kl_in_reward(batch(ref_logp_BT=None), 0.1, KL))
    same = batch().experience.old_logp_BT
    has_nothing_to_say(recorded.kl_in_reward(batch(ref_logp_BT=same), 0.1, KL))


def test_kl_coef_as_configured() -> None:
    has_nothing_to_say(recorded.kl_coef_as_configured(3, 0.01, 0.01))
    fails(recorded.kl_coef_as_configured(3, 0.009, 0.01), r"step 3 ends with a KL coefficient of 0\.009 .* 0\.01: look")


def test_weights_as_computed() -> None:
    weighted = replace(batch(), weights_BT=0.5 * rollout().mask_BT)
    half = recompute.tokens_of(0.5 * rollout().mask_BT, weighted.experience)
    passes(recorded.weights_as_computed(weighted, half))
    fails(
        recorded.weights_as_computed(weighted, [[0.25] * len(row) for row in half]),
        r"weight of response 0, token 0, is 0\.5 but should be 0\.25: look at trainer/ppo\.py",
    )
    fails(recorded.weights_as_computed(weighted, None), "unasked for")
    fails(recorded.weights_as_computed(batch(), half), "there are no importance weights")
    has_nothing_to_say(recorded.weights_as_computed(batch(), None))


def test_metrics_as_counted() -> None:
    made, both = replace(batch(), returns_BT=batch().returns_BT * 3), [("actor", updated())]
    limits = DataConfig(max_prompt_length=2, max_response_length=4)
    told = {**data_metrics(made, Config(data=limits)), **update_metrics("actor", updated())}
    passes(metrics.as_counted(told, made, both, limits))
    for name in ("critic/score/mean", "critic/returns/max", "response_length/clip_ratio", "prompt_length/min"):
        fails(
            metrics.as_counted(told | {name: told[name] + 0.1}, made, both, limits), f"^{name} is .*: look at trainer/"
        )
    told["critic/vf_explained_var"] *= 1 + 1e-6
    passes(metrics.as_counted(told, made, both, limits))
    for wrong in (told["critic/vf_explained_var"] + 0.01, math.nan):
        fails(
            metrics.as_counted(told | {"critic/vf_explained_var": wrong}, made, both, limits),
            r"^critic/vf_explained_var is \S+ but should be",
        )
    fails(metrics.as_counted(told | {"actor/grad_norm": 4.0}, made, both, limits), "^actor/grad_norm is 4 but .* be 2")
    told.pop("actor/lr")
    fails(metrics.as_counted(told, made, both, limits), "^actor/lr is missing")


def test_first_mini_batch() -> None:
    passes(updates.first_mini_batch(report(kl=1e-7)))
    fails(updates.first_mini_batch(report(kl=-1e-3)), r"mean log-ratio 1\.0e-03")
    fails(updates.first_mini_batch(report(clipped=0.25)), "25% clipped")


def test_reference_at_start() -> None:
    seen = batch().experience
    passes(recorded.reference_at_start(replace(seen, ref_logp_BT=seen.old_logp_BT)))
    fails(recorded.reference_at_start(seen), r"differ by 2\.5e-01 nats")
    has_nothing_to_say(recorded.reference_at_start(replace(seen, ref_logp_BT=None)))


WEIGHTS = [{"a": "1", "b": "2"}, {"a": "1", "b": "2"}]
OTHER = [{"a": "1", "b": "2"}, {"a": "1", "b": "3"}]


def test_reference_unchanged() -> None:
    passes(weights.unchanged(WEIGHTS, WEIGHTS))
    fails(weights.unchanged(WEIGHTS, OTHER), "the reference changed: b")


def test_weight_sync_names_the_rank_and_the_tensor() -> None:
    passes(weights.synced(WEIGHTS, WEIGHTS))
    fails(
        weights.synced(WEIGHTS, OTHER),
        r"rank 1's engine has weights that differ from the actor's: b: look at trainer/roles\.py",
    )
    fails(weights.synced(WEIGHTS, [{}, {}]), "rank 0's engine .*: a and 1 more")


def test_ranks_equal_names_the_rank_and_the_role() -> None:
    passes(weights.ranks_equal(WEIGHTS, WEIGHTS))
    fails(weights.ranks_equal(OTHER, WEIGHTS), "rank 1's actor differs from rank 0's: b")
    fails(weights.ranks_equal(WEIGHTS, OTHER), "rank 1's engine differs from rank 0's: b")


def test_gradients() -> None:
    passes(updates.gradients("actor", report(), batch()))
    fails(updates.gradients("critic", report(untrained=("a", "b")), batch()), "no gradient in the critic: a and 1 more")
    fails(updates.gradients("actor", report(skipped=2), batch()), "2 steps of the actor skipped")


def test_gradients_has_nothing_to_say_where_nothing_was_to_be_learned() -> None:
    even = replace(batch(), advantages_BT=torch.zeros(4, 4))
    has_nothing_to_say(updates.gradients("actor", report(untrained=("a",)), even))
    fails(updates.gradients("critic", report(untrained=("a",)), even), "no gradient in the critic")


def test_optimizer_moved() -> None:
    moved = [{"a": "3", "b": "4"}, {"a": "5", "b": "6"}]
    passes(weights.optimizer_moved("actor", WEIGHTS, moved))
    fails(
        weights.optimizer_moved("actor", WEIGHTS, [moved[0], {"a": "5", "b": "2"}]),
        "rank 1's part of the actor .*: b: look at trainer/",
    )


def test_the_gradient_of_an_adapter_that_is_still_nothing() -> None:
    """A's is 0 as long as B is: until an update has moved it."""
    untrained = report(untrained=("layers.0.up_proj.lora_A.weight",))
    passes(updates.gradients("actor", untrained, batch(), unmoved=True))
    fails(updates.gradients("actor", untrained, batch()), r"no gradient in the actor: .*up_proj\.lora_A\.weight")
    untrained = report(untrained=("layers.0.up_proj.lora_B.weight",))
    fails(updates.gradients("actor", untrained, batch(), unmoved=True), r"no gradient in the actor: .*lora_B")


def test_of_a_model_with_adapters_only_these_may_move() -> None:
    before = {"p.weight": "1", "p.lora_A.weight": "2", "p.lora_B.weight": "3", "value_head.weight": "4"}
    after = before | {"p.lora_B.weight": "5", "value_head.weight": "6"}
    passes(weights.optimizer_moved("critic", [before], [after]))
    strayed = after | {"p.weight": "7"}
    fails(
        weights.optimizer_moved("critic", [before, before], [after, strayed]),
        r"rank 1's weights of the critic changed beside its adapters: p\.weight: look at trainer/learner/lora\.py",
    )
    still = after | {"value_head.weight": "4"}
    fails(weights.optimizer_moved("critic", [before], [still]), r"part of the critic .*: value_head\.weight")


def test_merged_weights_name_the_rank_and_the_tensor() -> None:
    passes(weights.merged_as_computed(WEIGHTS, {"b": "2"}))
    fails(
        weights.merged_as_computed(OTHER, {"a": "1", "b": "2"}),
        r"rank 1's engine has weights that are not weight \+ scale x B A: b: look at trainer/learner/tensors\.py",
    )


def test_sharing_invariance() -> None:
    whole = ({"actor/pg_loss": 0.5}, 2.0)
    passes(updates.sharing_invariance("actor", ({"actor/pg_loss": 0.500001}, 2.0), whole))
    fails(updates.sharing_invariance("actor", (whole[0], 1.9), whole), "grad_norm differs .* other rows of the same")


def test_split_invariance() -> None:
    whole: tuple[dict[str, float], float] = ({"actor/pg_loss": 0.5}, 2.0)
    passes(updates.split_invariance("actor", ({"actor/pg_loss": 0.500001}, 2.0), whole))
    fails(
        updates.split_invariance("actor", ({"actor/pg_loss": 0.375}, 2.0), whole), r"actor/pg_loss differs .* 2\.5e-01"
    )
    fails(updates.split_invariance("critic", ({"actor/pg_loss": 0.5}, 1.0), whole), "critic: grad_norm differs")


def test_advantages_as_computed() -> None:
    """The formulas themselves: `test_recompute.py`."""
    good, rows = batch(), recompute.tokens_of(batch().advantages_BT, batch().experience)
    expected = Advantages(rows, recompute.tokens_of(good.returns_BT, good.experience), [0.0] * 4)
    passes(recorded.advantages_as_computed(good, expected))
    passes(recorded.advantages_as_computed(replace(good, returns_BT=set_at(good.returns_BT, 0, 3, 7.0)), expected))
    odd = replace(good, advantages_BT=set_at(good.advantages_BT, 1, 2, float("nan")))
    fails(
        recorded.advantages_as_computed(odd, expected), r"advantage of response 1, token 2, is nan .* should be -0\.4"
    )
    fails(
        recorded.advantages_as_computed(replace(good, returns_BT=good.returns_BT * 2), expected), "return of response 0"
    )
    for estimator, said in (
        ("gae", "gae: the return of .* look at trainer/ppo.py:"),
        ("grpo", "grpo: the advantage of"),
    ):
        other = replace(good, returns_BT=good.returns_BT * 2, advantages_BT=good.advantages_BT * 2)
        fails(recorded.advantages_as_computed(other, replace(expected, estimator=estimator)), said)
    has_nothing_to_say(recorded.advantages_as_computed(good, None))
    assert recompute.advantages(good, 0.1, AlgorithmConfig(adv_estimator="opo")) is None


def test_advantages_differ() -> None:
    none = replace(batch(), advantages_BT=torch.zeros(4, 4))
    passes(recorded.advantages_differ([none, batch()]))
    fails(
        recorded.advantages_differ([none, none]), r"no advantage of 2 steps differs from 0: look at trainer/ppo\.py:\d+"
    )


def test_first_values() -> None:
    def found(mean: float) -> UpdateReport:
        return UpdateReport(({"critic/vpred_mean": mean},), (), 1e-3, 0)

    seen = batch(values_BT=torch.arange(16.0).reshape(4, 4) * rollout().mask_BT)
    passes(updates.first_values(found((4 + 5 + 6 + 7 + 12 + 13) / 6), seen, [1, 3]))
    fails(updates.first_values(found(7.7), seen, [1, 3]), "7.7, the record of 7.8333: was it updated before")
    has_nothing_to_say(updates.first_values(found(0.0), batch(values_BT=None), [0]))


def updated(**changes: Any) -> UpdateReport:
    told = {"actor/pg_loss": 0.25, "actor/pg_clipfrac": 0.5, "grad_norm": 2.0}
    return UpdateReport((told | changes,), (), 1e-3, 0)


APPLIED = Applied(1, 0.9, 0.9, 1.0, 0.0, {"w": 1e-5}, {"w": 1e-4}, {"w": 1e-6})
EXPECTED = Expected(
    (3, 2, -1.5, -1.50001),
    ({"actor/pg_loss": 0.25, "actor/pg_clipfrac": 0.5, "grad_norm": 2.0},),
    APPLIED,
    1e-3,
)


def test_forward_as_computed() -> None:
    passes(updates.forward_as_computed("actor", updated(), EXPECTED))
    off = replace(EXPECTED, furthest=(3, 2, -1.5, -1.51))
    fails(
        updates.forward_as_computed("actor", updated(), off),
        r"log-prob of response 3, token 2, is -1\.5 but should be -1\.51: look at trainer/learner/forward\.py",
    )
    fails(updates.forward_as_computed("critic", updated(), off), "the critic's value of response 3")
    fails(updates.forward_as_computed("actor", updated(), replace(EXPECTED, furthest=(0, 0, math.nan, 0.0))), "is nan")


def test_weights_that_changed_beside_adapters() -> None:
    odd = replace(EXPECTED, applied=replace(APPLIED, strayed=["p.weight"]))
    fails(updates.moved_as_computed("actor", updated(), odd), r"beside its adapters: p\.weight: look at trainer/")


def test_reference_as_computed() -> None:
    passes(updates.reference_as_computed((3, 2, -1.5, -1.50001)))
    fails(
        updates.reference_as_computed((3, 2, -1.5, -1.6)),
        r"log-prob of response 3, token 2, is -1\.5 but should be -1\.6, by the weights .*: look at trainer/roles\.py",
    )


def test_losses_as_computed() -> None:
    """The formulas themselves, and what they find: `tests/trainer/test_plain_update.py`."""
    passes(updates.losses_as_computed("actor", updated(), EXPECTED))
    fails(
        updates.losses_as_computed("actor", updated(**{"actor/pg_clipfrac": 0.25}), EXPECTED),
        r"actor/pg_clipfrac of a generated mini-batch is 0\.25 but should be 0\.5: look at trainer/ppo\.py:\d+",
    )
    fails(updates.losses_as_computed("actor", updated(**{"actor/pg_loss": math.nan}), EXPECTED), "is nan but should be")
    twice = replace(EXPECTED, steps=EXPECTED.steps * 2)
    fails(updates.losses_as_computed("actor", updated(), twice), "the actor did 1 optimizer steps of 2: look at")


def test_gradient_as_computed() -> None:
    passes(updates.gradient_as_computed("actor", updated(grad_norm=2.0005), EXPECTED))
    fails(
        updates.gradient_as_computed("critic", updated(grad_norm=2.1), EXPECTED),
        "2.1 but should be 2; its values are right",
    )


def with_applied(**changes: Any) -> Expected:
    return replace(EXPECTED, applied=replace(APPLIED, **changes))


def test_gradient_as_computed_looks_at_each_parameter() -> None:
    odd = with_applied(gradients={"v": 1e-5, "w": 0.5})
    fails(
        updates.gradient_as_computed("actor", updated(), odd),
        r"gradient of w on .* is off by 50% of its size \(1 of 2 parameters\).*look at trainer/ppo\.py:\d+",
    )
    fails(updates.gradient_as_computed("critic", updated(), with_applied(gradients={"v": 0.0, "w": math.nan})), "of w")
    passes(updates.gradient_as_computed("actor", updated(), with_applied(steps=2, gradients={"w": 0.05})))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kept": 0.999}, "beta1: 0.999 of the mean gradient is left after an update, not 0.9"),
        ({"taken": 2.0}, "the gradient came in 2 times what it is after clipping"),
        ({"decay": 0.01}, "weight decay goes through the gradient"),
        ({"squares": {"v": 0.0, "w": 9.0}}, "beta2: the mean square of w is off by 900%"),
        ({"ways": {"v": 0.0, "w": 0.005}}, r"w of the actor did not move .* off by 0\.5% of the way \(1 of 2"),
        ({"ways": {"w": math.nan}}, "w of the actor did not move"),
    ],
)
def test_moved_as_computed(changes: dict[str, Any], said: str) -> None:
    passes(updates.moved_as_computed("actor", updated(), EXPECTED))
    fails(updates.moved_as_computed("actor", updated(), with_applied(**changes)), f"{said}.*look at trainer/")


def test_moved_as_computed_looks_at_the_rate() -> None:
    fails(
        updates.moved_as_computed("critic", updated(), replace(EXPECTED, lr=1e-2)),
        r"rate is 0\.001 but should be 0\.01",
    )


def test_settings_act() -> None:
    passes(updates.settings_act("actor", (), asked=True))
    off = ("Odd: use_remove_padding has no effect, its batches are padded: why",)
    fails(updates.settings_act("actor", off, asked=True), r"actor: Odd: .*: why: look at trainer/learner/forward\.py:")
    has_nothing_to_say(updates.settings_act("critic", off, asked=False))


def test_rate_as_configured() -> None:
    passes(updates.rate_as_configured("actor", updated(), 1e-3))
    fails(
        updates.rate_as_configured("actor", updated(), 5e-4), r"rate is 0\.001 but should be 0\.0005: look at trainer/"
    )


def test_policy_follows_advantages() -> None:
    good = batch()
    entropy = torch.zeros(4, 4)
    after = LogProbs(good.experience.old_logp_BT + 0.1 * good.advantages_BT, entropy)
    passes(whole_run.policy_follows_advantages([(good, after)]))
    worse = LogProbs(good.experience.old_logp_BT - 0.1 * good.advantages_BT, entropy)
    fails(whole_run.policy_follows_advantages([(good, worse)]), "must be positive")
    fails(
        whole_run.policy_follows_advantages([(good, LogProbs(good.experience.old_logp_BT, entropy))]),
        "must be positive",
    )
    has_nothing_to_say(whole_run.policy_follows_advantages([]))
    even = replace(good, advantages_BT=torch.zeros(4, 4))
    has_nothing_to_say(whole_run.policy_follows_advantages([(even, after)]))


def test_critic_learns() -> None:
    passes(whole_run.critic_learns([batch()]))
    fails(whole_run.critic_learns([batch(values_BT=torch.zeros(4, 4))]), "squared error is 1.00")
    has_nothing_to_say(whole_run.critic_learns([batch(values_BT=None)]))
    has_nothing_to_say(whole_run.critic_learns([]))


def test_resumed_equal() -> None:
    before = {
        2: {"loss": 0.5, "timing_s/step": 1.0},
        3: {"loss": 0.25, "perf/time_per_step": 2.0, "memory_gb/gen": 4.0},
    }
    after = {"loss": 0.25, "perf/time_per_step": 3.0, "memory_gb/gen": 5.0}
    passes(whole_run.resumed_equal(before, {3: after, 4: {"loss": 0.125}}))
    fails(whole_run.resumed_equal(before, {3: {"loss": 0.25000001}}), r"step 3: loss was 0\.25 and is 0\.25000001")
    fails(whole_run.resumed_equal(before, {3: {}}), "and is None after resuming")
    fails(whole_run.resumed_equal(before, {4: {"loss": 0.25}}), "did not repeat a step")


def test_turns_that_were_computed_with_other_turns_are_rounded_in_another_way() -> None:
    apart = "training/rollout_probs_diff_mean"
    before, after = {3: {apart: 9.585656e-08, "loss": 0.25}}, {apart: 9.593467e-08, "loss": 0.25}
    passes(whole_run.resumed_equal(before, {3: after}, by_turns=True))
    fails(whole_run.resumed_equal(before, {3: after}), r"\(1 of 2 metrics differ\)")
    for other in ({**after, apart: 1e-4}, {**after, "loss": 0.25000001}, {"loss": 0.25}):
        fails(whole_run.resumed_equal(before, {3: other}, by_turns=True), r"\(1 of 2 metrics differ\)")


def test_resumed_weights() -> None:
    before = {2: {"actor": WEIGHTS}, 3: {"actor": WEIGHTS, "critic": WEIGHTS}}
    passes(whole_run.resumed_weights(before, {3: before[3], 4: {"actor": OTHER}}))
    fails(
        whole_run.resumed_weights(before, {3: {"actor": WEIGHTS, "critic": OTHER}}),
        r"step 3 leads to other weights of the critic after resuming: b: look at trainer/roles\.py",
    )
    has_nothing_to_say(whole_run.resumed_weights(before, {4: {"actor": OTHER}}))
    has_nothing_to_say(whole_run.resumed_weights(before, {3: {"actor": OTHER}}, "vllm"))


def test_steps_done() -> None:
    passes(whole_run.steps_done("resumed run", [3, 4], range(3, 5)))
    fails(
        whole_run.steps_done("resumed run", [3], range(3, 5)), "the resumed run did steps 3, and was to do 3, 4: look"
    )
    fails(whole_run.steps_done("gate", [], range(1, 3)), "did steps none")


def test_kept_when_due() -> None:
    passes(whole_run.kept_when_due("checkpoints", [2, 4], [2, 4]))
    fails(
        whole_run.kept_when_due("checkpoints", [1], [2, 4]), r"checkpoints at steps 1, and due at 2, 4: look at trainer"
    )


def test_death_named() -> None:
    victim = "rank 1 (pid 7 on 10.0.0.2)"
    passes(whole_run.death_named(WorkerDied(f"{victim} died during generate", hint="look"), victim))
    fails(
        whole_run.death_named(WorkerDied("rank 0 (pid 6 on 10.0.0.1) died during generate", hint="look"), victim),
        "^rank 0",
    )
    fails(
        whole_run.death_named(RewardError("row 3: no number", hint="look"), victim),
        "ended with a different error: row 3: no number",
    )
    fails(whole_run.death_named(ValueError(), victim), "a different error: ValueError")


def test_learned() -> None:
    rising = [0.0, 0.1, 0.2, 0.6, 0.7, 0.8]
    passes(whole_run.learned(rising, 0.25, 3))
    fails(whole_run.learned(rising[::-1], 0.25, 3), r"reward 0\.700 -> 0\.100 in 6 steps")
    fails(whole_run.learned([0.5] * 6, 0.25, 3), r"required: \+0.25")


def test_every_check_has_a_test() -> None:
    """Of all modules of the room, in all tests beside this one."""
    modules = [
        importlib.import_module(f"{checks.__name__}.{each.name}") for each in pkgutil.iter_modules(checks.__path__)
    ]
    public = {
        f"{module.__name__.rpartition('.')[2]}.{name}("
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and not name.startswith("_")
        and getattr(value, "__annotations__", {}).get("return") == "Outcome"
    }
    assert len(public) > 20
    sources = "".join(each.read_text() for each in Path(__file__).parent.glob("test_*.py"))
    assert {name for name in public if name not in sources} == set()
