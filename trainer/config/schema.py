"""The configuration: verl's key names, each default in exactly this place.

`Config` is a tree of frozen dataclasses. A default written as `II("other.key")` follows that other key until it is set
itself (OmegaConf resolves it), so a value is never written twice. Keys that verl knows and this trainer has no use for
are not here: `upstream.py` lists each with its reason. Keys of our own are marked `ours`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import II

from trainer.agent.source import scores
from trainer.config.agent_schema import AgentConfig, AgentLoopConfig, MultiTurnConfig, SearchRewardConfig
from trainer.config.algorithm_schema import AlgorithmConfig as AlgorithmConfig
from trainer.config.algorithm_schema import KlCtrlConfig as KlCtrlConfig
from trainer.config.algorithm_schema import RolloutCorrectionConfig as RolloutCorrectionConfig
from trainer.config.retriever_schema import RetrieverConfig


@dataclass(frozen=True)
class DataConfig:
    train_files: list[str] = field(default_factory=list)  # parquet files, verl's schema
    val_files: list[str] = field(default_factory=list)
    train_max_samples: int = -1  # -1: all rows
    val_max_samples: int = -1
    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    max_prompt_length: int = 512  # tokens
    max_response_length: int = 512  # tokens
    train_batch_size: int = 1024  # prompts per step, all ranks together, before rollout.n
    val_batch_size: int | None = None  # prompts per validation batch; null: all at once
    shuffle: bool = True
    seed: int | None = None  # of the shuffling; null: trainer.seed
    filter_overlong_prompts: bool = False
    truncation: str = "error"  # error | left | right | middle


@dataclass(frozen=True)
class OptimConfig:
    lr: float = 1e-6
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.01
    lr_warmup_steps: int = -1  # -1: lr_warmup_steps_ratio decides
    lr_warmup_steps_ratio: float = 0.0  # of the run's PPO steps
    lr_scheduler_type: str = "constant"  # constant | cosine, after the warm-up
    min_lr_ratio: float = 0.0  # cosine ends at min_lr_ratio * lr
    num_cycles: float = 0.5  # cosine waves


@dataclass(frozen=True)
class CriticOptimConfig(OptimConfig):
    lr: float = 1e-5


@dataclass(frozen=True)
class FsdpConfig:
    model_dtype: str = "fp32"  # of the parameters and the optimizer state: fp32 | bf16
    dtype: str = "auto"  # of the computation: auto (bf16 on CUDA, fp16 before Ampere; fp32 on CPU) | fp32 | bf16 | fp16
    # False: parameters stay whole until the optimizer steps; null: so where they fit, on a GPU
    reshard_after_forward: bool | None = None
    param_offload: bool = False  # parameters wait in host memory while other phases run
    use_torch_compile: bool | None = None  # compile each transformer layer; null: on a GPU whose compiler works


@dataclass(frozen=True)
class TrainedFsdpConfig(FsdpConfig):
    optimizer_offload: bool = False  # the optimizer's state waits in host memory between its steps
    grad_offload: bool = False  # gradients wait in host memory between the passes of a mini-batch


@dataclass(frozen=True)
class RefFsdpConfig(FsdpConfig):
    dtype: str = II("actor_rollout_ref.actor.fsdp_config.dtype")  # its log-probs are compared with the actor's


@dataclass(frozen=True)
class MegatronTransformerConfig:
    recompute_granularity: str | None = None  # full | selective; null: activations are kept
    recompute_modules: list[str] = field(default_factory=lambda: ["core_attn"])  # what selective recomputes
    recompute_method: str | None = None  # uniform | block, of full
    recompute_num_layers: int | None = None  # layers per recomputed unit (uniform), or recomputed layers (block)


@dataclass(frozen=True)
class MegatronConfig:
    tensor_model_parallel_size: int = 1  # ranks that share each matrix
    pipeline_model_parallel_size: int = 1  # ranks that share the layers
    sequence_parallel: bool = True  # norms on a part of the sequence each, with tensor parallelism
    use_distributed_optimizer: bool = True  # optimizer state split over the data-parallel ranks
    dtype: str = "auto"  # of parameters and computation: auto (bf16 on CUDA; fp32 before Ampere, on CPU) | fp32 | bf16
    override_transformer_config: MegatronTransformerConfig = field(default_factory=MegatronTransformerConfig)


@dataclass(frozen=True)
class CriticMegatronConfig(MegatronConfig):
    tensor_model_parallel_size: int = II("actor_rollout_ref.actor.megatron.tensor_model_parallel_size")
    pipeline_model_parallel_size: int = II("actor_rollout_ref.actor.megatron.pipeline_model_parallel_size")


@dataclass(frozen=True)
class CheckpointConfig:
    # model | optimizer | extra | hf_model (safetensors too)
    save_contents: list[str] = field(default_factory=lambda: ["model", "optimizer", "extra"])


@dataclass(frozen=True)
class ActorConfig:
    strategy: str = "fsdp"  # the training engine: fsdp, fsdp2 (both are FSDP2) | megatron
    ppo_mini_batch_size: int = 256  # prompts per optimizer step, all ranks together
    ppo_micro_batch_size: int | None = None  # deprecated: sequences per pass, all ranks together
    ppo_micro_batch_size_per_gpu: int | None = None  # sequences per forward and backward pass on one rank
    use_dynamic_bsz: bool = False  # passes are cut by the token budget below
    ppo_max_token_len_per_gpu: int = 16384  # tokens computed per pass on one rank, with use_dynamic_bsz
    ppo_epochs: int = 1
    shuffle: bool = False  # the order of rows before each PPO epoch
    data_loader_seed: int = 42  # of that shuffling
    clip_ratio: float = 0.2
    clip_ratio_low: float = II(".clip_ratio")
    clip_ratio_high: float = II(".clip_ratio")
    clip_ratio_c: float | None = 3.0  # dual clip; null: off
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None  # of seq-mean-token-sum-norm; null: max_response_length
    entropy_coeff: float = 0.0
    state_masking: bool = True  # Search-R1's: no loss on what an environment said; False: as on sampled tokens
    use_torch_compile: bool = True  # compile log-probs and entropy from logits (CUDA only)
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    grad_clip: float = 1.0
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp_config: TrainedFsdpConfig = field(default_factory=TrainedFsdpConfig)
    megatron: MegatronConfig = field(default_factory=MegatronConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass(frozen=True)
class RefConfig:
    log_prob_micro_batch_size: int | None = None  # deprecated: all ranks together
    log_prob_micro_batch_size_per_gpu: int | None = None
    log_prob_use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    log_prob_max_token_len_per_gpu: int = II("actor_rollout_ref.actor.ppo_max_token_len_per_gpu")
    use_torch_compile: bool = II("actor_rollout_ref.actor.use_torch_compile")
    fsdp_config: RefFsdpConfig = field(default_factory=RefFsdpConfig)


@dataclass(frozen=True)
class ValKwargs:
    do_sample: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    n: int = 1


@dataclass(frozen=True)
class SglangKwargs:
    attention_backend: str | None = None  # null: SGLang chooses; torch_native on a CPU
    sampling_backend: str | None = None  # ours: null is SGLang chooses; pytorch on a CPU
    cuda_graph_max_bs: int | None = None  # sequences that CUDA graphs are captured for; null: max_num_seqs, up to 1024
    replicas: int | None = None  # ours: engines that share a GPU; null: 1, for a small model up to 4
    log_level: str | None = None  # ours: null is error


@dataclass(frozen=True)
class VllmKwargs:
    attention_backend: str | None = None  # null: vLLM chooses; FLASH_ATTN, TRITON_ATTN, FLASHINFER
    log_level: str | None = None  # ours: null is error


@dataclass(frozen=True)
class EngineKwargs:
    sglang: SglangKwargs = field(default_factory=SglangKwargs)
    vllm: VllmKwargs = field(default_factory=VllmKwargs)


@dataclass(frozen=True)
class RolloutConfig:
    name: str = "hf"  # the engine: hf (transformers in the rank's process) | sglang | vllm
    tensor_model_parallel_size: int = 2  # ranks that share an engine; hf has one per rank
    gpu_memory_utilization: float = 0.5  # share of a GPU for the engine's weights and KV cache
    free_cache_engine: bool = True  # the engine gives its memory to the trainer between generations
    enforce_eager: bool = False  # no CUDA graphs in the engine
    update_weights_bucket_megabytes: int = 512  # weights that travel to the engine at once
    engine_timeout: int = 1800  # ours: seconds for its start, for any call, and from one response to the next
    engine_kwargs: EngineKwargs = field(default_factory=EngineKwargs)
    temperature: float = 1.0  # divides the trainer's logits too
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    n: int = 1  # responses per prompt
    do_sample: bool = True
    ignore_eos: bool = False
    max_num_seqs: int = 256  # sequences generated at once on one rank
    log_prob_micro_batch_size: int | None = None  # deprecated: all ranks together
    log_prob_micro_batch_size_per_gpu: int | None = None
    log_prob_use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    log_prob_max_token_len_per_gpu: int = II("actor_rollout_ref.actor.ppo_max_token_len_per_gpu")
    val_kwargs: ValKwargs = field(default_factory=ValKwargs)
    multi_turn: MultiTurnConfig = field(default_factory=MultiTurnConfig)
    agent: AgentLoopConfig = field(default_factory=AgentLoopConfig)


@dataclass(frozen=True)
class ModelConfig:
    path: str = ""  # local folder or hub id
    tokenizer_path: str | None = None  # null: path
    trust_remote_code: bool = False
    use_remove_padding: bool = True  # pack the sequences of a pass into one row: no padding is computed
    enable_gradient_checkpointing: bool | None = None  # null: the least recomputing that fits; on a CPU all
    recompute_granularity: str | None = None  # ours: of checkpointed layers, full | selective; null: what fits
    activation_memory_budget: float | None = None  # ours: of selective, the share of activations kept; null: what fits
    lora_rank: int = 0  # of adapters that train in place of the weights; 0: the weights train
    lora_alpha: float = 16.0  # adapters count lora_alpha / lora_rank times
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])  # names, ends of names, or an expression
    exclude_modules: list[str] | None = None  # of these, what has no adapter
    lora_adapter_path: str | None = None  # folder of the adapter to begin with, in peft's layout; null: a new one


@dataclass(frozen=True)
class CriticModelConfig:
    path: str = II("actor_rollout_ref.model.path")
    trust_remote_code: bool = II("actor_rollout_ref.model.trust_remote_code")
    use_remove_padding: bool = True
    enable_gradient_checkpointing: bool | None = None
    recompute_granularity: str | None = II("actor_rollout_ref.model.recompute_granularity")
    activation_memory_budget: float | None = II("actor_rollout_ref.model.activation_memory_budget")
    lora_rank: int = 0  # as the actor's; the value head trains whole
    lora_alpha: float = 16.0
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    exclude_modules: list[str] | None = None  # ours
    fsdp_config: TrainedFsdpConfig = field(default_factory=TrainedFsdpConfig)


@dataclass(frozen=True)
class ActorRolloutRefConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    ref: RefConfig = field(default_factory=RefConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    nccl_timeout: int = 600  # seconds that a collective may take, gloo's too


@dataclass(frozen=True)
class CriticConfig:
    strategy: str = II("actor_rollout_ref.actor.strategy")
    enable: bool | None = None  # null: when algorithm.adv_estimator=gae
    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    optim: CriticOptimConfig = field(default_factory=CriticOptimConfig)
    ppo_mini_batch_size: int = II("actor_rollout_ref.actor.ppo_mini_batch_size")
    ppo_micro_batch_size: int | None = None  # deprecated: all ranks together
    ppo_micro_batch_size_per_gpu: int | None = None
    use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    ppo_max_token_len_per_gpu: int = 32768
    forward_micro_batch_size: int | None = None  # deprecated: all ranks together; null: as the update
    forward_micro_batch_size_per_gpu: int | None = None  # of the pass that computes values; null: as the update
    forward_max_token_len_per_gpu: int = II(".ppo_max_token_len_per_gpu")
    ppo_epochs: int = II("actor_rollout_ref.actor.ppo_epochs")
    shuffle: bool = II("actor_rollout_ref.actor.shuffle")
    data_loader_seed: int = 42
    cliprange_value: float = 0.5
    loss_agg_mode: str = II("actor_rollout_ref.actor.loss_agg_mode")
    grad_clip: float = 1.0
    megatron: CriticMegatronConfig = field(default_factory=CriticMegatronConfig)


@dataclass(frozen=True)
class RewardFunctionConfig:
    path: str | None = None  # a Python file; null: chosen by the row's data_source
    name: str = "compute_score"


@dataclass(frozen=True)
class DeviceMappingConfig:
    """Ours: ranks of a role's own, as [0,1] or list(range(0,2)); without any, all ranks do everything."""

    actor: list[int] | None = None
    rollout: list[int] | None = None
    ref: list[int] | None = None  # null: the actor's
    critic: list[int] | None = None  # null: the actor's


