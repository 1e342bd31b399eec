"""Ways to break the trainer, each with the smoke check that must name it. Standard library only: see `inject/`.

A mutant replaces text that stands exactly once in its file. One that changes what only one of the ranks does, or
what happens only the second time, is still one replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Checks of what comes out in the end, and of an update on made-up numbers, which any mistake may spoil.
OUTCOMES = {"learning", "critic-update", "forward", "losses", "loss-gradient", "adamw"}


@dataclass(frozen=True)
class Mutant:
    """A mistake that somebody could make in `file`."""

    name: str
    file: str  # below the repository's root
    old: str
    new: str
    caught_by: str  # the check of `devkit smoke` that must fail
    says: str = ""  # what its detail must contain
    also: tuple[str, ...] = ()  # other checks that fail with it; OUTCOMES may fail with any
    words: tuple[str, ...] = ()  # of the command in which it acts; that without a word, if there are none

    @property
    def module(self) -> str:
        """
        >>> Mutant("x", "trainer/rollout/hf.py", "", "", "masks").module
        'trainer.rollout.hf'
        """
        return self.file.removesuffix(".py").replace("/", ".")

    def applied_to(self, source: str) -> str:
        """Raises ValueError if the text to replace does not stand exactly once in `source`."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"mutant {self.name}: its text stands {found} times in {self.file}, not once")
        return source.replace(self.old, self.new)


