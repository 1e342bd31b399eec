"""A run of either trainer in this process, from its first weights to its last."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from pyarrow.parquet import read_table
from torch import Tensor

from benchmarks.learning_curve_parts.task import Task, our_config, trl_config
from devkit.smoke.problems import GATE_REWARD
from trainer import ppo
from trainer.data.reading import endless, read_data
from trainer.group import WorkerGroup
from trainer.local import LocalPool
from trainer.records import Prompts, Row
from trainer.rewards.custom import load_function
from trainer.rewards.score import score_all
from trainer.rollout.hf import HfEngine
from trainer.rollout.settings import sampling_of
from trainer.rows import repeat
from trainer.run import Observer, train
from trainer.tracking import Tracker


@dataclass(frozen=True)
class Outcome:
    """Of a run."""

    rewards: list[float]  # the mean of each generation, before the update that follows it
    weights: dict[str, Tensor]  # after the last update, by their names in the model


class Rewards(Observer):
    """Collects the mean reward of each step."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        self.means.append(float(result.scores.score_B.mean()))


def ours(task: Task, pool: LocalPool) -> Outcome:
    """The trainer's own loop, with one rank in this process."""
    config, observer = our_config(task), Rewards()
    train(config, pool, read_data(config), Tracker(()), observer)
    actor = pool.roles.actor
    assert actor is not None
    return Outcome(observer.means, {name: tensor.clone() for name, tensor in actor.full_tensors()})


def trl(task: Task, *, our_draws: bool) -> Outcome:
    """TRL's GRPOTrainer: generation by transformers, or with `our_draws` by our engine from its weights."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    means: list[float] = []
    scorer = load_function(GATE_REWARD, "reward.py", "compute_score")

    def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        said = [completion[0]["content"] for completion in completions]
        scores = score_all(said, [Row(0, "", "", "")] * len(said), scorer).scores
        means.append(statistics.mean(scores))
        return scores

    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(task.model),
        reward_funcs=reward,
        args=GRPOConfig(**trl_config(task)),
        train_dataset=Dataset.from_list(read_table(task.rows_file, columns=["prompt"]).to_pylist()),
        rollout_func=OurDraws(task, model) if our_draws else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return Outcome(means, {name: parameter.detach().clone() for name, parameter in model.named_parameters()})


class OurDraws:
    """TRL's `rollout_func`: what our engine generates from TRL's weights, with the streams of our run."""

    def __init__(self, task: Task, model: Any) -> None:
        self.config = our_config(task)
        self.model = model
        self.engine = HfEngine(
            deepcopy(model),
            eos_ids=[model.generation_config.eos_token_id],
            pad_id=model.generation_config.pad_token_id,
            max_sequences=self.config.actor_rollout_ref.rollout.max_num_seqs,
        )
        self.batches: Iterator[Prompts] = endless(read_data(self.config).train)
        self.step = 0

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[list[Any]]]:
        self.step += 1
        batch = repeat(next(self.batches), self.config.actor_rollout_ref.rollout.n)
        asked = trainer.processing_class.apply_chat_template(
            list(prompts), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        if asked != kept(batch.ids_BP, batch.mask_BP):
            raise RuntimeError(f"step {self.step}: TRL asks for other prompts than our loader gives")
        self.engine.load_weights(((name, p.detach()) for name, p in self.model.named_parameters()), self.step)
        rollout = self.engine.generate(batch, sampling_of(self.config, self.step, validate=False))
        return {
            "prompt_ids": asked,
            "completion_ids": kept(rollout.response_BT, rollout.mask_BT),
            "logprobs": kept(rollout.logp_BT, rollout.mask_BT),
        }


def kept(x_BT: Tensor, mask_BT: Tensor) -> list[list[Any]]:
    """The entries of each row under the mask."""
    return [row[mask.bool()].tolist() for row, mask in zip(x_BT, mask_BT, strict=True)]


def furthest(a: Outcome, b: Outcome) -> float:
    """The largest difference of a weight after the last update."""
    return max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)
