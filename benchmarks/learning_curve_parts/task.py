"""What both trainers get: a model, rows, a reward and settings, the same numbers under each one's names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.smoke.problems import GATE_REWARD, word_problems, write_parquet
from devkit.smoke.tiny import TinySpec, build
from trainer.config import Config, load


@dataclass(frozen=True)
class Settings:
    """Of a run. What is not here is off in both: KL, entropy bonus, dual clip, weight decay, warm-up, dropout."""

    steps: int = 50  # generations
    prompts: int = 8  # of a step
    samples: int = 4  # of a prompt
    updates: int = 1  # optimizer steps per generation
    response: int = 8  # tokens at most
    lr: float = 2e-3  # constant
    clip: float = 0.2
    gradient_clip: float = 1.0
    scaled: bool = True  # advantages over their group's deviation

    @property
    def rows(self) -> int:
        """Sequences of a step."""
        return self.prompts * self.samples


@dataclass(frozen=True)
class Task:
    """Of one seed, on disk."""

    folder: Path
    seed: int
    settings: Settings

    @property
    def model(self) -> str:
        return str(self.folder / "model")

    @property
    def rows_file(self) -> str:
        return str(self.folder / "train.parquet")


def make(folder: Path, seed: int, settings: Settings) -> Task:
    """A new model, and as many rows as the run has prompts: each is seen once, in the file's order."""
    count = settings.steps * settings.prompts
    write_parquet(folder, count, seed)
    texts = tuple(record["question"] for record in word_problems(count, 2 * seed))
    build(TinySpec(str(folder / "model"), None, texts, seed, 512))
    (folder / "reward.py").write_text(GATE_REWARD)
    return Task(folder, seed, settings)


def our_config(task: Task) -> Config:
    """The run as this trainer is told of it."""
    settings, part = task.settings, "actor_rollout_ref"
    words: dict[str, Any] = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": settings.scaled,
        "custom_reward_function.path": task.folder / "reward.py",
        "data.train_files": f"[{task.rows_file}]",
        "data.train_batch_size": settings.prompts,
        "data.max_prompt_length": 256,
        "data.max_response_length": settings.response,
        "data.shuffle": False,
        f"{part}.model.path": task.model,
        f"{part}.model.enable_gradient_checkpointing": False,
        f"{part}.actor.ppo_mini_batch_size": settings.prompts // settings.updates,
        f"{part}.actor.ppo_micro_batch_size_per_gpu": settings.rows // settings.updates,
        f"{part}.actor.shuffle": True,
        f"{part}.actor.data_loader_seed": task.seed,
        f"{part}.actor.clip_ratio": settings.clip,
        f"{part}.actor.clip_ratio_c": "null",
        f"{part}.actor.grad_clip": settings.gradient_clip,
        f"{part}.actor.optim.lr": settings.lr,
        f"{part}.actor.optim.weight_decay": 0.0,
        f"{part}.actor.fsdp_config.model_dtype": "fp32",
        f"{part}.actor.fsdp_config.dtype": "fp32",
        f"{part}.rollout.n": settings.samples,
        f"{part}.rollout.log_prob_micro_batch_size_per_gpu": settings.rows,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.seed": task.seed,
        "trainer.total_training_steps": settings.steps,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": task.folder / "ours",
    }
    return load([f"{key}={value}" for key, value in words.items()]).config


def trl_config(task: Task) -> dict[str, Any]:
    """The same for `GRPOConfig`."""
    settings = task.settings
    return {
        "num_generations": settings.samples,
        "per_device_train_batch_size": settings.rows // settings.updates,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": settings.updates,
        "max_steps": settings.steps * settings.updates,
        "max_completion_length": settings.response,
        "shuffle_dataset": False,
        "temperature": 1.0,
        "learning_rate": settings.lr,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "max_grad_norm": settings.gradient_clip,
        "epsilon": settings.clip,
        "beta": 0.0,
        "loss_type": "dapo",  # the mean over all tokens
        "scale_rewards": "group" if settings.scaled else "none",
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": task.seed,
        "use_cpu": True,
        "output_dir": str(task.folder / "trl"),
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
