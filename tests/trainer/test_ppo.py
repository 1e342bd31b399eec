"""The formulas of `trainer.ppo` against numbers worked out elsewhere, and the laws that they obey."""

from __future__ import annotations

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer import averages, ppo, shaping
from trainer.config.schema import AlgorithmConfig, KlCtrlConfig
from trainer.errors import BatchError
from trainer.records import Experience, Prompts, Rollout, Row, Scores, Totals

MODES = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
FLOATS = (torch.float32, torch.float64)

REWARDS = [[0, 0, 0, 0, 0, 1], [0.1, -0.2, 0, 0.5, 0, 0]]
VALUES = [[0.1, 0.2, 0.9, 0.9, 0.3, 0.4], [0.5, 0.4, 0.3, 0.2, 0, 0]]
MASK = [[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0]]
ADVANTAGES = [[0.77329, 0.718012, 0.6603, 0.6603, 0.6603, 0.6], [-0.129622, -0.133569, 0.18015, 0.3, 0, 0]]
RETURNS = [[0.87329, 0.918012, 1.5603, 1.5603, 0.9603, 1.0], [0.370378, 0.266431, 0.48015, 0.5, 0, 0]]
WHITENED = [
    [1.083264, 0.934388, 0.778957, 0.778957, 0.778957, 0.616556],
    [-1.348468, -1.359099, -0.514188, -0.191407, -0.99937, -0.99937],
]
WHITENED_UNMASKED = [
    [1.061938, 0.907692, -0.979431, -0.951907, 0.803383, 0.638591],
    [-1.355371, -1.366158, -0.508805, -0.18127, -1.001132, -1.001132],
]
OLD = [[-1, -2, -0.5, -1], [-1.5, -0.2, -3, -1]]
NEW = [[-0.7, -2.1, -0.5, -1], [-1.9, -0.1, -1.2, -1]]
ADVANTAGE = [[1, 1, -1, 0.5], [-1, -0.5, -2, 0.3]]
POLICY_MASK = [[1, 1, 1, 0], [1, 1, 1, 1]]


def close(actual: Tensor, expected: object, atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected).to(actual.dtype), atol=atol, rtol=0)


