"""Keys of verl and Search-R1 that are not in `schema.py`: what each becomes here, or why it has no effect.

`rename` gives a key's name here. `no_effect` gives the reason why a key does nothing, and which of its values would
change results if they were passed over: those are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from trainer.config import search_r1, unmet
from trainer.config.agents import made_kwargs
from trainer.config.releases import matches
from trainer.config.schema import SglangKwargs, VllmKwargs
from trainer.config.tree import is_key

_A, _R, _O, _M = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
_FSDP_SECTIONS = (f"{_A}.fsdp_config", f"{_R}.fsdp_config", "critic.model.fsdp_config")

_CORRECTION = "algorithm.rollout_correction"
_IS = f"{_CORRECTION}.rollout_is"

_SUBTREES = {
    "critic.fsdp": "critic.model.fsdp_config",
    "reward.custom_reward_function": "custom_reward_function",
    "ray_init": "ray_kwargs.ray_init",
}
_RENAMES = {
    "data.train_data_num": "data.train_max_samples",
    "data.val_data_num": "data.val_max_samples",
    "data.shuffle_train_dataloader": "data.shuffle",
    f"{_O}.n_agent": f"{_O}.n",
    f"{_O}.checkpoint_engine.update_weights_bucket_megabytes": f"{_O}.update_weights_bucket_megabytes",
    f"{_O}.multi_turn.max_turns": f"{_O}.multi_turn.max_assistant_turns",
    "data.tool_config_path": f"{_O}.multi_turn.tool_config_path",
    f"{_A}.checkpoint.contents": f"{_A}.checkpoint.save_contents",
    f"{_A}.optim.clip_grad": f"{_A}.grad_clip",
    f"{_A}.optim.warmup_style": f"{_A}.optim.lr_scheduler_type",
    "critic.optim.clip_grad": "critic.grad_clip",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    "trainer.remove_previous_ckpt_in_save": "trainer.max_actor_ckpt_to_keep",
    "trainer.profile_steps": "global_profiler.steps",
    f"{_A}.profiler.ranks": "global_profiler.ranks",
    f"{_A}.profiler.all_ranks": "global_profiler.all_ranks",
    "algorithm.rollout_is": _IS,
    "algorithm.rollout_is_threshold": f"{_IS}_threshold",
    f"{_A}.tis_imp_ratio_cap": f"{_IS}_threshold",
    **{f"{section}.mixed_precision.param_dtype": f"{section}.dtype" for section in _FSDP_SECTIONS},
}
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "trainer.remove_previous_ckpt_in_save": lambda remove: 1 if remove is True else None if remove is False else remove,
    "agent.env_kwargs": lambda given: made_kwargs(given) if isinstance(given, dict) else given,
}


def rename(key: str, value: Any) -> tuple[str, Any]:
    """`key` and `value` as they are spelled here; the same again where nothing changes.

    >>> rename("critic.fsdp.reshard_after_forward", True)
    ('critic.model.fsdp_config.reshard_after_forward', True)
    """
    for old, new in _SUBTREES.items():
        if key.startswith(old + "."):
            key = new + key[len(old) :]
    if key.endswith(".warmup_style") and value is None:
        return key, value  # verl's own default since v0.6: lr_scheduler_type decides
    return _RENAMES.get(key, key), _CONVERSIONS.get(key, lambda same: same)(value)


def meanings(key: str, value: Any) -> tuple[tuple[str, Any], ...]:
    """As `rename`; two keys where a key of verl's says two things.

    >>> meanings("actor_rollout_ref.actor.tis_imp_ratio_cap", -1)
    (('algorithm.rollout_correction.rollout_is', None),)
    """
    if key == f"{_A}.tis_imp_ratio_cap" and isinstance(value, (int, float)):
        return ((_IS, "token"), rename(key, value)) if value > 0 else ((_IS, None),)
    return (rename(key, value),)


def spellings(key: str) -> tuple[str, ...]:
    """`key` under every name that some release has for it, with the name that it has here.

    >>> spellings("critic.model.fsdp_config.param_offload")
    ('critic.model.fsdp_config.param_offload', 'critic.fsdp.param_offload')
    """
    here, _ = rename(key, None)
    subtrees = (old + here[len(new) :] for old, new in _SUBTREES.items() if here.startswith(new + "."))
    return (here, *subtrees, *(old for old, new in _RENAMES.items() if new == here))


def renamed_keys() -> tuple[str, ...]:
    """Every key that is known by another name here, for suggestions."""
    return tuple(_RENAMES)


@dataclass(frozen=True)
class NoEffect:
    """Why a key does nothing here. With `only`, another value than these is refused, with `instead` as the hint."""

    why: str
    only: tuple[Any, ...] | None = None
    instead: str = ""

    def allows(self, value: Any) -> bool:
        if self.only is None or (isinstance(value, str) and "${" in value):
            return True  # what `${key}` refers to is judged where it is given itself
        return any(value == allowed and type(value) is type(allowed) for allowed in self.only)


@cache
def _table() -> Mapping[str, NoEffect]:
    table = {name: NoEffect(each.why) for name, each in unmet.names().items()}
    for why, names in _REASONS.items():
        for name in names.split():
            for key in _spread(name):
                table[key] = NoEffect(why)
    for names, refusal in _REFUSALS.items():
        for name in names.split():
            for key in _spread(name):
                table[key] = refusal
    return table


def _spread(name: str) -> tuple[str, ...]:
    """`FSDP.x` stands for `x` in each `fsdp_config`; `MODELS.x`, `MEGATRON.x`, `OPTIMS.x` for actor and critic."""
    head, _, rest = name.partition(".")
    if head == "FSDP":
        return tuple(f"{section}.{rest}" for section in _FSDP_SECTIONS)
    if head == "MODELS":
        return f"{_M}.{rest}", f"critic.model.{rest}"
    if head == "MEGATRON":
        return f"{_A}.megatron.{rest}", f"critic.megatron.{rest}"
    if head == "OPTIMS":
        return f"{_A}.optim.{rest}", f"critic.optim.{rest}"
    return (name,)


def no_effect(key: str) -> NoEffect | None:
    """The reason why `key` does nothing here, None for a key that acts or is not known.

    >>> no_effect("max_turns").why
    'nothing is searched; agent.max_turns bounds other conversations'
    """
    table = _table()
    if key in table:
        return table[key]
    if key.endswith("._target_"):
        return NoEffect("only verl has that class")
    if ".profiler." in key:
        return NoEffect("a rank's phases are profiled together, and global_profiler decides")
    held = [name for name in table if name.endswith(".*") and matches(key, name) and not is_key(key)]
    return table[max(held, key=len)] if held else None


@cache
def _sections() -> frozenset[str]:
    """Every section with a name below it, and not the section's own `.*` alone."""
    parts = (name.removesuffix(".*").split(".") for name in _table())
    return frozenset(".".join(names[:end]) for names in parts for end in range(1, len(names)))


