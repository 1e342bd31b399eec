"""A way to break the trainer, and the commands in which it acts. Standard library only: see `inject/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Checks of what comes out in the end, of an update on made-up numbers, and of each formula alone, which any mistake may
# spoil.
OUTCOMES = {"learning", "critic-update", "forward", "formulas", "losses", "loss-gradient", "adamw"}


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
MODELS = ("actor_rollout_ref.model", "critic.model")
EPOCHS = ("actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.model.use_remove_padding=True", *FILTERED)
GRPO, RLOO = ("algorithm.adv_estimator=grpo", SAMPLES), ("algorithm.adv_estimator=rloo", SAMPLES)
LORA = (
    *(f"{part}.{word}" for part in MODELS for word in ("lora_rank=8", "lora_alpha=32")),
    "trainer.max_rollout_drift=100",  # which may end a run before all is looked at
)
OWN_REWARD = ("custom_reward_function.path=tests/mutants/own_reward.py",)
