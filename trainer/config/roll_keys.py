"""ROLL's keys and what each is here: `roll/configs/` and `roll/pipeline/agentic/agentic_config.py` of alibaba/ROLL.

A section of a role is written once, for those that have it. What takes more than a name to translate: `roll.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"

# Today's names of keys that older files have: ROLL itself ignores them without a word, and its defaults act.
RENAMED: Mapping[str, str] = {
    **{f"{mode}_env_manager.env_groups": f"{mode}_env_manager.num_env_groups" for mode in ("train", "val")},
    **{f"{mode}_env_manager.n_groups": f"{mode}_env_manager.num_groups_partition" for mode in ("train", "val")},
    **{
        f"{role}.model_args.flash_attn": f"{role}.model_args.attn_implementation"
        for role in ("actor_train", "actor_infer", "reference", "critic")
    },
    "strategy_name": "actor_train.strategy_args.strategy_name",
    "strategy_config": "actor_train.strategy_args.strategy_config",
}

# One of ROLL's is one of ours, or several; the value stays.
SAME: Mapping[str, tuple[str, ...]] = {
    "seed": ("trainer.seed",),
    "exp_name": ("trainer.experiment_name",),
    "max_steps": ("trainer.total_training_steps",),
    "save_steps": ("trainer.save_freq",),
    "eval_steps": ("trainer.test_freq",),
    "checkpoint_config.output_dir": ("trainer.default_local_dir",),
    "rollout_dump_dir": ("trainer.rollout_data_dir",),
    "pretrain": ("actor_rollout_ref.model.path",),
    "actor_train.model_args.adapter_name_or_path": ("actor_rollout_ref.model.lora_adapter_path",),
    "ppo_epochs": (f"{ACTOR}.ppo_epochs",),
    "max_grad_norm": (f"{ACTOR}.grad_clip",),
    "entropy_loss_coef": (f"{ACTOR}.entropy_coeff",),
    "use_kl_loss": (f"{ACTOR}.use_kl_loss",),
    "kl_loss_coef": (f"{ACTOR}.kl_loss_coef",),
    "loss_agg_mode": (f"{ACTOR}.loss_agg_mode",),
    "gamma": ("algorithm.gamma",),
    "lambd": ("algorithm.lam",),
    "add_token_level_kl": ("algorithm.use_kl_in_reward",),
    "kl_penalty": ("algorithm.kl_penalty",),
    "kl_horizon": ("algorithm.kl_ctrl.horizon",),
    "reward_clip": ("algorithm.reward_clip",),
    "whiten_advantages": ("algorithm.whiten_advantages",),
    "advantage_clip": ("algorithm.advantage_clip",),
    "step_reward_gamma": ("algorithm.step_reward_gamma",),
    "episode_reward_weight": ("algorithm.episode_reward_weight",),
    "step_reward_weight": ("algorithm.step_reward_weight",),
    "critic_warmup": ("trainer.critic_warmup",),
    "reward_normalization.grouping": ("algorithm.reward_normalization.grouping",),
    "actor_train.training_args.learning_rate": (f"{ACTOR}.optim.lr",),
    "actor_train.training_args.weight_decay": (f"{ACTOR}.optim.weight_decay",),
    "actor_train.training_args.warmup_steps": (f"{ACTOR}.optim.lr_warmup_steps",),
    "actor_train.training_args.warmup_ratio": (f"{ACTOR}.optim.lr_warmup_steps_ratio",),
    "actor_train.training_args.per_device_train_batch_size": (f"{ACTOR}.ppo_micro_batch_size_per_gpu",),
    "actor_train.infer_batch_size": (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",),
    "reference.infer_batch_size": (f"{REF}.log_prob_micro_batch_size_per_gpu",),
    "actor_train.use_dynamic_batching_in_train": (f"{ACTOR}.use_dynamic_bsz",),
    "actor_train.max_tokens_per_microbatch_in_train": (f"{ACTOR}.ppo_max_token_len_per_gpu",),
    "actor_train.use_sequence_packing": ("actor_rollout_ref.model.use_remove_padding",),
    "critic.training_args.learning_rate": ("critic.optim.lr",),
    "critic.training_args.weight_decay": ("critic.optim.weight_decay",),
    "critic.training_args.warmup_steps": ("critic.optim.lr_warmup_steps",),
    "critic.training_args.per_device_train_batch_size": ("critic.ppo_micro_batch_size_per_gpu",),
    "critic.infer_batch_size": ("critic.forward_micro_batch_size_per_gpu",),
    "actor_infer.generating_args.temperature": (f"{ROLLOUT}.temperature",),
    "actor_infer.generating_args.top_p": (f"{ROLLOUT}.top_p",),
    "actor_infer.generating_args.top_k": (f"{ROLLOUT}.top_k",),
    "actor_infer.generating_args.do_sample": (f"{ROLLOUT}.do_sample",),
    "actor_infer.strategy_args.strategy_config.gpu_memory_utilization": (f"{ROLLOUT}.gpu_memory_utilization",),
    "actor_infer.strategy_args.strategy_config.mem_fraction_static": (f"{ROLLOUT}.gpu_memory_utilization",),
    "actor_infer.strategy_args.strategy_config.tensor_parallel_size": (f"{ROLLOUT}.tensor_model_parallel_size",),
    "actor_infer.strategy_args.strategy_config.tensor_model_parallel_size": (f"{ROLLOUT}.tensor_model_parallel_size",),
    "actor_infer.strategy_args.strategy_config.enforce_eager": (f"{ROLLOUT}.enforce_eager",),
    "actor_infer.strategy_args.strategy_config.max_num_seqs": (f"{ROLLOUT}.max_num_seqs",),
}

LORA = ("target", "rank", "alpha")

# What `roll.py` makes something of, together with others.
TOGETHER = frozenset(
    {
        *("rollout_batch_size", "val_batch_size", "sequence_length", "prompt_length", "num_gpus_per_node"),
        *("adv_estimator", "track_with", "resume_from_checkpoint", "pg_clip", "dual_clip_loss", "init_kl_coef"),
        *("use_pg_clip_range", "pg_clip_low", "pg_clip_high", "target_kl", "value_clip"),
        *(f"reward_normalization.{name}" for name in ("method", "norm_mean_type", "norm_std_type")),
        *(f"{role}.device_mapping" for role in ("actor_train", "actor_infer", "reference", "critic")),
        "actor_train.model_args.dtype",
        *(f"{role}.model_args.lora_{name}" for role in ("actor_train", "critic") for name in LORA),
        *(f"{role}.model_args.disable_gradient_checkpointing" for role in ("actor_train", "critic")),
        *(f"{role}.strategy_args.strategy_name" for role in ("actor_train", "actor_infer", "critic")),
        *(f"{role}.training_args.gradient_accumulation_steps" for role in ("actor_train", "critic")),
        *(f"{role}.training_args.lr_scheduler_type" for role in ("actor_train", "critic")),
        *(f"actor_train.training_args.adam_beta{i}" for i in (1, 2)),
        *(
            f"actor_train.strategy_args.strategy_config.{name}"
            for name in (
                *("tensor_model_parallel_size", "pipeline_model_parallel_size", "use_distributed_optimizer"),
                *("recompute_granularity", "sequence_parallel", "recompute_method", "recompute_num_layers"),
            )
        ),
        "actor_infer.generating_args.max_new_tokens",
        *(f"{mode}_env_manager.{name}" for mode in ("train", "val") for name in ("group_size", "tags")),
        *(
            f"{mode}_env_manager.{name}"
            for mode in ("train", "val")
            for name in ("num_env_groups", "num_groups_partition")
        ),
    }
)

# Without effect, and why. A name that ends in .* stands for all below it.
_ROLES = ("actor_train", "actor_infer", "reference", "critic", "reward", "train_env_manager", "val_env_manager")
IGNORED: Mapping[str, str] = {
    "hydra.*": "it is about the start script itself",
    "defaults": "it is about the start script itself",
    "logging_dir": "the console and metrics.jsonl have what there is",
    "output_dir": "checkpoint_config.output_dir says where everything goes",
    "base_dir": "checkpoint_config.output_dir says where everything goes",
    "render_save_dir": "boards are text: trainer.rollout_data_dir keeps conversations",
    "system_envs.*": "set environment variables where the command is typed",
    "tracker_kwargs.*": "loggers have their own settings",
    "tracker_kwargs": "loggers have their own settings",
    "checkpoint_config.*": "checkpoints lie on a file system",
    "logging_steps": "every step is logged",
    "max_ckpt_to_keep": "trainer.max_actor_ckpt_to_keep says it here",
    "rpc_timeout": "trainer.step_timeout says it here",
    "num_nodes": "ROLL itself counts the nodes from device_mapping",
    "model_download_type": "a model comes from a folder, or from the Hugging Face hub",
    "rollout_mock.*": "trainer.capsule_dir records steps, and trainer.replay does them again",
    "router_args.*": "a conversation stays with its engine",
    "env_monitor.*": "agent.turn_timeout and devkit hang are about environments that hang",
    "max_running_requests": "agent.max_envs says how many at once",
    "generate_opt_level": "conversations go on by themselves",
    "is_num_return_sequences_expand": "a group's samples are rows",
    "enable_reference": "there is a reference where a KL needs one",
    "enable_old_logprobs_recompute": "old log-probs are always computed",
    "force_disable_old_logprobs_recompute": "old log-probs are always computed",
    "use_reward_scaling": "ROLL's agentic pipeline does not read it",
    "use_reward_norm": "ROLL's agentic pipeline does not read it",
    "add_len_reward": "ROLL's agentic pipeline does not read it",
    "norm_mean_type": "reward_normalization.norm_mean_type is what counts",
    "norm_std_type": "reward_normalization.norm_std_type is what counts",
    "l2": "ROLL's agentic pipeline does not read it",
    "use_token_reward": "ROLL reads it nowhere",
    "batch_adjust_mode": "rows beyond a multiple of the model's copies are left out",
    "partial_gpu_mode": "device_mapping says it",
    "exp_mode": "trainer.val_only validates alone",
    "profiler_output_dir": "global_profiler.save_path says it here",
    "otlp_output_dir": "there is no OpenTelemetry",
    "length_profiler_dir": "trainer.rollout_data_dir keeps lengths",
    "report_length_and_rewards": "trainer.rollout_data_dir keeps them",
    "model_update_buffer_size_mb": "actor_rollout_ref.rollout.update_weights_bucket_megabytes says it here",
    "skip_mock_system_prompt": "what stands around a turn is taken from the chat template itself",
    "custom_env.*": "custom_envs takes from it",
    "all_response_pattern": "custom_envs may take it",
    "prompt_mask": "custom_envs may take it",
    **{
        f"{role}.{name}": why
        for role in _ROLES
        for name, why in (
            ("data_args.*", "the tokenizer's chat template is used"),
            ("model_args.model_type", "the model's own config.json says it"),
            ("model_args.attn_implementation", "the fastest attention that the model has is used"),
            ("model_args.gradient_checkpointing_use_reentrant", "recomputing is never reentrant"),
            ("model_args.autocast_adapter_dtype", "adapters are in fp32"),
            ("worker_cls", "workers are this trainer's"),
            ("name", "workers are this trainer's"),
            ("world_size", "device_mapping says it"),
            ("num_gpus_per_worker", "a worker has one GPU; the parallel sizes say how many share a model"),
            ("backend_timeout", "actor_rollout_ref.nccl_timeout says it here"),
            ("max_concurrency", "agent.max_envs says how many at once"),
            ("system_envs.*", "set environment variables where the command is typed"),
            ("sequence_length_round_in_train", "passes are padded as their model needs it"),
            ("sequence_length_round_in_infer", "passes are padded as their model needs it"),
            ("offload_nccl", "there is nothing to be offloaded"),
            ("logits_in_fp32", "log-probs are computed in fp32"),
            ("model_update_frequency", "engines get the weights of each step"),
        )
    },
    **{
        f"{role}.{name}": why
        for role in ("actor_infer", "reference")
        for name, why in (
            ("model_args.disable_gradient_checkpointing", "nothing is trained there"),
            *(
                (f"model_args.lora_{name}", "the actor's own decides")
                for name in ("target", "rank", "alpha", "dropout")
            ),
            ("model_args.adapter_name_or_path", "the actor's own decides"),
            ("strategy_args.strategy_config.*", "the engine chooses it by itself"),
            ("strategy_args.strategy_config", "the engine chooses it by itself"),
        )
    },
    "actor_infer.model_args.dtype": "the engine takes the trainer's",
    "reference.model_args.dtype": "the reference is computed as the actor is",
    "critic.model_args.dtype": "the fastest that the GPU has is used: critic.model.fsdp_config.dtype says it here",
    "actor_infer.infer_batch_size": "the engine makes its own batches",
    "actor_infer.generating_args.max_length": "max_new_tokens and sequence_length say it",
    "actor_infer.generating_args.num_return_sequences": "ROLL itself makes it 1: group_size says how many samples",
    "actor_infer.generating_args.logprobs": "log-probs are always returned",
    "actor_infer.generating_args.include_stop_str_in_output": "what was sampled stays",
    "reference.strategy_args.strategy_name": "the reference is computed as the actor is",
    "actor_train.training_args.*": "it is about the transformers library's own trainer",
    "actor_train.strategy_args.strategy_config.*": "this trainer chooses it by itself",
    "critic.strategy_args.strategy_config.*": "the critic is as the actor",
    "critic.training_args.*": "it is about the transformers library's own trainer",
    "reward.*": "rewards are the environment's",
    "reward_pretrain": "rewards are the environment's",
    **{
        f"{mode}_env_manager.{name}": why
        for mode in ("train", "val")
        for name, why in (
            ("format_penalty", "ROLL reads it nowhere: env_config.format_penalty is what counts"),
            ("max_env_num_per_worker", "agent.max_envs says how many environments an engine has at once"),
            ("max_traj_per_env", "each step takes rollout_batch_size trajectories"),
            ("generating_args.*", "ROLL itself takes those of actor_infer"),
        )
    },
}

# What changes the result and is not there: the values that are let through, and what to do about others.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "async_generation_ratio": ((0, 0.0), "steps are synchronous: set it to 0"),
    "ratio_type": (("token",), "ratios are of tokens: set it to token"),
    "dirty_data_mask": ((False,), "set it to false"),
    "open_feedback_turn": ((False,), "set it to false"),
    "whiten_rewards": ((False,), "set reward_normalization instead"),
    "use_opd": ((False,), "there is no distillation"),
    "is_pure_opd": ((False,), "there is no distillation"),
    "reward_normalization.global_scale_factor": ((None, 1, 1.0), "leave it out"),
    "reward_normalization.global_shift_value": ((None, 0, 0.0), "leave it out"),
    "actor_infer.generating_args.num_beams": ((None, 1), "responses are sampled: set it to 1"),
    "actor_infer.generating_args.repetition_penalty": ((None, 1, 1.0), "set it to 1"),
    "actor_infer.generating_args.length_penalty": ((None, 1, 1.0), "set it to 1"),
    "actor_infer.generating_args.stop_strings": ((None, []), "a turn ends with EOS: leave it out"),
    "actor_train.strategy_args.strategy_config.expert_model_parallel_size": ((None, 1), "set it to 1"),
    "actor_train.strategy_args.strategy_config.context_parallel_size": ((None, 1), "set it to 1"),
    "actor_train.strategy_args.strategy_config.virtual_pipeline_model_parallel_size": ((None, 1), "leave it out"),
    **{
        f"{role}.model_args.{name}": (values, why)
        for role in ("actor_train", "critic")
        for name, values, why in (
            ("additional_target", (None,), "what has no adapter does not train: leave it out"),
            ("lora_dropout", (None, 0, 0.0), "dropout is off: set it to 0"),
        )
    },
    "critic.model_args.adapter_name_or_path": ((None,), "a critic's adapters are new ones: leave it out"),
    "train_env_manager.group_size_redundancy": ((0,), "it prefers short conversations: set it to 0"),
    "val_env_manager.group_size_redundancy": ((0,), "set it to 0"),
    "train_env_manager.group_filter_cls": ((None,), "all groups are kept: leave it out"),
    "val_env_manager.group_filter_cls": ((None,), "all groups are kept: leave it out"),
}