def is_section(key: str) -> bool:
    """Whether keys of `key` are told apart here: a value for the whole of it is looked at name by name.

    >>> is_section("actor_rollout_ref.actor.policy_loss"), is_section("reranker")
    (True, False)
    """
    return key in _sections()


def inert_keys() -> tuple[str, ...]:
    """Every single key with an entry here, for suggestions and the reference pages."""
    return tuple(sorted(name for name in _table() if not name.endswith(".*")))


_REASONS: dict[str, str] = {
    search_r1.NOT_SEARCHED: "do_search data.max_start_length data.max_obs_length",
    f"{search_r1.NOT_SEARCHED}; agent.max_turns bounds other conversations": "max_turns",
    "Search-R1 itself reads it nowhere": "algorithm.state_masking.*",
    "each rank generates independently, without agent processes": f"{_O}.agent.num_workers",
    "the engine sizes and orders its own batches": (
        f"{_O}.enable_prefix_caching {_O}.max_num_batched_tokens"
        f" {_O}.enable_chunked_prefill {_O}.max_model_len {_O}.scheduling_policy {_O}.multi_stage_wake_up"
        f" {_O}.cudagraph_capture_sizes"
    ),
    "engines are cut by tensor_model_parallel_size alone, and there is one for each such group of ranks": (
        f"{_O}.data_parallel_size {_O}.expert_parallel_size {_O}.pipeline_model_parallel_size"
    ),
    "the engine has the actor's dtype and gets its weights from the actor": (
        f"{_O}.load_format {_O}.layered_summon {_O}.dtype {_O}.checkpoint_engine.*"
    ),
    **{
        f"verl hands all of engine_kwargs.{engine} on, and this trainer {', '.join(each.name for each in fields(kind))}"
        " alone": f"{_O}.engine_kwargs.{engine}.*"
        for engine, kind in {"sglang": SglangKwargs, "vllm": VllmKwargs}.items()
    },
    "engines are sglang and vllm": f"{_O}.engine_kwargs.*",
    "the engine takes and gives tokens": f"{_O}.skip_tokenizer_init",
    "nothing that was sampled is encoded again": (
        f"{_O}.multi_turn.use_inference_chat_template {_O}.multi_turn.tokenization_sanity_check_mode"
        f" {_O}.multi_turn.enable_tokenization_sanity_check"
    ),
    "the engine keeps no statistics and traces of its own": f"{_O}.disable_log_stats {_O}.prometheus.* {_O}.trace.*",
    "log-probs are those of the distribution that the trainer computes": f"{_O}.logprobs_mode",
    "FSDP2 leaves buffers as they are": "FSDP.mixed_precision.buffer_dtype",
    "every rollout has its log-probs": f"{_O}.calculate_log_probs",
    "actor_rollout_ref.model.use_remove_padding decides": f"{_A}.use_remove_padding",
    "log-probs and entropy always take a chunk of logits at a time, and recompute it for the gradient": (
        "FSDP.entropy_checkpointing FSDP.entropy_from_logits_with_chunking"
        f" {_A}.entropy_checkpointing {_A}.entropy_from_logits_with_chunking"
        f" {_R}.entropy_checkpointing {_R}.entropy_from_logits_with_chunking"
    ),
    "param_offload, optimizer_offload and grad_offload say what waits in host memory": (
        "FSDP.offload_policy MODELS.enable_activation_offload"
    ),
    "Megatron's parameters, gradients and optimizer state stay on their device": (
        "MEGATRON.param_offload MEGATRON.grad_offload MEGATRON.optimizer_offload"
    ),
    "the reference is not trained": f"{_R}.fsdp_config.optimizer_offload {_R}.fsdp_config.grad_offload",
    "each transformer layer is sharded over all ranks": (
        "FSDP.wrap_policy.* FSDP.fsdp_size FSDP.forward_prefetch FSDP.use_orig_params FSDP.forward_only"
    ),
    "memory and speed may differ, the maths does not": (
        f"{_A}.use_fused_kernels {_A}.use_prefix_grouper {_A}.sum_pi_squared_checkpointing"
        f" {_A}.calculate_sum_pi_squared {_A}.calculate_entropy MODELS.use_liger"
        " MODELS.use_fused_kernels MODELS.fused_kernel_options.* MODELS.tiled_mlp.* MODELS.use_shm"
        " data.use_shm MODELS.override_config.attn_implementation"
    ),
    "random numbers come from trainer.seed, and operations are not forced to be deterministic": (
        "FSDP.seed FSDP.full_determinism"
    ),
    "the reference is on the actor's engine": f"{_R}.megatron.*",
    "weights and checkpoints go by Hugging Face's names, whatever the parallel sizes": (
        "MEGATRON.use_dist_checkpointing MEGATRON.dist_checkpointing_path MEGATRON.dist_checkpointing_prefix"
        " MEGATRON.use_mbridge MEGATRON.vanilla_mbridge MEGATRON.load_weight"
    ),
    "the model decides how Megatron runs it": "MEGATRON.seed MEGATRON.forward_only MEGATRON.use_remove_padding",
    "the run counts its own steps": "OPTIMS.total_training_steps",
    "actor_rollout_ref.rollout.n decides": f"{_A}.rollout_n {_R}.rollout_n critic.rollout_n",
    "lr_scheduler_type decides": "OPTIMS.warmup_style",
    "the feature is off": (
        "MODELS.mtp.* algorithm.pf_ppo.*"
        f" {_O}.mtp {_O}.skip_dump_dir"
        f" algorithm.rollout_is_threshold_lower {_CORRECTION}.rollout_rs_threshold"
        f" {_CORRECTION}.rollout_rs_threshold_lower {_A}.router_replay.* {_R}.router_replay.*"
        " reward_manager.module.name reward_manager.module.path"
        " reward.reward_manager.module.name reward.reward_manager.module.path"
        " reward_model.enable_resource_pool reward_model.nnodes reward_model.n_gpus_per_node"
        " reward_model.forward_max_token_len_per_gpu reward_model.max_length reward_model.micro_batch_size"
        " reward_model.micro_batch_size_per_gpu reward_model.strategy reward_model.ulysses_sequence_parallel_size"
        " reward_model.use_dynamic_bsz reward_model.model.* reward_model.rollout.* reward_model.profiler.*"
        " reward_model.reward_loop_class_name reward_model.reward_loop_module_path"
        " reward_model.sandbox_fusion.max_concurrent reward_model.sandbox_fusion.memory_limit_mb"
        " reward.sandbox_fusion.max_concurrent reward.sandbox_fusion.memory_limit_mb reward.reward_model.*"
        " data.custom_cls.* data.sampler.* data.datagen.*"
        " algorithm.filter_groups.metric algorithm.filter_groups.max_num_gen_batches"
    ),
    "rewards are computed on the ranks, beside the models": (
        "reward_model.launch_reward_fn_async reward_model.num_workers reward_model.use_reward_loop reward.num_workers"
    ),
    "models are text only": f"{_A}.freeze_vision_tower data.image_patch_size data.return_multi_modal_inputs",
    "all prompts are tokenized when they are loaded, in the driver": (
        "data.return_raw_input_ids data.return_raw_chat data.return_full_prompt data.dataloader_num_workers"
        " data.filter_overlong_prompts_workers data.validation_shuffle"
    ),
    "the tokenizer follows actor_rollout_ref.model.trust_remote_code": "data.trust_remote_code",
    "the critic reads the actor's tokens": "critic.model.tokenizer_path",
    "a checkpoint holds actor and critic, and the actor's settings decide": (
        f"critic.checkpoint.* trainer.max_critic_ckpt_to_keep {_A}.checkpoint.async_save"
    ),
    "checkpoints are local": "trainer.default_hdfs_dir trainer.del_local_ckpt_after_load",
    "trainer.validation_data_dir keeps the generations": (
        "trainer.log_val_generations trainer.val_generations_to_log_to_wandb"
    ),
    "this concerns verl's own machinery": (
        "trainer.use_legacy_worker_impl trainer.use_v1 trainer.esi_redundant_time transfer_queue.*"
        " ray_kwargs.ray_init.* ray_kwargs.timeline_json_file"
    ),
    "this trainer does not have that profiler": (
        "global_profiler.global_tool_config.* trainer.npu_profile.* trainer.controller_nsight_options.*"
        " trainer.worker_nsight_options.*"
    ),
    "Hydra itself does not run": "hydra.*",
}

