"""Mistakes in advantages, losses and what the optimizer makes of them."""

from __future__ import annotations

from tests.mutants.mutant import GRPO, RLOO, Mutant

CRITIC_LAST = """    updates: dict[str, Asked[UpdateReport]] = {}
    if config.uses_critic:
        updates["update_critic"] = workers.update_critic(views.seen_as(critics, batch), number)
"""
CRITIC_FIRST = """    updates: dict[str, Asked[UpdateReport]] = {}
    if config.uses_critic:
        first = workers.update_critic(views.seen_as(critics, batch), number)
        told = first.now()
        experience = dataclasses.replace(experience, values_BT=workers.values(critics).now())
        batch, mean_kl = train_batch(experience, progress.kl_coef, config)

        def tell():
            return told
            yield

        updates["update_critic"] = dataclasses.replace(first, talk=tell)
"""
MUTANTS = (
    # -- advantages and losses
    Mutant(
        "kl-added-to-the-reward",
        "trainer/ppo.py",
        old="experience.scores_BT - kl_coef * kl_BT",
        new="experience.scores_BT + kl_coef * kl_BT",
        caught_by="kl-in-reward",
    ),
    Mutant(
        "advantages-negated",
        "trainer/ppo.py",
        old="return masked_whiten(advantages, mask), returns",
        new="return -masked_whiten(advantages, mask), returns",
        caught_by="advantages",
    ),
    Mutant(
        "gamma-and-lambda-swapped",
        "trainer/ppo.py",
        old="delta = rewards_TB[t] + gamma * next_value - values_TB[t]",
        new="delta = rewards_TB[t] + lam * next_value - values_TB[t]",
        caught_by="advantages",
        says="look at trainer/ppo.py:",
    ),
    Mutant(
        "returns-without-values",
        "trainer/ppo.py",
        old="(advantages_TB + values_TB).T.contiguous()",
        new="advantages_TB.T.contiguous()",
        caught_by="advantages",
        says="the return of response 0",
    ),
    Mutant(
        "groups-ignored",
        "trainer/ppo.py",
        old="grpo(score_B, uid_B, config",
        new="grpo(score_B, uid_B * 0, config",
        caught_by="advantages",
        words=GRPO,
    ),
    Mutant(
        "no-baseline",
        "trainer/ppo.py",
        old="(score_B - mean_B) * size_B / (size_B - 1).clamp(min=1)",
        new="score_B * size_B / size_B",
        caught_by="advantages",
        words=RLOO,
    ),
    Mutant(
        "critic-updated-before-its-values-are-taken",
        "trainer/ppo.py",
        old=CRITIC_LAST,
        new=CRITIC_FIRST,
        caught_by="first-mini-batch",
        says="was it updated before its values were taken, or are its sums of other rows or ranks? look at",
    ),
    Mutant(
        "policy-loss-negated",
        "trainer/ppo.py",
        old="plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)",
        new="plain, clipped = advantages * ratio, advantages * ratio.clamp(1 - clip_low, 1 + clip_high)",
        caught_by="policy-update",
    ),
    Mutant(
        "clipped-on-the-optimistic-side",
        "trainer/ppo.py",
        old="loss = torch.maximum(plain, clipped)",
        new="loss = torch.minimum(plain, clipped)",
        caught_by="losses",
        says="actor/pg_loss of a generated mini-batch is",
    ),
    Mutant(
        "kl-loss-negated",
        "trainer/ppo.py",
        old="loss = loss + config.kl_loss_coef * kl",
        new="loss = loss - config.kl_loss_coef * kl",
        caught_by="loss-gradient",
        says="look at trainer/ppo.py:",
        words=RLOO,
    ),
    Mutant(
        "betas-swapped",
        "trainer/learner/fsdp.py",
        old="betas=(optim.betas[0], optim.betas[1])",
        new="betas=(optim.betas[1], optim.betas[0])",
        caught_by="adamw",
        says="look at trainer/learner/fsdp.py:",
        words=GRPO,
    ),
    Mutant(
        "old-log-probs-of-another-row",
        "trainer/ppo.py",
        old="log_ratio = (logp - old_logp)",
        new="log_ratio = (logp - old_logp.roll(1, 0))",
        caught_by="first-mini-batch",
        also=("micro-batches",),
    ),
    Mutant(
        "not-clipped",
        "trainer/ppo.py",
        old="loss = torch.maximum(plain, clipped)",
        new="loss = plain",
        caught_by="losses",
        says="actor/pg_loss of a generated mini-batch is",
    ),
    Mutant(
        "ratio-always-one",
        "trainer/ppo.py",
        old="log_ratio = (logp - old_logp)",
        new="log_ratio = (logp - logp.detach())",
        caught_by="losses",
        says="look at trainer/ppo.py:",
    ),
    Mutant(
        "dual-clip-on-good-actions",
        "trainer/ppo.py",
        old="floored = (advantages < 0) & (loss > floor)",
        new="floored = loss > floor",
        caught_by="losses",
        says="actor/pg_",
        also=("policy-update", "gradients", "micro-batches"),
    ),
    Mutant(
        "half-of-the-value-clip",
        "trainer/ppo.py",
        old="values.clamp(old_values - clip, old_values + clip)",
        new="values.clamp(old_values - clip / 2, old_values + clip / 2)",
        caught_by="losses",
        says="critic/vf_loss of a generated mini-batch is",
    ),
    Mutant(
        "entropy-bonus-negated",
        "trainer/ppo.py",
        old="loss = loss - config.entropy_coeff",
        new="loss = loss + config.entropy_coeff",
        caught_by="loss-gradient",
        says="look at trainer/ppo.py:",
    ),
    Mutant(
        "log-probs-without-normaliser-in-the-gradient",
        "trainer/learner/head.py",
        old="(hit_CV.to(p_CV.dtype) - p_CV)",
        new="hit_CV.to(p_CV.dtype)",
        caught_by="loss-gradient",
        says="or at trainer/learner/head.py:",
        also=("policy-update",),
    ),
    Mutant(
        "kl-loss-counted-twice",
        "trainer/ppo.py",
        old="loss = loss + config.kl_loss_coef * kl",
        new="loss = loss + 2 * config.kl_loss_coef * kl",
        caught_by="loss-gradient",
        says="look at trainer/ppo.py:",
    ),
    Mutant(
        "weight-decay-a-hundred-times",
        "trainer/learner/fsdp.py",
        old="weight_decay=optim.weight_decay",
        new="weight_decay=optim.weight_decay * 100",
        caught_by="adamw",
        says="did not move as AdamW would",
    ),
    Mutant(
        "weight-decay-twice",
        "trainer/learner/fsdp.py",
        old="weight_decay=optim.weight_decay",
        new="weight_decay=optim.weight_decay * 2",
        caught_by="adamw",
        says="did not move as AdamW would",
    ),
    Mutant(
        "gradient-not-clipped",
        "trainer/learner/fsdp.py",
        old="Limits(self.grad_clip, self._scale)",
        new="Limits(1e9, self._scale)",
        caught_by="adamw",
        says="times what it is after clipping",
    ),
    Mutant(
        "another-epsilon",
        "trainer/learner/fsdp.py",
        old="            weight_decay=optim.weight_decay,\n",
        new="            weight_decay=optim.weight_decay,\n            eps=1e-6,\n",
        caught_by="adamw",
        says="did not move as AdamW would",
    ),
    Mutant(
        "learning-rate-times-ten",
        "trainer/learner/schedule.py",
        old='group["lr"] = self.config.lr * lr_factor(updates, self.config, self.total_steps)',
        new='group["lr"] = 10 * self.config.lr * lr_factor(updates, self.config, self.total_steps)',
        caught_by="learning-rate",
        says="look at trainer/learner/schedule.py:",
        also=("policy-update", "rollout-logprobs"),
    ),
    Mutant(
        "warm-up-one-update-longer",
        "trainer/learner/schedule.py",
        old="return config.lr_warmup_steps if config.lr_warmup_steps >= 0",
        new="return config.lr_warmup_steps + 1 if config.lr_warmup_steps >= 0",
        caught_by="learning-rate",
        says="look at trainer/learner/schedule.py:",
    ),
    Mutant(
        "warm-up-ratio-of-twice-the-steps",
        "trainer/learner/schedule.py",
        old="int(config.lr_warmup_steps_ratio * total_steps)",
        new="int(config.lr_warmup_steps_ratio * 2 * total_steps)",
        caught_by="learning-rate",
        says="the critic's learning rate is",
    ),
    Mutant(
        "kl-coefficient-decays",
        "trainer/ppo.py",
        old="        return coef\n",
        new="        return coef * 0.9\n",
        caught_by="kl-in-reward",
        says="step 1 ends with a KL coefficient of 0.009 but it should be 0.01: look at trainer/ppo.py:",
        also=("advantages", "resume"),
    ),
    Mutant(
        "whitened-over-padding",
        "trainer/ppo.py",
        old="return masked_whiten(advantages, mask), returns",
        new="return masked_whiten(advantages, torch.ones_like(mask)) * mask, returns",
        caught_by="advantages",
        says="gae: the advantage of response",
    ),
    Mutant(
        "long-responses-without-lambda",
        "trainer/scan.py",
        old="gamma * lam)",
        new="gamma)",
        caught_by="formulas",
        says="gae of 517 tokens, on generated numbers",
    ),
    Mutant(
        "dr-grpo-divides-all-the-same",
        "trainer/ppo.py",
        old="if scale_by_std else score_B - mean_B",
        new="if True else score_B - mean_B",
        caught_by="formulas",
        says="grpo without deviation, on generated numbers",
    ),
    Mutant(
        "gigpo-compares-states-of-other-tasks",
        "trainer/agent/by_turn.py",
        old="(uid, turn.state)",
        new="(0, turn.state)",
        caught_by="formulas",
        says="gigpo",
    ),
    Mutant(
        "step-reinforce-without-discount",
        "trainer/shaping.py",
        old="experience.scores_BT, config.step_reward_gamma)",
        new="experience.scores_BT, 1.0)",
        caught_by="formulas",
        says="gigpo",
    ),
    Mutant(
        "agentic-reinforce-goes-on-into-the-next-row",
        "trainer/agent/by_turn.py",
        old="(gamma * running if row == row_before else 0.0)",
        new="gamma * running",
        caught_by="formulas",
        says="agentic_reinforce",
    ),
    Mutant(
        "rewards-over-a-deviation-without-bessel",
        "trainer/shaping.py",
        old="/ (size_G - 1).clamp(min=1)).sqrt()",
        new="/ size_G).sqrt()",
        caught_by="formulas",
        says="of rewards by",
    ),
)
