"""What of a run's beginning takes long and says nothing meanwhile: told before it begins, with what to expect.

Figures are those of small models on an H200; what a machine has compiled before is taken from its caches.
"""

from __future__ import annotations

from trainer.config.schema import Config

ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def of_start(config: Config) -> str | None:
    """Before models and engines come up."""
    name = ENGINES.get(config.actor_rollout_ref.rollout.name)
    if name is None:
        return None
    return f"models and {name} start; kernels that {name} has not compiled here before take half a minute or more"


def of_first_step(config: Config) -> str | None:
    """Before the first step of this process, of a resumed run too."""
    part, critic = config.actor_rollout_ref, config.critic
    with_fsdp = {
        "actor": part.actor.fsdp_config.use_torch_compile and part.actor.strategy != "megatron",
        "reference": config.uses_reference
        and part.ref.fsdp_config.use_torch_compile
        and part.actor.strategy != "megatron",
        "critic": config.uses_critic and critic.model.fsdp_config.use_torch_compile and critic.strategy != "megatron",
    }
    compiled = [role for role, is_compiled in with_fsdp.items() if is_compiled]
    if not compiled:
        return None
    return f"the first step compiles layers ({', '.join(compiled)}): expect it to take a minute longer than later ones"