SAMPLES = "actor_rollout_ref.rollout.n=4"
FILTERED = ("data.filter_overlong_prompts=True", "data.max_prompt_length=45")  # of rows of about 53 tokens
EPOCHS = ("actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.model.use_remove_padding=True", *FILTERED)
GRPO, RLOO = ("algorithm.adv_estimator=grpo", SAMPLES), ("algorithm.adv_estimator=rloo", SAMPLES)
OWN_REWARD = ("custom_reward_function.path=tests/mutants/own_reward.py",)
CRITIC_LAST = """    updates: dict[str, Asked[UpdateReport]] = {}
    if config.uses_critic:
        updates["update_critic"] = workers.update_critic(batch, number)
"""
CRITIC_FIRST = """    updates: dict[str, Asked[UpdateReport]] = {}
    if config.uses_critic:
        first = workers.update_critic(batch, number)
        told = first.now()
        experience = dataclasses.replace(experience, values_BT=workers.values(rollout).now())
        batch, mean_kl = train_batch(experience, progress.kl_coef, algorithm)

        def tell():
            return told
            yield

        updates["update_critic"] = dataclasses.replace(first, talk=tell)
"""
MUTANTS = (
    # -- rollout
    Mutant(
        "mask-one-token-too-long",
        "trainer/rollout/hf.py",
        old="torch.stack(masks, 1)",
        new="torch.stack(masks[:1] + masks[:-1], 1)",
        caught_by="masks",
    ),
    Mutant(
        "temperature-in-the-engine-alone",
        "trainer/learner/fsdp.py",
        old="self.forward.log_probs(layout, self.temperature, entropy=entropy)",
        new="self.forward.log_probs(layout, 1.0, entropy=entropy)",
        caught_by="rollout-logprobs",
    ),
    Mutant(
        "log-probs-one-token-late",
        "trainer/learner/layout.py",
        old="Layout(inputs, before_BT[mask_BT], labels_M, mask_BT)",
        new="Layout(inputs, before_BT[mask_BT] + 1, labels_M, mask_BT)",
        caught_by="rollout-logprobs",
    ),
    Mutant(
        "rewards-on-other-rows",
        "trainer/group.py",
        old="Scores(torch.cat([answer.score_B for answer in answers]), extras)",
        new="Scores(torch.cat([answer.score_B for answer in answers]).roll(1), extras)",
        caught_by="rewards",
        also=("pipeline-rewards",),
    ),
    # -- rows of the file, and the scorers
    Mutant(
        "ground-truth-of-the-next-row",
        "trainer/data/parquet.py",
        old='ground_truth=self.value(REWARD_KEY, index)["ground_truth"]',
        new='ground_truth=self.value(REWARD_KEY, (index + 1) % len(self))["ground_truth"]',
        caught_by="pipeline-rewards",
        says="scored with the ground truth of the row after it in the file",
    ),
    Mutant(
        "prompt-of-another-row",
        "trainer/data/dataset.py",
        old="self._parts[part].row(row))",
        new="self._parts[part].row((row + 1) % len(self._parts[part])))",
        caught_by="prompt-tokens",
        says=" is that of row ",
    ),
    Mutant(
        "extra-info-of-the-next-row",
        "trainer/data/parquet.py",
        old="extra_info=(self.value(EXTRA_KEY, index) or {})",
        new="extra_info=(self.value(EXTRA_KEY, (index + 1) % len(self)) or {})",
        caught_by="pipeline-rewards",
        says="scored with the extra_info of the row after it in the file",
        words=OWN_REWARD,
    ),
    Mutant(
        "decoded-with-padding",
        "trainer/roles.py",
        old="tokenizer.decode(ids[:length], skip_special_tokens=True)",
        new="tokenizer.decode(ids)",
        caught_by="pipeline-rewards",
        says="decoded with its padding",
        also=("rewards",),
        words=OWN_REWARD,
    ),
    Mutant(
        "wrong-answers-rewarded",
        "trainer/rewards/gsm8k.py",
        old="score if answer == str(ground_truth) else format_score",
        new="score if answer != str(ground_truth) else format_score",
        caught_by="reward-truth",
        says="a right answer earns less than a wrong one",
    ),
    Mutant(
        "scores-kept-by-answer-alone",
        "trainer/rewards/gsm8k.py",
        old="score if answer == str(ground_truth) else format_score",
        new="compute_score.__dict__.setdefault(answer, score if answer == str(ground_truth) else format_score)",
        caught_by="reward-repeats",
        says="by what was scored before it",
    ),
    Mutant(
        "answers-that-are-no-number-raise",
        "trainer/rewards/gsm8k.py",
        old="score if answer == str(ground_truth) else format_score",
        new="score if float(answer) == float(ground_truth) else format_score",
        caught_by="reward-calls",
        says="for dots instead of a number",
    ),
    Mutant(
        "answers-at-the-very-end-alone",
        "trainer/rewards/gsm8k.py",
        old='re.compile(r"#### (-?[0-9.,]+)")',
        new='re.compile(r"#### (-?[0-9.,]+)\\Z")',
        caught_by="reward-text",
        says="with a line break at its end",
    ),
    # -- draws
    Mutant(
        "tokens-drawn-without-temperature",
        "trainer/rollout/sampling.py",
        old="        allowed_BV = scaled_BV\n",
        new="        allowed_BV = logits_BV.float()\n",
        caught_by="temperature",
        says="were drawn at a temperature near 1, not",
        words=GRPO,
    ),
    Mutant(
        "greedy-rollouts",
        "trainer/ppo.py",
        old="rollout.n), number, validate=False)",
        new="rollout.n), number, validate=True)",
        caught_by="temperature",
        says="greedy, although do_sample=True: look at trainer/rollout/settings.py:",
        also=("rollout-logprobs", "policy-update"),
    ),
    Mutant(
        "top-p-ignored",
        "trainer/rollout/sampling.py",
        old="if sampling.top_p < 1.0:",
        new="if sampling.top_p < 0.0:",
        caught_by="top-p",
        says="of the probability before it, at top_p=",
    ),
    Mutant(
        "top-k-ignored",
        "trainer/rollout/settings.py",
        old="top_k=kwargs.top_k",
        new="top_k=-1",
        caught_by="top-k",
        says="likelier ones, at top_k=",
    ),
    Mutant(
        "the-same-random-numbers-for-each-sample",
        "trainer/rollout/sampling.py",
        old='struct.pack("<qqq", sampling.seed, uid, sample)',
        new='struct.pack("<qq", sampling.seed, uid)',
        caught_by="draws-differ",
        says="samples of a prompt repeat each other",
    ),
    Mutant(
        "the-same-random-numbers-on-each-rank",
        "trainer/rollout/sampling.py",
        old="zip(prompts.uid_B.tolist(), prompts.sample_B.tolist(), strict=True)",
        new="zip(range(len(prompts)), prompts.sample_B.tolist(), strict=True)",
        caught_by="draws-differ",
        says="engines repeat each other",
        words=RLOO,
    ),
    Mutant(
        "validation-samples",
        "trainer/run.py",
        old="val_kwargs.n), 0, validate=True)",
        new="val_kwargs.n), 0, validate=False)",
        caught_by="validation",
        says="are not the likeliest, though val_kwargs.do_sample=False",
    ),
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
    # -- updates
    Mutant(
        "last-micro-batch-dropped",
        "trainer/ppo.py",
        old="for index in share.passes)",
        new="for index in share.passes[: max(1, len(share.passes) - 1)])",
        caught_by="micro-batches",
        also=("first-mini-batch", "mini-batches"),
    ),
    Mutant(
        "second-mini-batch-skipped",
        "trainer/ppo.py",
        old="        yield from order.split(size)\n",
        new="        yield order.split(size)[0]\n",
        caught_by="mini-batches",
        says="never trained on: look at trainer/ppo.py:",
    ),
    Mutant(
        "first-rows-only",
        "trainer/ppo.py",
        old="order = torch.arange(len(batch)) if shuffle_seed is None",
        new="order = torch.arange(len(batch)) % size if shuffle_seed is None",
        caught_by="mini-batches",
        says="step 2 trained on the mini-batch of step 1 again",
    ),
    Mutant(
        "values-that-see-their-token",
        "trainer/learner/forward.py",
        old="values.flatten(0, 1)[layout.before_M, 0].float()",
        new="values.flatten(0, 1)[layout.before_M + 1, 0].float()",
        caught_by="forward",
        says="look at trainer/learner/forward.py:",
    ),
    Mutant(
        "shuffled-alike-in-each-step",
        "trainer/group.py",
        old="config.data_loader_seed + step if",
        new="config.data_loader_seed if",
        caught_by="mini-batches",
        says="have the rows of the step before",
        words=("actor_rollout_ref.actor.shuffle=True",),
    ),
    Mutant(
        "ppo-epochs-ignored",
        "trainer/group.py",
        old="config.ppo_epochs, seed",
        new="1, seed",
        caught_by="mini-batches",
        says="1 epochs instead of 2",
        words=EPOCHS,
    ),
    Mutant(
        "mini-batch-trained-twice",
        "trainer/group.py",
        old="return list(ppo.mini_batches(batch, rows, config.ppo_epochs, seed))",
        new="return [index for index in ppo.mini_batches(batch, rows, config.ppo_epochs, seed) for _ in range(2)]",
        caught_by="mini-batches",
        says="update did 4 of 2 optimizer steps",
    ),
    Mutant(
        "rows-of-another-rank",
        "trainer/group.py",
        old="zip(dealt, parts, by_copy, strict=True)",
        new="zip(dealt, parts[:1] * len(parts), by_copy, strict=True)",
        caught_by="mini-batches",
        says="which rank 0 took too: look at trainer/group.py:",
        also=("first-mini-batch",),
    ),
    Mutant(
        "micro-batch-normalised-by-itself",
        "trainer/learner/fsdp.py",
        old="loss(rows, totals)",
        new='loss(rows, __import__("trainer.ppo").ppo.totals_of(rows.experience.rollout.mask_BT))',
        caught_by="micro-batches",
    ),
    Mutant(
        "layer-without-gradient",
        "trainer/roles.py",
        old='        self.actor = build.actor(source) if "actor" in has else None\n',
        new="        self.actor = build.actor(source)\n"
        "        next(self.actor.module.parameters()).requires_grad_(False)\n",
        caught_by="gradients",
        also=("optimizer-step",),
    ),
    Mutant(
        "critic-not-trained",
        "trainer/roles.py",
        old="            return ppo.update(self.critic, shares, self._critic_loss())\n",
        new="            with self.critic.frozen():\n"
        "                return ppo.update(self.critic, shares, self._critic_loss())\n",
        caught_by="critic-update",
        also=("learning-rate", "optimizer-step"),
    ),
    Mutant(
        "learning-rate-zero",
        "trainer/learner/schedule.py",
        old='group["lr"] = self.config.lr * lr_factor(updates, self.config, self.total_steps)',
        new='group["lr"] = 0.0',
        caught_by="learning",
        also=(
            "learning-rate",
            "optimizer-step",
            "policy-update",
        ),
    ),
    Mutant(
        "one-rank-does-not-step",
        "trainer/learner/fsdp.py",
        old="if self.learning:",
        new="if self.learning and dist.get_rank() == 0:",
        caught_by="optimizer-step",
        says="rank 1",
        also=("resume",),
    ),
    Mutant(
        "reference-is-the-actor",
        "trainer/roles.py",
        old="build.reference(source) if",
        new="self.actor if",
        caught_by="reference",
    ),
    # -- data
    Mutant(
        "order-of-the-data-repeats",
        "trainer/data/loader.py",
        old="[self._seed % 2**64, self._epoch]",
        new="[self._seed % 2**64, 0]",
        caught_by="data-order",
        says="epoch 2 has the order of epoch 1: the order of the data repeats: look at trainer/data/loader.py:",
    ),
    Mutant(
        "same-batch-each-step",
        "trainer/data/loader.py",
        old="            start = self._batch * self._batch_size\n",
        new="            start = 0\n",
        caught_by="data-order",
        says="step 2 has the batch of step 1 again: look at trainer/data/loader.py:",
        also=("prompts",),
    ),
    Mutant(
        "prompts-of-another-rank",
        "trainer/group.py",
        old="else shares[rank // size] for rank",
        new="else shares[0] for rank",
        caught_by="prompts",
        says="rank 1 generated for prompts of rank 0",
    ),
    Mutant(
        "filter-that-lets-through",
        "trainer/data/dataset.py",
        old="    if config.filter_overlong_prompts:\n",
        new="    if config.filter_overlong_prompts and len(ids) > 2 * limit:\n",
        caught_by="prompt-tokens",
        says="data.filter_overlong_prompts should drop it (limit 45)",
        words=EPOCHS,
    ),
    Mutant(
        "truncation-on-the-wrong-side",
        "trainer/data/dataset.py",
        old='{"left": 0, "right": limit,',
        new='{"left": limit, "right": 0,',
        caught_by="prompt-tokens",
        says="is cut on the right, and data.truncation=left: look at trainer/data/dataset.py:",
    ),
    # -- weights
    Mutant(
        "engine-keeps-its-first-weights",
        "trainer/rollout/hf.py",
        old="        copy_weights(self.model, tensors)\n",
        new="        if version == 1:\n            copy_weights(self.model, tensors)\n"
        "        [None for _ in tensors]\n",
        caught_by="weight-sync",
        says="rank 0",
        also=("rollout-logprobs",),
    ),
    Mutant(
        "one-rank-skips-the-sync",
        "trainer/roles.py",
        old="            if self.engine is not None:\n                self.engine.load_weights(",
        new="            if self.seat.rank == 1 and self.engine.version:\n"
        "                return [None for _ in tensors] and None\n"
        "            if self.engine is not None:\n                self.engine.load_weights(",
        caught_by="weight-sync",
        says="rank 1",
        also=(
            "rollout-logprobs",
            "ranks-equal",
        ),
    ),
    Mutant(
        "ranks-gather-other-weights",
        "trainer/learner/fsdp.py",
        old="yield name, whole(parameter.detach())",
        new="yield name, whole(parameter.detach()) * (1 + dist.get_rank() / 1000)",
        caught_by="ranks-equal",
        says="rank 1",
        also=("rollout-logprobs",),
    ),
    # -- death, resumption, export
    Mutant(
        "death-passed-over",
        "trainer/waiting.py",
        old="raise self.failure.explain(self.failure.refs.index(ref), error) from error",
        new="self._answers[ref] = ray.get(self.failure.refs[0])",
        caught_by="killed-rank",
    ),
    Mutant(
        "packed-sequences-not-kept-apart",
        "trainer/learner/attention.py",
        old="    lengths = bounds.diff().tolist()\n",
        new="    lengths = [int(bounds[-1])]\n",
        caught_by="settings",
        says="use_remove_padding has no effect, its batches are padded: two packed sequences give other results",
        words=EPOCHS,
    ),
    Mutant(
        "schedule-not-advanced",
        "trainer/learner/schedule.py",
        old="self.set_updates(self.updates + 1)",
        new="self.set_updates(max(self.updates, self.config.lr_warmup_steps) + 1)",
        caught_by="learning-rate",
        says="look at trainer/learner/schedule.py:",
    ),
    Mutant(
        "engines-not-loaded-after-resuming",
        "trainer/roles.py",
        old="            state_of(model).load(model, Path(folder) / name)\n        self.sync_weights()\n",
        new="            state_of(model).load(model, Path(folder) / name)\n",
        caught_by="weight-sync",
        says="look at trainer/roles.py:",
        also=("resume", "rollout-logprobs"),
    ),
    Mutant(
        "optimizer-not-restored",
        "trainer/learner/checkpoint.py",
        old="        files.load(state, folder)\n",
        new='        files.load({name: state[name] for name in ("model", "updates")}, folder)\n',
        caught_by="resume",
    ),
    Mutant(
        "data-position-not-restored",
        "trainer/run.py",
        old="    loader.load_state_dict(state.data)\n",
        new="",
        caught_by="resume",
        also=("data-order", "prompts"),
    ),
    Mutant(
        "draws-depend-on-the-past",
        "trainer/rollout/sampling.py",
        old='torch.Generator().manual_seed(struct.unpack("<q", digest)[0])',
        new="torch.default_generator",
        caught_by="resume",
    ),
    Mutant(
        "an-older-checkpoint-exported",
        "trainer/export.py",
        old="tensors = read_model(shards)",
        new='tensors = read_model(min(folder.parent.glob("global_step_*")) / "actor")',
        caught_by="export",
    ),
    Mutant(
        "an-update-that-raises",
        "trainer/ppo.py",
        old="    steps, skipped, trained = [], 0, set[str]()\n",
        new="    raise RuntimeError('broken')\n",
        caught_by="run",
        says="RuntimeError: broken",
    ),
)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

