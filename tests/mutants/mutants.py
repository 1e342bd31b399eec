"""Ways to break the trainer, each with the smoke check that must name it. Standard library only: see `inject/`.

A mutant replaces text that stands exactly once in its file. One that changes what only one of the ranks does, or
what happens only the second time, is still one replacement.
"""

from __future__ import annotations

from tests.mutants import of_agent_runs, of_agents, of_formulas, of_rollouts, of_runs

MUTANTS = (*of_rollouts.MUTANTS, *of_formulas.MUTANTS, *of_runs.MUTANTS, *of_agent_runs.MUTANTS)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
OF_TESTS = {mutant.name: mutant for mutant in of_agents.MUTANTS}  # that unit tests must catch

# Those of one run: a mistake that does not hide another one, each for a check of its own. A run takes most of its time
# to start.
TOGETHER = (
    ("agents-learn-what-they-read",),
    ("rewards-of-turns-a-column-late", "no-glue-between-turns"),
    ("last-turns-cut-off",),
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
    (
        "log-probs-one-token-late",
        "one-rank-does-not-step",
        "rows-of-another-rank",
        "gigpo-compares-states-of-other-tasks",
    ),
    ("greedy-rollouts", "engines-not-loaded-after-resuming", "values-that-see-their-token"),
    ("shuffled-alike-in-each-step",),
    ("old-log-probs-of-another-row", "ranks-gather-other-weights", "mini-batch-trained-twice"),
    ("ppo-epochs-ignored", "filter-that-lets-through", "packed-sequences-not-kept-apart"),
    ("an-update-that-raises",),
    ("adapters-without-their-scale",),
    ("engines-without-the-adapters", "weights-trained-beside-adapters"),
    (
        "not-clipped",
        "weight-decay-a-hundred-times",
        "kl-coefficient-decays",
        "validated-on-training-rows",
        "long-responses-without-lambda",
    ),
    (
        "ratio-always-one",
        "learning-rate-times-ten",
        "reference-says-what-the-actor-says",
        "answers-among-the-first-characters-alone",
    ),
    ("dual-clip-on-good-actions", "gradient-not-clipped", "whitened-over-padding"),
    (
        "entropy-bonus-negated",
        "weight-decay-twice",
        "warm-up-one-update-longer",
        "returns-reported-with-padding",
        "dr-grpo-divides-all-the-same",
    ),
    (
        "log-probs-without-normaliser-in-the-gradient",
        "another-epsilon",
        "warm-up-ratio-of-twice-the-steps",
        "responses-one-token-short",
        "agentic-reinforce-goes-on-into-the-next-row",
    ),
    (
        "half-of-the-value-clip",
        "kl-loss-counted-twice",
        "mean-of-validation-over-one-row-less",
        "step-reinforce-without-discount",
    ),
    (
        "one-step-too-few",
        "explained-variance-over-that-of-the-values",
        "rewards-over-a-deviation-without-bessel",
    ),
)
