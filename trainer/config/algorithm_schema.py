"""The keys of advantages, each default in exactly this place. A part of `schema.Config`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class KlCtrlConfig:
    type: str = "fixed"  # fixed | adaptive
    kl_coef: float = 0.001
    horizon: int = 10000  # samples; adaptive
    target_kl: float = 0.1  # nats per token; adaptive


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    rollout_is: str | None = None  # truncated importance sampling: token | sequence; null: off
    rollout_is_threshold: float = 2.0  # the largest weight
    rollout_is_batch_normalize: bool = False  # weights over their mean in the batch


@dataclass(frozen=True)
class RewardNormalizationConfig:
    """ROLL's: what a row has earned, less a mean and over a deviation, before anything is estimated of it."""

    grouping: str = "batch"  # a group: batch | traj_group_id (a prompt's samples) | tags (a data source's rows)
    norm_mean_type: str | None = None  # the mean that is subtracted: batch | group; null: none
    norm_std_type: str | None = None  # the deviation that is divided by: batch | group; null: none


@dataclass(frozen=True)
class AlgorithmConfig:
    adv_estimator: str = (
        "gae"  # gae | grpo | rloo | reinforce_plus_plus | reinforce | gigpo | step_reinforce | agentic_reinforce
    )
    gamma: float = 1.0
    lam: float = 1.0
    masked_gae: bool = True  # ours: false is the recursion of verl before July 2025
    norm_adv_by_std_in_grpo: bool = True
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"  # kl (k1) | abs | mse (k2) | low_var_kl (k3)
    kl_ctrl: KlCtrlConfig = field(default_factory=KlCtrlConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    reward_normalization: RewardNormalizationConfig = field(default_factory=RewardNormalizationConfig)
    reward_clip: float | None = None  # ROLL's: what a row has earned, normalised, is between this and minus this
    step_reward_gamma: float = 0.95  # ROLL's: of a later turn's reward; gigpo, step_reinforce
    episode_reward_weight: float = 1.0  # ROLL's: of the whole conversation's reward; gigpo
    step_reward_weight: float = 1.0  # ROLL's: of what followed upon a turn; gigpo
    whiten_advantages: bool | None = None  # ROLL's: over the batch; null: those of gae and reinforce_plus_plus
    advantage_clip: float | None = None  # ROLL's: an advantage is between this and minus this
