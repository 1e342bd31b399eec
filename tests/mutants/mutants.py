"""Ways to break the trainer, each with the smoke check that must name it. Standard library only: see `inject/`.

A mutant replaces text that stands exactly once in its file. One that changes what only one of the ranks does, or
what happens only the second time, is still one replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A mistake that somebody could make in `file`."""

    name: str
    file: str  # below the repository's root
    old: str
    new: str
    caught_by: str  # the check of `devkit smoke` that must fail
    says: str = ""  # what its detail must contain
    to_the_end: bool = False  # another check sees it before that one does

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
        "policy-loss-negated",
        "trainer/ppo.py",
        old="plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)",
        new="plain, clipped = advantages * ratio, advantages * ratio.clamp(1 - clip_low, 1 + clip_high)",
        caught_by="policy-update",
    ),
    Mutant(
        "old-log-probs-of-another-row",
        "trainer/ppo.py",
        old="log_ratio = (logp - old_logp)",
        new="log_ratio = (logp - old_logp.roll(1, 0))",
        caught_by="first-mini-batch",
    ),
    # -- updates
    Mutant(
        "last-micro-batch-dropped",
        "trainer/ppo.py",
        old="for index in share.passes)",
        new="for index in share.passes[: max(1, len(share.passes) - 1)])",
        caught_by="micro-batches",
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
    ),
    Mutant(
        "critic-not-trained",
        "trainer/roles.py",
        old="            return ppo.update(self.critic, shares, self._critic_loss())\n",
        new="            with self.critic.frozen():\n"
        "                return ppo.update(self.critic, shares, self._critic_loss())\n",
        caught_by="critic-update",
        to_the_end=True,
    ),
    Mutant(
        "learning-rate-zero",
        "trainer/learner/schedule.py",
        old='group["lr"] = self.config.lr * lr_factor(updates, self.config, self.total_steps)',
        new='group["lr"] = 0.0',
        caught_by="learning",
        to_the_end=True,
    ),
    Mutant(
        "one-rank-does-not-step",
        "trainer/learner/fsdp.py",
        old="if finite and self.learning:",
        new="if finite and self.learning and dist.get_rank() == 0:",
        caught_by="optimizer-step",
        says="rank 1",
    ),
    Mutant(
        "reference-is-the-actor",
        "trainer/roles.py",
        old="build.reference(source) if",
        new="self.actor if",
        caught_by="reference",
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
    ),
    Mutant(
        "ranks-gather-other-weights",
        "trainer/learner/fsdp.py",
        old="yield name, whole(parameter.detach())",
        new="yield name, whole(parameter.detach()) * (1 + dist.get_rank() / 1000)",
        caught_by="ranks-equal",
        says="rank 1",
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
        "optimizer-not-restored",
        "trainer/learner/checkpoint.py",
        old="        dcp.load(state, checkpoint_id=folder)\n",
        new='        dcp.load({name: state[name] for name in ("model", "updates")}, checkpoint_id=folder)\n',
        caught_by="resume",
    ),
    Mutant(
        "data-position-not-restored",
        "trainer/run.py",
        old="    loader.load_state_dict(state.data)\n",
        new="",
        caught_by="resume",
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