@dataclass(frozen=True)
class TrainerConfig:
    nnodes: int = 1
    n_gpus_per_node: int = 8  # workers per node: one per GPU, or per CPU slot without GPUs
    device: str = "auto"  # auto | cuda | cpu
    device_mapping: DeviceMappingConfig = field(default_factory=DeviceMappingConfig)
    seed: int = 1  # ours: of sampling and of new weights
    total_epochs: int = 30
    total_training_steps: int | None = None  # overrides total_epochs
    balance_batch: bool = True  # deal the rows of a batch to the ranks so that each has about as many tokens
    critic_warmup: int = 0  # the step in which the actor is first updated; before it only the critic is
    project_name: str = "ppo"
    experiment_name: str = "default"
    logger: list[str] = field(default_factory=lambda: ["console", "file"])  # console | file | wandb | tensorboard
    console_metrics: str | None = (
        None  # ours: headline | all; null: all where no other logger keeps them, off a terminal
    )
    val_before_train: bool = True
    val_only: bool = False
    test_freq: int = -1  # steps between validations, and at the end; -1: none
    save_freq: int = -1  # steps between checkpoints, and at the end; -1: none
    default_local_dir: str = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
    max_actor_ckpt_to_keep: int | None = None  # whole checkpoints, newest first; null: all
    resume_mode: str = "auto"  # auto | disable | resume_path
    resume_from_path: str | None = None
    rollout_data_dir: str | None = None  # one JSON-lines file of samples per training step
    validation_data_dir: str | None = None  # the same of validation
    max_rollout_drift: float | None = 1.0  # ours: nats between engine and trainer, mean per token; null: no limit
    rollout_drift_action: str = "stop"  # ours: stop | warn, past that limit
    capsule_dir: str | None = None  # ours: one file per step that `python -m trainer.replay` replays
    capsule_freq: int = 1  # ours: steps between capsules, and at the end
    capsule_weights: str = "all"  # ours: all (models, optimizer state) | model | checkpoint (names it) | none
    ray_wait_register_center_timeout: int = 300  # seconds until every worker must be up
    step_timeout: int = 86400  # ours: seconds that one phase of a step may take
    grace_period: int = 0  # ours: seconds after SIGTERM in which the step in progress is finished and saved