def numbers(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    """Response masks [B, T]: each row 1 up to its length, 0 after it; at least two tokens in all."""
    width = draw(st.integers(2, 6))
    lengths = draw(st.lists(st.integers(1, width), min_size=1, max_size=5).filter(lambda them: sum(them) >= 2))
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


# -------------------------------------------------------------------------------------------- names that others rely on


def test_signatures_are_those_of_the_promise() -> None:
    promised = {
        "gae": ("rewards", "values", "mask", "gamma", "lam", "masked"),
        "masked_whiten": ("x", "mask"),
        "aggregate": ("loss", "mask", "mode"),
        "policy_loss": ("old_logp", "logp", "advantages", "mask", "clip_low", "clip_high", "dual_clip", "mode"),
        "value_loss": ("values", "old_values", "returns", "mask", "clip", "mode"),
        "kl_penalty": ("logp", "ref_logp", "kind"),
    }
    for name, words in promised.items():
        parameters = inspect.signature(getattr(ppo, name)).parameters
        assert tuple(parameters)[: len(words)] == words
        assert all(p.default is not inspect.Parameter.empty for p in list(parameters.values())[len(words) :]), name
    assert inspect.signature(ppo.gae).parameters["masked"].default is True


# -------------------------------------------------------------------------------------------------------- worked values


@pytest.mark.parametrize("dtype", FLOATS)
def test_masked_gae_and_its_whitening(dtype: torch.dtype) -> None:
    rewards, values = torch.tensor(REWARDS, dtype=dtype), torch.tensor(VALUES, dtype=dtype)
    mask = torch.tensor(MASK)

    advantages, returns = ppo.gae(rewards, values, mask, 0.99, 0.95)

    assert advantages.dtype == returns.dtype == dtype
    close(advantages, ADVANTAGES)
    close(returns, RETURNS)
    close(ppo.masked_whiten(advantages, mask), WHITENED, atol=2e-6 if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_unmasked_gae_of_older_dialects(dtype: torch.dtype) -> None:
    rewards, values = torch.tensor(REWARDS, dtype=dtype), torch.tensor(VALUES, dtype=dtype)
    advantages, _ = ppo.gae(rewards, values, torch.tensor(MASK), 0.99, 0.95, masked=False)
    close(
        ppo.masked_whiten(advantages, torch.tensor(MASK)),
        WHITENED_UNMASKED,
        atol=2e-6 if dtype == torch.float32 else 1e-6,
    )


@pytest.mark.parametrize("mask_dtype", [torch.int64, torch.float32, torch.bool])
def test_policy_loss_and_its_metrics(mask_dtype: torch.dtype) -> None:
    old, new, advantages = (torch.tensor(x, dtype=torch.float64) for x in (OLD, NEW, ADVANTAGE))
    mask = torch.tensor(POLICY_MASK).to(mask_dtype)

    loss, metrics = ppo.policy_loss(old, new, advantages, mask, 0.2, 0.2, 3.0, "token-mean")

    close(loss, 0.849678)
    assert set(metrics) == {"clip_fraction", "approx_kl", "dual_clip_fraction"}
    close(metrics["clip_fraction"], 0.285714)
    close(metrics["approx_kl"], -0.242857)
    close(metrics["dual_clip_fraction"], 0.142857)


def test_policy_loss_bounds_work_one_by_one() -> None:
    old = torch.zeros(1, 4, dtype=torch.float64)
    new = torch.tensor([[math.log(1.5), math.log(1.5), math.log(0.5), math.log(4.0)]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(1, 4)

    def loss(low: float, high: float, dual: float | None) -> float:
        return float(ppo.policy_loss(old, new, advantages, mask, low, high, dual, "token-sum")[0])

    # rises cut at 1 + high, falls of a bad action at 1 - low; a bad action that became likely is not cut without dual
    assert loss(0.1, 0.3, None) == pytest.approx(-1.3 + 1.5 + 0.9 + 4.0)
    assert loss(0.1, 0.3, 3.0) == pytest.approx(-1.3 + 1.5 + 0.9 + 3.0)
    assert loss(0.4, 0.6, None) == pytest.approx(-1.5 + 1.5 + 0.6 + 4.0)


def test_policy_gradient_stops_where_it_is_clipped() -> None:
    old = torch.zeros(1, 3, dtype=torch.float64)
    new = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    loss, _ = ppo.policy_loss(old, new, torch.tensor([[2.0, 2.0, -2.0]]), torch.ones(1, 3), 0.2, 0.2, None, "token-sum")
    loss.backward()
    close(new.grad, [[-2.0, 0.0, 2.0 * math.e]])


@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_policy_loss_survives_any_log_ratio(gap: float) -> None:
    old, new = torch.zeros(1, 2), torch.full((1, 2), gap)
    loss, metrics = ppo.policy_loss(old, new, torch.ones(1, 2), torch.ones(1, 2), 0.2, 0.2, 3.0, "token-mean")
    assert loss.isfinite() and metrics["approx_kl"].isfinite()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *((kind, [0.5, -1.0, 0.0]) for kind in ("kl", "k1")),
        ("abs", [0.5, 1.0, 0.0]),
        *((kind, [0.125, 0.5, 0.0]) for kind in ("mse", "k2")),
        *((kind, [math.exp(-0.5) - 0.5, math.e - 2, 0.0]) for kind in ("low_var_kl", "k3", "k3+", "low_var_kl+")),
    ],
)
def test_kl_estimators(kind: str, expected: list[float]) -> None:
    logp, reference = torch.tensor([-1.0, -3.0, -2.0]).double(), torch.tensor([-1.5, -2.0, -2.0]).double()
    close(ppo.kl_penalty(logp, reference, kind), expected)


def test_low_variance_kl_is_limited_to_ten() -> None:
    close(ppo.kl_penalty(torch.tensor([-50.0, 0.0]), torch.tensor([0.0, -50.0]), "k3"), [10.0, 10.0])


def test_plus_keeps_the_value_and_takes_the_gradient_of_k2() -> None:
    logp = torch.tensor([-1.0, -3.0], dtype=torch.float64, requires_grad=True)
    value = ppo.kl_penalty(logp, torch.tensor([-1.5, -2.0], dtype=torch.float64), "k3+")
    value.sum().backward()
    close(value.detach(), [math.exp(-0.5) - 0.5, math.e - 2])
    close(logp.grad, [0.5, -1.0])  # of k3 it would be 1 - exp(ref - logp)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 21 / 4),
        ("token-sum", 21.0),
        ("seq-mean-token-mean", (3 / 2 + 18 / 2) / 2),
        ("seq-mean-token-sum", 21 / 2),
        ("seq-mean-token-sum-norm", 21 / 2 / 3),
    ],
)
def test_aggregate(mode: str, expected: float) -> None:
    loss = torch.tensor([[1.0, 2.0, 4.0], [8.0, 10.0, 32.0], [64.0, 64.0, 64.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]])  # the third answer is empty: it is no sequence
    close(ppo.aggregate(loss, mask, mode), expected)


