"""`benchmarks/learning_curve.py`: what it makes of two trainers' curves, and that both are told the same."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import pytest

from benchmarks import learning_curve
from benchmarks.learning_curve import Pair, steps_behind, table, verdict
from benchmarks.learning_curve_parts.task import Settings, Task, our_config, trl_config


def sigmoid(middle: float) -> list[float]:
    return [1 / (1 + math.exp(middle - step)) for step in range(51)]


def test_the_examples_in_the_docstrings() -> None:
    tried = doctest.testmod(learning_curve)
    assert tried.attempted >= 5 and tried.failed == 0


@pytest.mark.parametrize("late", [-3, -1, 0, 1, 2])
def test_a_curve_that_is_the_others_later_is_as_many_steps_behind_as_it_is_later(late: int) -> None:
    behind = steps_behind([Pair(sigmoid(25 + late), sigmoid(25), 0.0)] * 3)
    assert behind.mean == pytest.approx(late, abs=1e-6) and behind.error < 1e-9


def test_the_error_is_that_of_the_differences_within_the_seeds() -> None:
    """Seeds that differ among themselves, and whose two curves are 0.1 apart in each: the difference has no error."""
    pairs = [Pair([level] * 7, [level + 0.1] * 7, 0.0) for level in (0.0, 0.4, 0.8)]
    assert table(pairs) == [
        "| steps | ours | TRL | ours - TRL |",
        "|---|---|---|---|",
        "| 1 to 5 | 0.400 ± 0.231 | 0.500 ± 0.231 | -0.100 ± 0.000 |",
        "| 6 to 7 | 0.400 ± 0.231 | 0.500 ± 0.231 | -0.100 ± 0.000 |",
        "| all | 0.400 ± 0.231 | 0.500 ± 0.231 | -0.100 ± 0.000 |",
    ]


def test_the_verdict_says_when_chance_is_enough() -> None:
    def pairs(*lates: float) -> list[Pair]:
        return [Pair(sigmoid(25 + late), sigmoid(25), 0.0) for late in lates]

    assert verdict(pairs(0.9, 1.0, 1.1, 1.0, 1.0)) == "Ours is 1.00 ± 0.03 steps behind TRL in 51."
    unclear = "Ours is 0.40 ± 0.68 steps ahead of TRL in 51, which is within two standard errors."
    assert verdict(pairs(-2, 2, -1, -1, 0)) == unclear
    assert verdict(pairs(1, 1)) == "Ours is 1.00 ± 0.00 steps behind TRL in 51; 2 seeds are too few to judge by."


@pytest.mark.parametrize("settings", [Settings(), Settings(updates=2, clip=0.3, lr=1e-3, scaled=False, samples=2)])
def test_both_trainers_are_told_the_same(tmp_path: Path, settings: Settings) -> None:
    task = Task(tmp_path, 3, settings)
    ours, trl = our_config(task), trl_config(task)
    actor, rollout = ours.actor_rollout_ref.actor, ours.actor_rollout_ref.rollout
    told = {
        "num_generations": rollout.n,
        "per_device_train_batch_size": actor.ppo_mini_batch_size * rollout.n,
        "gradient_accumulation_steps": actor.ppo_mini_batch_size * rollout.n // actor.ppo_micro_batch_size_per_gpu,
        "steps_per_generation": ours.data.train_batch_size // actor.ppo_mini_batch_size * actor.ppo_epochs,
        "max_completion_length": ours.data.max_response_length,
        "shuffle_dataset": ours.data.shuffle,
        "temperature": rollout.temperature,
        "learning_rate": actor.optim.lr,
        "lr_scheduler_type": actor.optim.lr_scheduler_type,
        "weight_decay": actor.optim.weight_decay,
        "max_grad_norm": actor.grad_clip,
        "epsilon": actor.clip_ratio_high,
        "seed": ours.trainer.seed,
    }
    assert told == {name: trl[name] for name in told}
    assert ours.trainer.total_training_steps == trl["max_steps"] / trl["steps_per_generation"]
    assert (trl["loss_type"], actor.loss_agg_mode) == ("dapo", "token-mean")
    assert (trl["scale_rewards"] == "group") == ours.algorithm.norm_adv_by_std_in_grpo == settings.scaled
    assert trl["beta"] == 0 and not ours.uses_reference and actor.entropy_coeff == 0 and actor.clip_ratio_c is None
    assert (rollout.top_p, rollout.top_k, actor.optim.lr_warmup_steps_ratio, actor.optim.betas) == (
        1,
        -1,
        0,
        [0.9, 0.999],
    )