_OFF = (False, None)
_NO_SEQUENCE_PARALLELISM = NoEffect("sequences are not split over ranks", (1,), "set it to 1")
_FSDP2 = NoEffect("fsdp and fsdp2 both mean FSDP2", ("fsdp", "fsdp2"), "set it to fsdp")
_NO_CUSTOM_CODE = NoEffect("this trainer has its own", (None,), "remove it")
_NO_REJECTION = NoEffect(
    "no token is rejected for its importance ratio", (None,), f"set it to null; {_IS} bounds each weight"
)
_REFUSALS: dict[str, NoEffect] = {
    f"{_CORRECTION}.rollout_rs {_CORRECTION}.rollout_token_veto_threshold"
    " algorithm.rollout_is_veto_threshold": _NO_REJECTION,
    f"{_CORRECTION}.bypass_mode {_CORRECTION}.use_policy_gradient": NoEffect(
        "old log-probs are always the trainer's", _OFF, "set it to False"
    ),
    f"{_CORRECTION}.loss_type": NoEffect("the loss is the clipped surrogate", ("ppo_clip",), "set it to ppo_clip"),
    "algorithm.rollout_is_level": NoEffect("the level has its own key", ("token",), f"set {_IS} to it"),
    "algorithm.rollout_is_mode": NoEffect("weights are truncated", ("truncate",), "set it to truncate"),
    "FSDP.strategy": _FSDP2,
    "FSDP.mixed_precision.reduce_dtype": NoEffect(
        "gradients are summed up in fp32", ("fp32", "float32", 32), "set it to fp32, verl's default"
    ),
    f"{_R}.strategy": NoEffect("the reference is on the actor's engine", ("fsdp", "fsdp2", "megatron"), "remove it"),
    "MEGATRON.virtual_pipeline_model_parallel_size": NoEffect("a rank has one stage", (None,), "set it to null"),
    "MEGATRON.context_parallel_size MEGATRON.expert_model_parallel_size": NoEffect(
        "models are dense and sequences whole", (1,), "set it to 1"
    ),
    "MEGATRON.expert_tensor_parallel_size": NoEffect("models are dense", (None, 1), "set it to null"),
    "MEGATRON.override_ddp_config.* MEGATRON.override_mcore_model_config.*": NoEffect(
        "Megatron's buffers and model follow the other keys", (None, {}), "remove it"
    ),
    f"{_A}.ulysses_sequence_parallel_size {_R}.ulysses_sequence_parallel_size critic.ulysses_sequence_parallel_size"
    " FSDP.ulysses_sequence_parallel_size": _NO_SEQUENCE_PARALLELISM,
    "critic.model.lora_adapter_path": NoEffect("a critic's adapters are new ones", (None,), "remove it"),
    "reward_model.enable reward.reward_model.enable": NoEffect(
        "rewards come from functions", _OFF, "there are no reward models here: use custom_reward_function.path"
    ),
    "reward_model.reward_manager reward_manager.name reward.reward_manager.name": NoEffect(
        "one reward function scores each response", ("naive",), "put the rule into custom_reward_function.path"
    ),
    "reward_manager.source reward.reward_manager.source reward_model.reward_loop_source": NoEffect(
        "one reward function scores each response", ("register",), "put the rule into custom_reward_function.path"
    ),
    "reward_model.sandbox_fusion.url reward.sandbox_fusion.url": NoEffect(
        "rewards are computed here", (None,), "call the sandbox from custom_reward_function.path"
    ),
    "custom_reward_function.reward_kwargs custom_reward_function.reward_kwargs.*": NoEffect(
        "reward functions take the row and nothing else", ({}, None), "write the constants into the reward function"
    ),
    "algorithm.no_think_rl": NoEffect("there is no such variant", (False,), "set it to false: Search-R1 stops too"),
    "algorithm.filter_groups.enable": NoEffect("groups of equal rewards are kept", _OFF, "set it to False"),
    "data.gen_batch_size": NoEffect(
        "each step generates for data.train_batch_size prompts", (None,), "set data.train_batch_size, and remove it"
    ),
    "algorithm.use_pf_ppo": NoEffect("samples are not reweighted", _OFF, "set it to False"),
    f"{_A}.policy_loss.loss_mode": NoEffect("the loss is PPO's", ("vanilla",), "set it to vanilla"),
    f"{_A}.router_replay.mode {_R}.router_replay.mode": NoEffect(
        "routers are not replayed", ("disabled",), "disable it"
    ),
    f"{_O}.enable_rollout_routing_replay": NoEffect("routers are not replayed", _OFF, "set it to False"),
    f"{_R}.model {_R}.model.*": NoEffect("the reference is the first actor", (None, {}), "remove it"),
    "MODELS.external_lib": _NO_CUSTOM_CODE,
    "MODELS.override_config MODELS.override_config.*": NoEffect(
        "the model is as its config.json says", ({}, None), "edit config.json in a copy of the model folder"
    ),
    f"{_M}.custom_chat_template": NoEffect(
        "the tokenizer has the chat template", (None,), "point actor_rollout_ref.model.tokenizer_path to a changed one"
    ),
    f"{_M}.hf_config_path": NoEffect("config.json lies in the model folder", (None,), "remove it"),
    f"{_M}.mtp.enable {_M}.mtp.enable_train {_M}.mtp.enable_rollout": NoEffect(
        "there is no multi-token prediction", _OFF, "set it to False"
    ),
    "OPTIMS.optimizer": NoEffect("the optimizer is torch's AdamW", ("AdamW",), "set it to AdamW"),
    "OPTIMS.optimizer_impl": NoEffect("the optimizer is torch's AdamW", ("torch.optim",), "set it to torch.optim"),
    "OPTIMS.override_optimizer_config OPTIMS.override_optimizer_config.*": NoEffect(
        "the optimizer is torch's AdamW", (None, {}), "use lr, betas and weight_decay"
    ),
    f"{_O}.mode": NoEffect("rollout and updates take turns", ("sync", "async"), "set it to sync"),
    f"{_O}.prompt_length": NoEffect("data.max_prompt_length decides", (), "set data.max_prompt_length"),
    f"{_O}.response_length": NoEffect("data.max_response_length decides", (), "set data.max_response_length"),
    f"{_O}.chat_scheduler {_O}.agent.agent_loop_config_path {_O}.agent.agent_loop_manager_class"
    f" {_O}.agent.custom_async_server.path"
    f" {_O}.agent.custom_async_server.name": _NO_CUSTOM_CODE,
    f"{_O}.use_fire_sampling {_O}.skip_rollout": NoEffect("every response is sampled plainly", _OFF, "set it to False"),
    f"{_O}.over_sample_rate": NoEffect("every response is sampled plainly", (0, 0.0), "set it to 0"),
    f"{_O}.quantization {_O}.quantization_config_file": NoEffect("the actor itself generates", (None,), "remove it"),
    "actor_rollout_ref.hybrid_engine": NoEffect("all roles share their workers", (True,), "set it to True"),
    "data.tokenizer": NoEffect(
        "the model folder has the tokenizer", (None,), "use actor_rollout_ref.model.tokenizer_path"
    ),
    "data.custom_cls.path data.custom_cls.name data.sampler.class_path data.sampler.class_name data.datagen.path"
    " data.datagen.name": _NO_CUSTOM_CODE,
    "data.apply_chat_template_kwargs data.apply_chat_template_kwargs.*": NoEffect(
        "chat templates are applied as they are", ({}, None), "change the template of the tokenizer"
    ),
    "model_engine": NoEffect("fsdp and fsdp2 both mean FSDP2", ("dp", "fsdp", "fsdp2"), f"set {_A}.strategy"),
}
