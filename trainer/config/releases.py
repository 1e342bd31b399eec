"""Which release of verl, or Search-R1, accepts which override: the facts that `dialects.py` chooses from.

Hydra accepts `key=value` for keys that the release's own config has, and `+key=value` only for keys that it lacks.
Facts from the releases' `ppo_trainer.yaml` (`_generated_ppo_trainer.yaml` since v0.5), and from Search-R1's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trainer.config import tree
from trainer.config.overrides import Override

VERL = ("v0.2", "v0.3", "v0.4.0", "v0.4.1", "v0.5", "v0.6", "v0.7", "head")  # oldest first
SEARCH_R1 = "search-r1"

_Names = Mapping[str, str]  # section -> names in it; `name.*` is a whole subtree
_A, _R, _O, _M = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))

# Keys that are not in every release: the first that has them. A name without an entry is in all.
_SINCE: dict[str, _Names] = {
    "v0.3": {
        _A: "optim.lr_warmup_steps use_torch_compile checkpoint.*",
        _O: "max_model_len val_kwargs.* use_fire_sampling",
        "critic": "checkpoint.*",
        "custom_reward_function": "*",
        "data": "filter_overlong_prompts image_key truncation",
        "reward_model.model.fsdp_config": "wrap_policy.*",
        "trainer": "balance_batch max_actor_ckpt_to_keep max_critic_ckpt_to_keep",
    },
    "v0.4.0": {
        _A: "clip_ratio_c clip_ratio_high clip_ratio_low loss_agg_mode optim.num_cycles optim.weight_decay"
        " fsdp_config.offload_policy fsdp_config.reshard_after_forward",
        _M: "enable_activation_offload lora_alpha lora_rank target_modules trust_remote_code use_fused_kernels"
        " use_liger use_shm",
        _R: "fsdp_config.reshard_after_forward strategy use_torch_compile",
        _O: "layered_summon mode multi_turn.* chat_scheduler engine_kwargs.*",
        "algorithm": "kl_ctrl.horizon kl_ctrl.target_kl norm_adv_by_std_in_grpo pf_ppo.* use_kl_in_reward use_pf_ppo",
        "critic": "loss_agg_mode optim.weight_decay rollout_n",
        "critic.model": "enable_activation_offload fsdp_config.offload_policy fsdp_config.reshard_after_forward"
        " lora_alpha lora_rank target_modules trust_remote_code use_shm",
        "data": "custom_cls.* filter_overlong_prompts_workers return_full_prompt reward_fn_key trust_remote_code"
        " use_shm video_key",
        "ray_init": "*",
        "reward_model": "launch_reward_fn_async model.fsdp_config.reshard_after_forward model.trust_remote_code"
        " model.use_fused_kernels model.use_shm sandbox_fusion.*",
        "trainer": "device log_val_generations ray_wait_register_center_timeout rollout_data_dir val_before_train"
        " validation_data_dir",
    },
    "v0.4.1": {
        _A: "checkpoint.load_contents checkpoint.save_contents entropy_checkpointing entropy_from_logits_with_chunking"
        " fsdp_config.forward_prefetch policy_loss.* profiler.*",
        _M: "custom_chat_template fused_kernel_options.*",
        _R: "entropy_checkpointing entropy_from_logits_with_chunking fsdp_config.forward_prefetch profiler.*",
        _O: "calculate_log_probs multi_stage_wake_up multi_turn.interaction_config_path multi_turn.max_assistant_turns"
        " multi_turn.max_user_turns multi_turn.tokenization_sanity_check_mode multi_turn.use_inference_chat_template"
        " multi_turn.completion_callback engine_kwargs.vllm.disable_mm_preprocessor_cache profiler.*",
        "critic": "checkpoint.load_contents checkpoint.save_contents model.fsdp_config.forward_prefetch profiler.*",
        "data": "validation_shuffle",
        "reward_model": "model.fsdp_config.forward_prefetch sandbox_fusion.memory_limit_mb profiler.*",
        "trainer": "val_only profile_steps controller_nsight_options.* worker_nsight_options.*",
    },
    "v0.5": {
        _M: "exclude_modules",
        _O: "agent.* multi_turn.max_parallel_calls multi_turn.max_tool_response_length"
        " multi_turn.tool_response_truncate_side trace.* update_weights_bucket_megabytes",
        "data": "dataloader_num_workers datagen.* return_multi_modal_inputs sampler.*",
        "trainer": "esi_redundant_time npu_profile.* use_legacy_worker_impl",
    },
    "v0.6": {
        _A: "tis_imp_ratio_cap"
        " checkpoint.async_save freeze_vision_tower fsdp_config.dtype fsdp_config.entropy_checkpointing"
        " fsdp_config.entropy_from_logits_with_chunking fsdp_config.forward_only fsdp_config.model_dtype"
        " fsdp_config.strategy fsdp_config.ulysses_sequence_parallel_size fsdp_config.use_orig_params"
        " fsdp_config.use_torch_compile optim.betas optim.clip_grad optim.lr_scheduler_type optim.optimizer"
        " optim.optimizer_impl optim.override_optimizer_config use_fused_kernels use_remove_padding",
        _M: "hf_config_path lora_adapter_path tokenizer_path",
        "actor_rollout_ref": "nccl_timeout",
        _R: "fsdp_config.dtype fsdp_config.entropy_checkpointing fsdp_config.entropy_from_logits_with_chunking"
        " fsdp_config.forward_only fsdp_config.fsdp_size fsdp_config.model_dtype fsdp_config.offload_policy"
        " fsdp_config.optimizer_offload fsdp_config.strategy fsdp_config.ulysses_sequence_parallel_size"
        " fsdp_config.use_orig_params fsdp_config.use_torch_compile model",
        _O: "agent.default_agent_loop cudagraph_capture_sizes data_parallel_size enable_prefix_caching"
        " expert_parallel_size multi_turn.num_repeat_rollouts over_sample_rate pipeline_model_parallel_size"
        " prometheus.* skip_dump_dir skip_rollout skip_tokenizer_init",
        "algorithm": "rollout_correction.* rollout_is rollout_is_threshold rollout_is_threshold_lower rollout_is_level"
        " rollout_is_mode rollout_is_veto_threshold",
        "critic": "checkpoint.async_save enable optim.betas optim.clip_grad optim.lr_scheduler_type"
        " optim.lr_warmup_steps optim.num_cycles optim.optimizer optim.optimizer_impl optim.override_optimizer_config",
        "critic.model.fsdp_config": "dtype entropy_checkpointing entropy_from_logits_with_chunking forward_only"
        " model_dtype strategy ulysses_sequence_parallel_size use_orig_params use_torch_compile",
        "data": "apply_chat_template_kwargs image_patch_size seed tool_config_path train_max_samples val_max_samples",
        "global_profiler": "*",
        "ray_kwargs": "*",
        "reward_model": "enable_resource_pool n_gpus_per_node nnodes",
        "transfer_queue": "*",
    },
    "v0.7": {
        _A: "calculate_entropy data_loader_seed fsdp_config.full_determinism fsdp_config.seed loss_scale_factor"
        " rollout_n router_replay.* tau_neg tau_pos",
        _M: "tiled_mlp.*",
        _R: "fsdp_config.full_determinism fsdp_config.seed rollout_n router_replay.*",
        _O: "enable_rollout_routing_replay logprobs_mode quantization quantization_config_file"
        " trace.max_samples_per_step_per_worker",
        "algorithm": "rollout_correction.loss_type",
        "critic": "data_loader_seed",
        "critic.model": "fsdp_config.full_determinism fsdp_config.seed tiled_mlp.*",
        "reward_manager": "*",
        "reward_model": "model.override_config num_workers reward_loop_class_name reward_loop_module_path"
        " reward_loop_source rollout.* use_reward_loop",
    },
    "head": {
        _A: "calculate_sum_pi_squared sum_pi_squared_checkpointing use_prefix_grouper",
        _M: "mtp.*",
        _O: "checkpoint_engine.* mtp scheduling_policy engine_kwargs.trtllm multi_turn.function_tool_path",
        "critic": "fsdp.*",
        "reward": "*",
        "trainer": "use_v1",
        "": "model_engine",
    },
}

# Keys that later releases dropped: the last that has them.
_UNTIL: dict[str, _Names] = {
    "v0.2": {
        _A: "fsdp_config.grad_offload",
        "critic.model": "fsdp_config.grad_offload",
        "reward_model.model.fsdp_config": "min_num_params",
        "trainer": "remove_previous_ckpt_in_save",
    },
    "v0.3": {"trainer": "val_generations_to_log_to_wandb"},
    "v0.4.0": {
        _A: "checkpoint.contents",
        _O: "chat_scheduler multi_turn.max_turns",
        "critic": "checkpoint.contents",
    },
    "v0.4.1": {_O: "use_fire_sampling"},
    "v0.5": {
        _O: "multi_turn.completion_callback engine_kwargs.vllm.disable_mm_preprocessor_cache",
        "ray_init": "*",
        "trainer": "profile_steps controller_nsight_options.* worker_nsight_options.* npu_profile.*",
    },
    "v0.6": {
        _A: "tis_imp_ratio_cap",
        _R: "model",
        "algorithm": "rollout_correction.use_policy_gradient rollout_is rollout_is_threshold rollout_is_threshold_lower"
        " rollout_is_level rollout_is_mode rollout_is_veto_threshold",
    },
    "v0.7": {
        _O: "update_weights_bucket_megabytes",
        "algorithm": "rollout_correction.rollout_rs_threshold_lower rollout_correction.rollout_token_veto_threshold",
        "critic.model": "fsdp_config.*",
    },
}

# Search-R1 is v0.2 with these keys more and these less.
SEARCH_R1_ONLY = tuple(
    "data.train_data_num data.val_data_num data.max_start_length data.max_obs_length data.shuffle_train_dataloader"
    f" {_A}.state_masking {_O}.n_agent retriever.* reranker.* algorithm.no_think_rl algorithm.state_masking.*"
    " max_turns do_search".split()
)
_SEARCH_R1_LACKS = tuple(
    f"data.shuffle {_A}.ppo_micro_batch_size_per_gpu {_R}.log_prob_micro_batch_size_per_gpu"
    f" {_O}.log_prob_micro_batch_size_per_gpu critic.ppo_micro_batch_size_per_gpu"
    " critic.forward_micro_batch_size_per_gpu reward_model.micro_batch_size_per_gpu reward_model.reward_manager"
    " reward_model.model.fsdp_config.fsdp_size trainer.resume_mode trainer.resume_from_path"
    " trainer.remove_previous_ckpt_in_save trainer.del_local_ckpt_after_load"
    " trainer.val_generations_to_log_to_wandb".split()
)

# Accepted by every release, with `+` or without: free-form sections, Hydra's own keys, and keys of this trainer.
_ANYWHERE = tuple(
    f"hydra.* reward_model.reward_kwargs.* reward.reward_kwargs.* reward_model.overlong_buffer.* {_M}.override_config.*"
    f" critic.model.override_config.* {_O}.engine_kwargs.*"
    f" data.apply_chat_template_kwargs.* {_A}.optim.override_optimizer_config.*"
    " critic.optim.override_optimizer_config.* ray_kwargs.ray_init.*"
    " algorithm.masked_gae algorithm.reward_normalization.* algorithm.reward_clip algorithm.step_reward_gamma"
    " algorithm.episode_reward_weight algorithm.step_reward_weight algorithm.whiten_advantages algorithm.advantage_clip"
    " critic.model.exclude_modules"
    " trainer.seed trainer.step_timeout trainer.max_rollout_drift trainer.rollout_drift_action"
    " trainer.grace_period trainer.console_metrics trainer.capsule_dir trainer.capsule_freq trainer.capsule_weights"
    " global_profiler.ranks global_profiler.all_ranks"
    " retriever.url retriever.serve retriever.encoder retriever.encoder_kind retriever.topk retriever.timeout".split()
)


def accepts(release: str, override: Override) -> bool:
    """Whether `release` takes the override as it is written.

    >>> add = Override("+", "trainer.val_only", True)
    >>> accepts("v0.7", add), accepts("v0.3", add)
    (False, True)
    """
    if override.operator == "++" or any(matches(override.key, name) for name in _ANYWHERE):
        return True
    return has(release, override.key) != (override.operator == "+")


def has(release: str, key: str) -> bool:
    """Whether `key` stands in the config of `release`. Keys that this table doesn't know count as there."""
    only_there = is_search_r1_only(key)
    if release == SEARCH_R1:
        lacks = any(matches(key, name) for name in _SEARCH_R1_LACKS)
        return only_there or (not lacks and has("v0.2", key)) or key == f"{_R}.fsdp_config.fsdp_size"
    number = VERL.index(release)
    first = VERL.index(_nearest(key, _flat("since"), VERL[0]))
    last = VERL.index(_nearest(key, _flat("until"), VERL[-1]))
    return not only_there and first <= number <= last