def test_horizon_scales_the_normalised_sum() -> None:
    loss, mask = torch.ones(2, 4), torch.ones(2, 4)
    close(ppo.aggregate(loss, mask, "seq-mean-token-sum-norm", ppo.totals_of(mask, horizon=8)), 0.5)


def test_value_loss_takes_the_worse_of_plain_and_clipped() -> None:
    values, old = torch.tensor([[1.0, 0.2, 2.0]]), torch.zeros(1, 3)
    returns, mask = torch.tensor([[1.0, 1.0, 3.0]]), torch.tensor([[1, 1, 0]])
    loss, clip_fraction = ppo.value_loss(values, old, returns, mask, 0.5, "token-mean")
    # first token: plain 0, clipped (.5 - 1)^2; second: inside the range, (.2 - 1)^2
    close(loss, 0.5 * (0.25 + 0.64) / 2)
    close(clip_fraction, 0.5)


def test_a_value_within_the_range_counts_as_not_clipped() -> None:
    """Rounding must not count: old + (new - old) is not new."""
    values, old, returns = (numbers((8, 64), seed, torch.float32) for seed in range(3))
    loss, clip_fraction = ppo.value_loss(values, old, returns, torch.ones(8, 64), 100.0, "token-mean")
    assert clip_fraction == 0
    close(loss, 0.5 * (values - returns).square().mean())


@pytest.mark.parametrize(("kl", "factor"), [(0.1, 1.0), (0.11, 1.01), (5.0, 1.02), (0.0, 0.98), (-5.0, 0.98)])
def test_adaptive_kl_controller(kl: float, factor: float) -> None:
    control = KlCtrlConfig(type="adaptive", horizon=1000, target_kl=0.1)
    assert ppo.next_kl_coef(2.0, kl, 100, control) == pytest.approx(2.0 * factor, rel=1e-9)


def test_fixed_kl_controller() -> None:
    assert ppo.next_kl_coef(0.25, 99.0, 100, KlCtrlConfig(type="fixed")) == 0.25


def test_grpo() -> None:
    scores, groups = torch.tensor([1.0, 5.0, 0.0, 3.0, 7.0]).double(), torch.tensor([7, 3, 7, 3, 9])
    half = math.sqrt(0.5)  # Bessel-corrected deviation of (1, 0)
    expected = [0.5 / (half + 1e-6), 1 / (math.sqrt(2) + 1e-6), -0.5 / (half + 1e-6), -1 / (math.sqrt(2) + 1e-6), 7.0]
    close(ppo.grpo(scores, groups), [*expected[:4], 7 / (1 + 1e-6)])
    close(ppo.grpo(scores, groups, scale_by_std=False), [0.5, 1.0, -0.5, -1.0, 7.0])


def test_grpo_gives_nothing_when_all_answers_score_alike() -> None:
    close(ppo.grpo(torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1, 1, 1])), [0.0, 0.0, 0.0])


def test_rloo() -> None:
    scores, groups = torch.tensor([1.0, 2.0, 6.0, 4.0]), torch.tensor([0, 0, 0, 5])
    close(ppo.rloo(scores, groups), [1 - 4.0, 2 - 3.5, 6 - 1.5, 4.0])  # alone, there is no baseline