# Those of one run: a mistake that does not hide another one, each for a check of its own. A run takes most of its time
# to start.
TOGETHER = (
    (
        "mask-one-token-too-long",
        "rewards-on-other-rows",
        "answers-that-are-no-number-raise",
        "gamma-and-lambda-swapped",
        "layer-without-gradient",
        "engine-keeps-its-first-weights",
        "death-passed-over",
        "data-position-not-restored",
    ),
    (
        "kl-added-to-the-reward",
        "ground-truth-of-the-next-row",
        "returns-without-values",
        "policy-loss-negated",
        "optimizer-not-restored",
        "an-older-checkpoint-exported",
    ),
    (
        "advantages-negated",
        "prompt-of-another-row",
        "scores-kept-by-answer-alone",
        "reference-is-the-actor",
        "one-rank-skips-the-sync",
        "last-micro-batch-dropped",
        "critic-not-trained",
        "draws-depend-on-the-past",
        "prompts-of-another-rank",
    ),
    (
        "temperature-in-the-engine-alone",
        "wrong-answers-rewarded",
        "critic-updated-before-its-values-are-taken",
        "micro-batch-normalised-by-itself",
        "learning-rate-zero",
        "second-mini-batch-skipped",
        "order-of-the-data-repeats",
        "truncation-on-the-wrong-side",
    ),
    ("groups-ignored", "betas-swapped", "tokens-drawn-without-temperature"),
    ("no-baseline", "kl-loss-negated", "the-same-random-numbers-on-each-rank"),
    (
        "clipped-on-the-optimistic-side",
        "schedule-not-advanced",
        "answers-at-the-very-end-alone",
        "top-p-ignored",
        "top-k-ignored",
        "the-same-random-numbers-for-each-sample",
        "validation-samples",
        "first-rows-only",
        "same-batch-each-step",
    ),
    ("extra-info-of-the-next-row",),
    ("decoded-with-padding",),
    ("log-probs-one-token-late", "one-rank-does-not-step", "rows-of-another-rank"),
    ("greedy-rollouts", "engines-not-loaded-after-resuming", "values-that-see-their-token"),
    ("shuffled-alike-in-each-step",),
    ("old-log-probs-of-another-row", "ranks-gather-other-weights", "mini-batch-trained-twice"),
    ("ppo-epochs-ignored", "filter-that-lets-through", "packed-sequences-not-kept-apart"),
    ("an-update-that-raises",),
)