def is_listed(key: str) -> bool:
    """Whether the table of releases, or the schema, has `key` itself, and not only a section around it."""
    return key in _flat("since") or key in _flat("until") or tree.is_key(key)


def is_search_r1_only(key: str) -> bool:
    return any(matches(key, name) for name in SEARCH_R1_ONLY)


def marks_search_r1(key: str) -> bool:
    """Whether a command with `key` must be Search-R1's: not so with `retriever.url`, which acts in all dialects."""
    return is_search_r1_only(key) and not any(matches(key, name) for name in _ANYWHERE)


def matches(key: str, name: str) -> bool:
    """Whether `name` is `key`, or a subtree that holds it.

    >>> matches("retriever.topk", "retriever.*"), matches("retrievers.topk", "retriever.*")
    (True, False)
    """
    return key == name or (name.endswith(".*") and (key + ".").startswith(name[:-1]))


def _nearest(key: str, table: Mapping[str, str], default: str) -> str:
    """The entry of `key` itself, else of the innermost subtree that holds it."""
    if key in table:
        return table[key]
    while key:
        if f"{key}.*" in table:
            return table[f"{key}.*"]
        key = key.rpartition(".")[0]
    return default


@cache
def _flat(which: str) -> Mapping[str, str]:
    sections = _SINCE if which == "since" else _UNTIL
    return {
        f"{prefix}.{name}".lstrip("."): release
        for release, names in sections.items()
        for prefix, listed in names.items()
        for name in listed.split()
    }