def test_reinforce_plus_plus() -> None:
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]]).double(), torch.tensor([[1, 1, 1], [1, 0, 0]])
    advantages, returns = ppo.reinforce_plus_plus(rewards, mask, gamma=0.5)
    close(returns, [[0.25, 0.5, 1.0], [2.0, 0.0, 0.0]])
    deviation = torch.tensor([0.25, 0.5, 1.0, 2.0]).double().std()
    expected = (returns - 0.9375) / deviation * mask
    close(advantages, expected)


# ----------------------------------------------------------------------------------------------------------------- laws


def naive_gae(
    rewards: list[float], values: list[float], valid: list[int], gamma: float, lam: float
) -> dict[int, float]:
    """Sum of discounted errors over the valid tokens that follow; by token."""
    times = [t for t, real in enumerate(valid) if real]
    after = {t: values[later] for t, later in itertools.pairwise(times)}
    errors = [rewards[t] + gamma * after.get(t, 0.0) - values[t] for t in times]
    return {t: sum((gamma * lam) ** k * e for k, e in enumerate(errors[i:])) for i, t in enumerate(times)}


@given(data=st.data(), gamma=st.floats(0, 1), lam=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_gae_is_the_discounted_sum_of_errors(data: st.DataObject, gamma: float, lam: float) -> None:
    rows, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    bits = st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=rows, max_size=rows)
    mask = torch.tensor(data.draw(bits))
    rewards, values = numbers((rows, width), 1), numbers((rows, width), 2)

    advantages, returns = ppo.gae(rewards, values, mask, gamma, lam)

    for row in range(rows):
        expected = naive_gae(rewards[row].tolist(), values[row].tolist(), mask[row].tolist(), gamma, lam)
        for t, value in expected.items():
            assert advantages[row, t].item() == pytest.approx(value, abs=1e-9)
            assert returns[row, t].item() == pytest.approx(value + values[row, t].item(), abs=1e-9)


@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 7)), gamma=st.floats(0, 1), lam=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_masked_gae_is_unmasked_gae_when_every_token_counts(shape: tuple[int, int], gamma: float, lam: float) -> None:
    rewards, values, mask = numbers(shape, 3), numbers(shape, 4), torch.ones(shape)
    for a, b in zip(
        ppo.gae(rewards, values, mask, gamma, lam),
        ppo.gae(rewards, values, mask, gamma, lam, masked=False),
        strict=True,
    ):
        close(a, b, atol=1e-12)


