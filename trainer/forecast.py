"""What of a run's beginning takes long and says nothing meanwhile: told before it begins, with what to expect.

Figures are those of small models on an H200; what a machine has compiled before is taken from its caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.config.chosen import NOTHING_CHOSEN, Choice
from trainer.config.lora import is_the_actor
from trainer.config.schema import Config

ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def of_start(config: Config) -> str | None:
    """Before models and engines come up."""
    name = ENGINES.get(config.actor_rollout_ref.rollout.name)
    if name is None:
        return None
    return f"models and {name} start; kernels that {name} has not compiled here before take half a minute or more"


def of_training(chosen: Sequence[Choice]) -> Iterator[str]:
    """How each model is trained, and why; nothing on a CPU, where nothing is chosen."""
    yield from (f"{choice.role}: {choice}" for choice in chosen if choice.why != NOTHING_CHOSEN)


def of_first_step(config: Config, chosen: Sequence[Choice]) -> str | None:
    """Before the first step of this process, of a resumed run too. It compiles with the first batch."""
    compiled = _compiled(config, chosen)
    if not compiled:
        return None
    return f"the first step compiles layers ({', '.join(compiled)}): expect it to take a minute longer than later ones"


def at_first_step(config: Config, chosen: Sequence[Choice]) -> str:
    """What the console shows until it is done."""
    return "first step, compiling layers" if _compiled(config, chosen) else "first step"


def _compiled(config: Config, chosen: Sequence[Choice]) -> list[str]:
    compiled = [choice.role for choice in chosen if choice.plan.compiled]
    wanted = is_the_actor(config) or config.actor_rollout_ref.ref.fsdp_config.use_torch_compile is not False
    if config.uses_reference and wanted:
        compiled[1:1] = ["reference"] * ("actor" in compiled)
    return compiled
