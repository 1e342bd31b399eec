"""The learning gate: a task that a tiny model learns from scratch in seconds, and the margin that shows it learned."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from devkit.smoke.problems import GATE_REWARD
from trainer.config.schema import ActorConfig, Config

# Set by benchmarks/learning_gate.py over 24 seeds of every estimator; docs/results/learning_gate.md has the figures.
STEPS = 20
WINDOW = 3  # steps at each end whose mean reward is compared
MARGIN = 0.15
PROMPT_TOKENS, RESPONSE_TOKENS = 32, 8
CRITIC_CLIP = 0.5  # of the norm of its gradient: below what the update on made-up numbers has
KL_LIMIT = 0.01  # a stronger pull to the reference would hold the tiny model back


def settings(full: Config, pipeline: Config, train_file: str, folder: Path) -> dict[str, Any]:
    """What the gate sets beside the plan's overrides: estimator, KL mode and batches stay the pipeline's.

    Writes the reward function into `folder`.
    """
    reward = folder / "gate_reward.py"
    reward.write_text(GATE_REWARD)
    kl_loss = min(full.actor_rollout_ref.actor.kl_loss_coef, KL_LIMIT)
    actor = replace(full.actor_rollout_ref.actor, kl_loss_coef=kl_loss)
    return {
        "custom_reward_function.path": str(reward),
        "custom_reward_function.name": "compute_score",
        "data.train_files": [train_file],
        "data.val_files": [],
        "data.train_max_samples": -1,
        "data.max_prompt_length": PROMPT_TOKENS,
        "data.max_response_length": RESPONSE_TOKENS,
        "data.reward_fn_key": "data_source",
        "data.prompt_key": "prompt",
        "algorithm.kl_ctrl.kl_coef": min(full.algorithm.kl_ctrl.kl_coef, KL_LIMIT),
        "actor_rollout_ref.actor.kl_loss_coef": kl_loss,
        # So that clipping acts on each gradient, that of the made-up numbers too. AdamW divides by their size anyway.
        "actor_rollout_ref.actor.grad_clip": min(full.actor_rollout_ref.actor.grad_clip, made_up_size(actor) / 4),
        "critic.grad_clip": min(full.critic.grad_clip, CRITIC_CLIP),
        "trainer.total_training_steps": STEPS,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": str(folder / "gate"),
        **_budgets(pipeline),
    }


def made_up_size(actor: ActorConfig) -> float:
    """Of the advantages in the update on made-up numbers: as small as the coefficients of entropy and KL are, for their
    part of the gradient to be seen beside the surrogate's."""
    return max(actor.entropy_coeff, actor.kl_loss_coef if actor.use_kl_loss else 0.0) or 1.0


def _budgets(pipeline: Config) -> dict[str, int]:
    """Where tokens size the passes: for as many rows of the gate's length."""
    actor, critic, rollout = (
        pipeline.actor_rollout_ref.actor,
        pipeline.critic,
        pipeline.actor_rollout_ref.rollout,
    )
    reference = pipeline.actor_rollout_ref.ref
    given = {
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu),
        "critic.ppo_max_token_len_per_gpu": (critic.use_dynamic_bsz, critic.ppo_max_token_len_per_gpu),
        "critic.forward_max_token_len_per_gpu": (critic.use_dynamic_bsz, critic.forward_max_token_len_per_gpu),
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": (
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        ),
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": (
            reference.log_prob_use_dynamic_bsz,
            reference.log_prob_max_token_len_per_gpu,
        ),
    }
    share = (PROMPT_TOKENS + RESPONSE_TOKENS) / pipeline.longest_sequence
    return {key: math.ceil(budget * share) for key, (by_tokens, budget) in given.items() if by_tokens}