@pytest.mark.parametrize("width", [6, 600])
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_gae_takes_nothing_from_outside_the_mask(width: int, odd: float) -> None:
    rewards, values = numbers((3, width), 7), numbers((3, width), 8)
    mask = (torch.arange(width) < torch.tensor([width, width // 2, 0])[:, None]).long()
    clean, _ = ppo.gae(rewards, values, mask, 0.99, 0.95)
    outside = mask == 0
    found, _ = ppo.gae(rewards.masked_fill(outside, odd), values.masked_fill(outside, odd), mask, 0.99, 0.95)
    assert torch.equal(found[mask.bool()], clean[mask.bool()])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (1.0, 0.0), (0.0, 0.9)])
@pytest.mark.parametrize("kind", ["ragged", "gaps", "unmasked"])
@pytest.mark.parametrize("width", [512, 1000])
def test_gae_of_long_rows_is_that_of_the_recursion(width: int, kind: str, gamma: float, lam: float) -> None:
    """In float64 to 1e-10; in float32 as near to that as the recursion itself, and to 1e-6 of the largest."""
    rewards, values = numbers((5, width), 5), numbers((5, width), 6)
    mask = (torch.arange(width) < torch.tensor([width, 1, 700, 64, 0])[:, None]).long()
    if kind == "gaps":
        mask[0, 100:130] = 0
    found, returns = ppo.gae(rewards, values, mask, gamma, lam, masked=kind != "unmasked")
    real = mask if kind != "unmasked" else torch.ones_like(mask)
    expected, advantage, later = torch.zeros_like(values), torch.zeros(5).double(), torch.zeros(5).double()
    for t in reversed(range(width)):
        step = rewards[:, t] + gamma * later - values[:, t] + gamma * lam * advantage
        advantage = torch.where(real[:, t].bool(), step, advantage)
        later = torch.where(real[:, t].bool(), values[:, t], later)
        expected[:, t] = advantage
    close(found, expected, atol=1e-10)
    close(returns, expected + values, atol=1e-10)
    single, _ = ppo.gae(rewards.float(), values.float(), mask, gamma, lam, masked=kind != "unmasked")
    assert (single - expected).abs().max() <= 1e-6 * max(1.0, float(expected.abs().max()))


@given(mask=masks(), mode=st.sampled_from(MODES), cut=st.integers(0, 5), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_parts_add_up_to_the_whole_under_its_totals(mask: Tensor, mode: str, cut: int, seed: int) -> None:
    loss, totals = numbers(tuple(mask.shape), seed), ppo.totals_of(mask)
    whole = ppo.aggregate(loss, mask, mode)
    parts = [ppo.aggregate(loss[rows], mask[rows], mode, totals) for rows in (slice(0, cut), slice(cut, None))]
    close(sum(parts, torch.zeros((), dtype=torch.float64)), whole, atol=1e-12)


@given(mask=masks(), mode=st.sampled_from(MODES), cut=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_policy_loss_and_its_metrics_add_up(mask: Tensor, mode: str, cut: int) -> None:
    shape = tuple(mask.shape)
    old, new, advantages, totals = numbers(shape, 1), numbers(shape, 2), numbers(shape, 3), ppo.totals_of(mask)

    def run(rows: slice, totals: Totals | None) -> list[Tensor]:
        arguments = (old[rows], new[rows], advantages[rows], mask[rows])
        loss, metrics = ppo.policy_loss(*arguments, 0.2, 0.3, 3.0, mode, totals)
        return [loss, *metrics.values()]

    whole, first, second = run(slice(None), None), run(slice(0, cut), totals), run(slice(cut, None), totals)
    for all_, a, b in zip(whole, first, second, strict=True):
        close(a + b, all_, atol=1e-12)


@given(mask=masks(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_whitened_twice_is_whitened_once(mask: Tensor, seed: int) -> None:
    raw = numbers(tuple(mask.shape), seed)
    assume(raw[mask.bool()].var() > 1e-2)  # below it, the 1e-8 under the root shows
    once = ppo.masked_whiten(raw, mask)
    valid = once[mask.bool()]
    assert valid.mean().abs() < 1e-6 and abs(valid.std() - 1) < 1e-6
    close(ppo.masked_whiten(once, mask)[mask.bool()], valid, atol=1e-6)


@given(logp=st.lists(st.floats(-30, 0), min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_k3_is_never_negative(logp: list[float], seed: int) -> None:
    new = torch.tensor(logp, dtype=torch.float64)
    reference = new + numbers((len(logp),), seed) * 3
    assert (ppo.kl_penalty(new, reference, "k3") >= -1e-12).all()
    close(ppo.kl_penalty(new, new, "k3"), torch.zeros(len(logp)))


@pytest.mark.parametrize("count", [0, 1])
def test_whitening_needs_two_tokens(count: int) -> None:
    mask = torch.zeros(2, 3)
    mask[0, :count] = 1
    with pytest.raises(BatchError, match=f"{count} response token") as caught:
        ppo.masked_whiten(torch.ones(2, 3), mask)
    assert isinstance(caught.value, ValueError) and caught.value.hint


@pytest.mark.parametrize(
    "call",
    [
        lambda: ppo.aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean"),
        lambda: ppo.kl_penalty(torch.ones(1), torch.ones(1), "k9"),
    ],
)
def test_unknown_names_are_errors(call: object) -> None:
    with pytest.raises(ValueError, match="unknown"):
        call()  # type: ignore[operator]


# ---------------------------------------------------------------------------- what stands outside the mask never counts


def experience(junk: float, mask: Tensor) -> Experience:
    """Two prompts with two answers each; `junk` in every masked position of every tensor."""

    def noisy(seed: int) -> Tensor:
        return torch.where(mask.bool(), numbers(tuple(mask.shape), seed, torch.float32), torch.tensor(junk))

    rows = tuple(Row(i // 2, "f", "d", "") for i in range(len(mask)))
    prompts = Prompts(
        torch.ones(len(mask), 1).long(),
        torch.ones(len(mask), 1).long(),
        torch.arange(len(mask)) // 2,
        torch.arange(len(mask)) % 2,
        rows,
    )
    rollout = Rollout(prompts, torch.ones_like(mask), mask, noisy(1))
    scores = shaping.place_scores(Scores(torch.arange(len(mask)).float(), {}), mask)
    return Experience(rollout, scores, noisy(2), noisy(3), noisy(4))


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e9])
@pytest.mark.parametrize("estimator", ["gae", "grpo", "rloo", "reinforce_plus_plus"])
@pytest.mark.parametrize("kl", ["kl", "low_var_kl"])
def test_advantages_ignore_masked_positions(junk: float, estimator: str, kl: str) -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]])
    config = AlgorithmConfig(adv_estimator=estimator, use_kl_in_reward=True, kl_penalty=kl, gamma=0.9, lam=0.8)

    def run(value: float) -> list[Tensor]:
        seen = experience(value, mask)
        rewards, mean_kl = ppo.penalised_rewards(seen, 0.5, config)
        return [rewards, *ppo.estimate(seen, rewards, config), torch.tensor(mean_kl).expand(mask.shape)]

    for clean, dirty in zip(run(0.0), run(junk), strict=True):
        close(dirty[mask.bool()], clean[mask.bool()])


@pytest.mark.parametrize("mode", MODES)
def test_losses_and_gradients_ignore_masked_positions(mode: str) -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])

    def run(junk: float) -> list[Tensor]:
        old, new, other, more = (
            torch.where(mask.bool(), numbers((2, 3), i), torch.tensor(junk).double()) for i in range(4)
        )
        new.requires_grad_()
        loss, metrics = ppo.policy_loss(old, new, other, mask, 0.2, 0.2, 3.0, mode)
        worth, clipped = ppo.value_loss(new, old, more, mask, 0.5, mode)
        (loss + worth).backward()
        assert new.grad is not None
        return [loss.detach(), *metrics.values(), worth.detach(), clipped.detach(), new.grad[mask.bool()]]

    for junk in (1e9, math.nan):
        for clean, dirty in zip(run(0.0), run(junk), strict=True):
            close(dirty, clean)


def test_scores_stand_at_the_last_token_of_each_answer() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    placed = shaping.place_scores(Scores(torch.tensor([5.0, 6.0, 7.0]), {}), mask)
    close(placed, [[0, 0, 5.0], [6.0, 0, 0], [0, 7.0, 0]])


def test_kl_in_the_reward() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]])
    seen = experience(0.0, mask)
    assert seen.ref_logp_BT is not None
    config = AlgorithmConfig(use_kl_in_reward=True, kl_penalty="kl")

    rewards, mean_kl = ppo.penalised_rewards(seen, 0.5, config)

    kl = (seen.old_logp_BT - seen.ref_logp_BT) * mask
    close(rewards, seen.scores_BT - 0.5 * kl)
    assert mean_kl == pytest.approx(float((kl.sum(-1) / mask.sum(-1)).mean()))  # of a sequence, then over sequences


