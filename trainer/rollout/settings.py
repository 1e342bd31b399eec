"""How the responses of a step are sampled, by the configuration."""

from __future__ import annotations

from trainer.config.schema import Config
from trainer.interfaces import Sampling


def sampling_of(config: Config, step: int, *, validate: bool) -> Sampling:
    """How to sample in training or validation; each training step draws from streams of its own."""
    rollout = config.actor_rollout_ref.rollout
    kwargs = rollout.val_kwargs if validate else rollout
    return Sampling(
        max_new_tokens=config.data.max_response_length,
        temperature=kwargs.temperature,
        top_p=kwargs.top_p,
        top_k=kwargs.top_k,
        do_sample=kwargs.do_sample,
        ignore_eos=rollout.ignore_eos,
        # Validation draws the same at every step, so that its curve shows the model and not the dice.
        seed=(config.trainer.seed * 1_000_003 + (-1 if validate else step)) % 2**63,
    )