@dataclass(frozen=True)
class ProfilerConfig:
    tool: str | None = None  # torch (traces of CPU and GPU) | torch_memory (CUDA memory snapshots); null: off
    steps: list[int] | None = None  # the steps that are profiled
    ranks: list[int] = field(default_factory=lambda: [0])  # ours
    all_ranks: bool = False  # ours
    profile_continuous_steps: bool = False  # neighbouring steps into one file
    save_path: str = "outputs/profile"


@dataclass(frozen=True)
class RayInitConfig:
    num_cpus: int | None = None  # of a cluster that the run starts itself


@dataclass(frozen=True)
class RayKwargsConfig:
    ray_init: RayInitConfig = field(default_factory=RayInitConfig)


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run. Frozen: nothing changes a value after `load`."""

    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    custom_reward_function: RewardFunctionConfig = field(default_factory=RewardFunctionConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    retriever: RetrieverConfig = field(default_factory=RetrieverConfig)
    reward_model: SearchRewardConfig = field(default_factory=SearchRewardConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    global_profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    ray_kwargs: RayKwargsConfig = field(default_factory=RayKwargsConfig)

    @property
    def world_size(self) -> int:
        """Ranks of the run: `nnodes * n_gpus_per_node`."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node

    @property
    def environment_scores(self) -> bool:
        """Whether rewards are what an environment gives, and not a reward function of what was said."""
        return scores(self.agent.env)

    @property
    def longest_sequence(self) -> int:
        """Tokens that a prompt and its response may have together."""
        return self.data.max_prompt_length + self.data.max_response_length

    @property
    def ranks_per_engine(self) -> int:
        """Ranks that share a rollout engine."""
        rollout = self.actor_rollout_ref.rollout
        return 1 if rollout.name == "hf" else rollout.tensor_model_parallel_size

    @property
    def uses_critic(self) -> bool:
        return self.algorithm.adv_estimator == "gae" if self.critic.enable is None else self.critic.enable

    @property
    def uses_megatron(self) -> bool:
        strategies = {self.actor_rollout_ref.actor.strategy, self.critic.strategy if self.uses_critic else None}
        return "megatron" in strategies

    @property
    def uses_reference(self) -> bool:
        return self.algorithm.use_kl_in_reward or self.actor_rollout_ref.actor.use_kl_loss