def test_without_kl_in_the_reward_scores_are_rewards() -> None:
    seen = experience(0.0, torch.ones(4, 2).long())
    assert ppo.penalised_rewards(seen, 0.5, AlgorithmConfig()) == (seen.scores_BT, 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_neither_overflows_nor_vanishes(dtype: torch.dtype) -> None:
    ones, mask = torch.ones(300, 300, dtype=dtype), torch.ones(300, 300)
    assert float(averages.masked_mean(ones, mask)) == 1
    assert ppo.masked_whiten(ones, mask).abs().max() < 1e-2  # equal values have no variance: 0, not NaN
    new, old = torch.full((1, 2), 15.0, dtype=dtype, requires_grad=True), torch.zeros(1, 2, dtype=dtype)
    loss, _ = ppo.policy_loss(old, new, torch.zeros(1, 2, dtype=dtype), mask[:1, :2], 0.2, 0.2, 3.0, "token-mean")
    kl = ppo.kl_penalty(-new, old, "k3").sum()
    (loss + kl).backward()
    assert float(loss.detach()) == 0 and new.grad is not None and bool(new.grad.isfinite().all())
    advantages, returns = ppo.gae(ones, ones, mask, 1.0, 1.0)
    assert advantages.dtype == returns.dtype == dtype
