"""Settings of the full command that contradict its aim: the tiny run, whose sizes are others, would not show that."""

from __future__ import annotations

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.plain_adamw import lr_factor
from trainer.config.schema import Config

IN_GROUPS = ("grpo", "rloo", "gigpo")  # estimators that compare a prompt's responses with each other


def command_settings(full: Config, steps: int) -> Outcome:
    """`steps`: of the full run; 0: not known."""
    n, estimator = full.actor_rollout_ref.rollout.n, full.algorithm.adv_estimator
    if estimator in IN_GROUPS and n < 2:
        said = f"algorithm.adv_estimator={estimator} with actor_rollout_ref.rollout.n={n}"
        why = "a response is compared with others to its prompt, and there are none: its advantage is its score"
        return Outcome(False, f"{said}: {why}; set n to 2 or more")
    rates = {"actor_rollout_ref.actor": full.actor_rollout_ref.actor.optim}
    if full.uses_critic:
        rates["critic"] = full.critic.optim
    for section, optim in rates.items():
        warmup = optim.lr_warmup_steps
        if steps and warmup >= steps:
            most = f"{lr_factor(steps - 1, optim, steps):.0%}"
            said = f"{section}.optim.lr_warmup_steps={warmup}, and the run has {steps} steps"
            return Outcome(False, f"{said}: the learning rate never gets beyond {most} of {section}.optim.lr")
    if full.actor_rollout_ref.rollout.ignore_eos:
        said = "actor_rollout_ref.rollout.ignore_eos=True: no response of the full run ends before its limit"
        return Outcome(False, f"{said}, and a model never learns to end one: that is for benchmarks; set it to False")
    if full.actor_rollout_ref.actor.entropy_coeff < 0:
        said = f"actor_rollout_ref.actor.entropy_coeff={full.actor_rollout_ref.actor.entropy_coeff:g} is negative"
        return Outcome(None, f"{said}: it lowers the entropy, as the term is subtracted from the loss; is that meant?")
    return Outcome(True, f"groups of {n}, and {f'{steps:,} steps' if steps else 'a run'} longer than any warm-up")


__all__ = ["command_settings"]
