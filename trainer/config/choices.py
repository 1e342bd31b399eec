"""Which values the keys of `schema.py` may have, beyond their types: a list of choices, or a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.config.problems import Problem
from trainer.retrieval.kinds import KINDS

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_KL_ALIASES = {
    "k1": "kl",
    "k2": "mse",
    "k3": "low_var_kl",
    "k1+": "kl+",
    "k2+": "mse",
    "mse+": "mse",
    "k3+": "low_var_kl+",
}
_KL_KINDS = ("kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "low_var_kl+")
_MODELS = ("actor_rollout_ref.model", "critic.model")
_SCHEDULES = ("constant", "cosine")
_FSDP_SECTIONS = (f"{_ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.model.fsdp_config")
_OPTIM_SECTIONS = (f"{_ACTOR}.optim", "critic.optim")
_MEGATRON_SECTIONS = (f"{_ACTOR}.megatron", "critic.megatron")
_RECOMPUTE = "override_transformer_config.recompute"
_STRATEGIES = ("fsdp", "fsdp2", "megatron")

# Of a list, each item is one of these.
CHOICES: dict[str, tuple[str, ...]] = {
    "data.truncation": ("error", "left", "right", "middle"),
    f"{_ACTOR}.loss_agg_mode": _LOSS_AGG_MODES,
    f"{_ACTOR}.kl_loss_type": _KL_KINDS,
    f"{_ACTOR}.checkpoint.save_contents": ("model", "optimizer", "extra", "hf_model"),
    f"{_ROLLOUT}.name": ("hf", "sglang", "vllm"),
    f"{_ROLLOUT}.multi_turn.format": ("hermes",),
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": ("left", "right", "middle"),
    f"{_ROLLOUT}.agent.default_agent_loop": ("single_turn_agent", "tool_agent"),
    "critic.loss_agg_mode": _LOSS_AGG_MODES,
    "algorithm.adv_estimator": (
        *("gae", "grpo", "rloo", "reinforce_plus_plus"),
        *("reinforce", "gigpo", "step_reinforce", "agentic_reinforce"),
    ),
    "algorithm.reward_normalization.grouping": ("batch", "traj_group_id", "tags"),
    "algorithm.reward_normalization.norm_mean_type": ("batch", "group"),
    "algorithm.reward_normalization.norm_std_type": ("batch", "group"),
    "agent.rows": ("conversation", "turn"),
    "algorithm.kl_penalty": _KL_KINDS,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.rollout_correction.rollout_is": ("token", "sequence"),
    "global_profiler.tool": ("torch", "torch_memory"),
    "agent.reward": ("turn", "last"),
    "agent.speech": ("chat", "plain"),
    "agent.on_failure": ("drop_row", "drop_group"),
    "reward_model.match": ("em", "subem"),
    "retriever.encoder_kind": tuple(KINDS),
    "trainer.capsule_weights": ("all", "model", "checkpoint", "none"),
    "trainer.rollout_drift_action": ("stop", "warn"),
    f"{_ACTOR}.strategy": _STRATEGIES,
    "critic.strategy": _STRATEGIES,
    "trainer.device": ("auto", "cuda", "cpu"),
    "trainer.logger": ("console", "file", "wandb", "tensorboard"),
    "trainer.console_metrics": ("headline", "all"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "actor_rollout_ref.model.recompute_granularity": ("full", "selective"),
    "critic.model.recompute_granularity": ("full", "selective"),
    **{f"{section}.lr_scheduler_type": _SCHEDULES for section in _OPTIM_SECTIONS},
    **{f"{section}.model_dtype": ("fp32", "bf16") for section in _FSDP_SECTIONS},
    **{f"{section}.dtype": ("auto", "fp32", "bf16", "fp16") for section in _FSDP_SECTIONS},
    **{f"{section}.dtype": ("auto", "fp32", "bf16") for section in _MEGATRON_SECTIONS},
    **{f"{section}.{_RECOMPUTE}_granularity": ("full", "selective") for section in _MEGATRON_SECTIONS},
    **{f"{section}.{_RECOMPUTE}_method": ("uniform", "block") for section in _MEGATRON_SECTIONS},
    **{f"{section}.{_RECOMPUTE}_modules": ("core_attn", "mlp") for section in _MEGATRON_SECTIONS},
}

# Of lists: what verl and its forks take beside that. It changes nothing that is learned, and is left out with a note.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "trainer.logger": (
        *("swanlab", "mlflow", "vemlp_wandb", "clearml", "trackio", "rl_insight", "tracking"),
        *("rerun", "comet", "comet_ml", "bwandb", "rl_logging_board", "rlloggingboard", "localfile"),
    ),
}


WHOLE = 2**31 - 1  # the largest whole number without a limit of its own: nothing that is made of a few overflows
LARGEST_FLOAT = 3.4028234663852886e38  # of fp32: what is more than that is infinite where it is used


@dataclass(frozen=True)
class Range:
    """`low <= value <= high`; `open_low` leaves `low` itself out, `open_high` `high`. No NaN or infinity is in one."""

    low: float
    high: float = WHOLE
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = f"{'more than' if self.open_low else 'at least'} {self.low:g}"
        if self.high in (WHOLE, LARGEST_FLOAT):
            return low if self.low > -self.high else "any size"
        high = f"{self.high:,}".replace(",", "") if isinstance(self.high, int) else f"{self.high:g}"
        return f"{low} and {'less than' if self.open_high else 'at most'} {high}"


def _number(low: float = -LARGEST_FLOAT, high: float = LARGEST_FLOAT, **kind: bool) -> Range:
    return Range(low, float(high), **kind)


_COUNT = Range(1)
_LENGTH = Range(1, 2**24)  # tokens: 16 million, beyond any model's context
_SEED = Range(0, 2**32 - 1)  # what numpy takes, and with it the engines
_ANY = _number()
_NOT_NEGATIVE = _number(0)
_POSITIVE = _number(0, open_low=True)
_SHARE = _number(0, 1)
_COUNTS = (
    "data.train_batch_size data.val_batch_size"
    f" {_ACTOR}.ppo_mini_batch_size {_ACTOR}.ppo_micro_batch_size {_ACTOR}.ppo_micro_batch_size_per_gpu"
    f" {_ACTOR}.ppo_max_token_len_per_gpu {_ACTOR}.ppo_epochs actor_rollout_ref.nccl_timeout"
    " actor_rollout_ref.ref.log_prob_micro_batch_size actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
    f" actor_rollout_ref.ref.log_prob_max_token_len_per_gpu {_ROLLOUT}.log_prob_max_token_len_per_gpu"
    f" {_ROLLOUT}.log_prob_micro_batch_size {_ROLLOUT}.log_prob_micro_batch_size_per_gpu {_ROLLOUT}.n"
    f" {_ROLLOUT}.max_num_seqs {_ROLLOUT}.tensor_model_parallel_size"
    f" {_ROLLOUT}.engine_kwargs.sglang.cuda_graph_max_bs {_ROLLOUT}.engine_kwargs.sglang.replicas"
    f" {_ROLLOUT}.engine_timeout {_ROLLOUT}.val_kwargs.n critic.ppo_mini_batch_size critic.ppo_micro_batch_size"
    " critic.ppo_micro_batch_size_per_gpu critic.ppo_max_token_len_per_gpu critic.forward_micro_batch_size"
    " critic.forward_max_token_len_per_gpu"
    " critic.forward_micro_batch_size_per_gpu critic.ppo_epochs algorithm.kl_ctrl.horizon"
    " trainer.total_epochs trainer.total_training_steps trainer.max_actor_ckpt_to_keep"
    " trainer.ray_wait_register_center_timeout trainer.step_timeout trainer.capsule_freq ray_kwargs.ray_init.num_cpus"
).split()
_MEGATRON_COUNTS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", f"{_RECOMPUTE}_num_layers")

# Of a list, each item is in it. Every number of the schema stands here: `tree.require_ranges`.
RANGES: dict[str, Range] = {
    **dict.fromkeys(_COUNTS, _COUNT),
    **{f"{section}.{key}": _COUNT for section in _MEGATRON_SECTIONS for key in _MEGATRON_COUNTS},
    "agent.episodes": Range(1, 2**24),
    "agent.val_episodes": Range(0, 2**24),
    "agent.max_turns": Range(1, 2**16),
    **{f"{_ROLLOUT}.multi_turn.max_{who}_turns": Range(0, 2**16) for who in ("assistant", "user")},
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": Range(1, 2**10),
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": Range(1, 2**22),
    **{f"agent.max_{what}_tokens": _LENGTH for what in ("turn", "observation", "context")},
    **{f"reward_model.{name}_score": _ANY for name in ("structure_format", "final_format", "retrieval")},
    "agent.max_envs": Range(1, 2**14),
    "agent.history_length": Range(1, 2**16),
    "agent.turn_timeout": _POSITIVE,
    "agent.trajectory_timeout": _POSITIVE,
    "agent.min_kept": _SHARE,
    "retriever.topk": Range(1, 1000),
    "retriever.timeout": _number(0, 86400, open_low=True),  # a socket takes no more than some years
    "trainer.nnodes": Range(1, 2**14),
    "trainer.n_gpus_per_node": Range(1, 2**10),
    **{f"trainer.device_mapping.{role}": Range(0, 2**24) for role in ("actor", "rollout", "ref", "critic")},
    **dict.fromkeys(("data.seed", "trainer.seed", f"{_ACTOR}.data_loader_seed", "critic.data_loader_seed"), _SEED),
    **dict.fromkeys(("data.max_prompt_length", "data.max_response_length"), _LENGTH),
    "data.train_max_samples": Range(-1),
    "data.val_max_samples": Range(-1),
    f"{_ACTOR}.entropy_coeff": _ANY,
    f"{_ACTOR}.kl_loss_coef": _NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio": _NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio_low": _NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio_high": _NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio_c": _number(1, open_low=True),
    f"{_ACTOR}.loss_scale_factor": _POSITIVE,
    f"{_ACTOR}.grad_clip": _POSITIVE,
    f"{_ROLLOUT}.temperature": _POSITIVE,
    f"{_ROLLOUT}.gpu_memory_utilization": _number(0, 1, open_low=True),
    f"{_ROLLOUT}.update_weights_bucket_megabytes": Range(1, 2**20),
    f"{_ROLLOUT}.top_p": _number(0, 1, open_low=True),
    f"{_ROLLOUT}.top_k": Range(-1),
    f"{_ROLLOUT}.val_kwargs.temperature": _NOT_NEGATIVE,
    f"{_ROLLOUT}.val_kwargs.top_p": _number(0, 1, open_low=True),
    f"{_ROLLOUT}.val_kwargs.top_k": Range(-1),
    **{f"{section}.lora_rank": Range(0, 2**16) for section in _MODELS},
    **{f"{section}.lora_alpha": _POSITIVE for section in _MODELS},
    "critic.cliprange_value": _POSITIVE,
    "critic.grad_clip": _POSITIVE,
    "algorithm.gamma": _SHARE,
    "algorithm.lam": _SHARE,
    "algorithm.step_reward_gamma": _SHARE,
    "algorithm.reward_clip": _POSITIVE,
    "algorithm.advantage_clip": _POSITIVE,
    "algorithm.episode_reward_weight": _ANY,
    "algorithm.step_reward_weight": _ANY,
    "algorithm.kl_ctrl.kl_coef": _NOT_NEGATIVE,
    "algorithm.kl_ctrl.target_kl": _POSITIVE,
    "algorithm.rollout_correction.rollout_is_threshold": _POSITIVE,
    "trainer.max_rollout_drift": _POSITIVE,
    "trainer.critic_warmup": Range(0),
    "trainer.grace_period": Range(0),
    "trainer.test_freq": Range(-1),
    "trainer.save_freq": Range(-1),
    "global_profiler.steps": Range(0),
    "global_profiler.ranks": Range(0, 2**24),
    **{f"{section}.lr": _SHARE for section in _OPTIM_SECTIONS},
    **{f"{section}.betas": _number(0, 1, open_high=True) for section in _OPTIM_SECTIONS},
    **{f"{section}.num_cycles": _NOT_NEGATIVE for section in _OPTIM_SECTIONS},
    **{f"{section}.weight_decay": _NOT_NEGATIVE for section in _OPTIM_SECTIONS},
    **{f"{section}.lr_warmup_steps": Range(-1) for section in _OPTIM_SECTIONS},
    **{f"{section}.lr_warmup_steps_ratio": _SHARE for section in _OPTIM_SECTIONS},
    **{f"{section}.min_lr_ratio": _SHARE for section in _OPTIM_SECTIONS},
    **{f"{section}.activation_memory_budget": _SHARE for section in _MODELS},
}

# Other spellings of a value, in any verl generation, and what they are here.
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_NO_LIMIT = {None: -1}
_PATHS = (
    *("agent.env", "retriever.url", "retriever.serve", "retriever.encoder", "retriever.encoder_kind"),
    *(f"{_ROLLOUT}.multi_turn.tool_config_path", f"{_ROLLOUT}.multi_turn.function_tool_path"),
    *("trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.capsule_dir"),
    *("custom_reward_function.path", "actor_rollout_ref.model.tokenizer_path"),
    *("actor_rollout_ref.model.lora_adapter_path", *(f"{part}.exclude_modules" for part in _MODELS)),
)
ALIASES: dict[str, dict[Any, Any]] = {
    "algorithm.kl_penalty": _KL_ALIASES,
    f"{_ACTOR}.kl_loss_type": _KL_ALIASES,
    f"{_ROLLOUT}.top_k": {0: -1},
    f"{_ROLLOUT}.val_kwargs.top_k": {0: -1},
    "data.train_max_samples": _NO_LIMIT,
    "data.val_max_samples": _NO_LIMIT,
    "algorithm.rollout_correction.rollout_is": {False: None, True: "token"},
    "trainer.resume_from_path": {False: None, "": None},
    **{key: {"": None} for key in _PATHS},
    **{f"{section}.min_lr_ratio": {None: 0.0} for section in _OPTIM_SECTIONS},
    **{f"{section}.{key}": _DTYPES for section in _FSDP_SECTIONS for key in ("model_dtype", "dtype")},
    **{f"{section}.dtype": _DTYPES for section in _MEGATRON_SECTIONS},
}


def unalias(key: str, value: Any) -> Any:
    """`value` in this trainer's own spelling.

    >>> unalias("algorithm.kl_penalty", "k3")
    'low_var_kl'
    """
    for other, own in ALIASES.get(key, {}).items():
        if type(value) is type(other) and value == other:  # 0 is not False
            return own
    return value


def value_problem(key: str, value: Any) -> Problem | None:
    """What is wrong with a value of the right type, if anything."""
    if key in CHOICES:
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if item not in CHOICES[key]:
                return Problem(key, f"{key}={item} is not one of its choices", f"choose from {', '.join(CHOICES[key])}")
    if key in RANGES:
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if item not in RANGES[key]:
                return Problem(key, f"{key}={_shown(item)} is out of range", f"give a number of {RANGES[key]}")
    return None


def _shown(number: float) -> str:
    """Not all digits of one that nobody has meant to write."""
    return str(number) if not isinstance(number, int) or abs(number) < 10**30 else f"{'-' * (number < 0)}1e30 and more"
