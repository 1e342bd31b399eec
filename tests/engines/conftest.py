"""Runs with a real engine, on a GPU if there is one and else on the CPU.

Those of an engine that is not installed are skipped; `make test-sglang` and `make test-vllm` install one for a CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from trainer.config import load
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.local import LocalPool
from trainer.precision import in_precision
from trainer.records import Prompts, Row
from trainer.spec import RunSpec

ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"not installed: make test-{name}"))
    for name in ("sglang", "vllm")
]
ROLLOUT = "actor_rollout_ref.rollout"
CUDA = torch.cuda.is_available()
RESPONSE = 300 if CUDA else 24  # tokens at most; a GPU has 24 at once, and nothing can die in between
# Nats: of the same fp32 sums in another order the largest, of bf16 the mean, whose largest grows with the weights.
# Other weights than the trainer's are more than 1 off.
AGREE = 0.05 if CUDA else 1e-4
ON_CUDA = (
    f"{ROLLOUT}.gpu_memory_utilization=0.2",
    f"{ROLLOUT}.engine_kwargs.sglang.attention_backend=triton",
    f"{ROLLOUT}.engine_kwargs.sglang.sampling_backend=pytorch",
)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Which engine is tried: an environment has one of them, or none."""
    return str(request.param)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Qwen2 with two key-value heads."""
    from transformers import Qwen2Config

    from devkit.smoke.tiny import TinySpec, build

    folder = tmp_path_factory.mktemp("model")
    Qwen2Config(num_key_value_heads=2, tie_word_embeddings=False).save_pretrained(folder / "like")
    texts = (*(f"Ann has {n} pens and buys {n + 3} more." for n in range(100)), *["</search>"] * 100)
    build(TinySpec(str(folder / "tiny"), str(folder / "like"), texts, 0, max_positions=512))
    widen(folder / "tiny")
    return str(folder / "tiny")


def widen(folder: Path) -> None:
    """The same with heads of 64: kernels know few sizes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    config.update({"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2})
    config.head_dim = 64
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, **in_precision(torch.float32)).save_pretrained(folder)


@pytest.fixture(scope="session")
def config_of(model: str, engine: str) -> Callable[..., Config]:
    """`config_of("key=value", ...)`: the engine on one rank, a response of 24 tokens, with these changes."""

    def made(*changes: str) -> Config:
        base = (
            "data.train_files=[unused]",
            f"actor_rollout_ref.model.path={model}",
            "trainer.n_gpus_per_node=1",
            f"trainer.device={'cuda' if CUDA else 'cpu'}",
            "trainer.step_timeout=450",
            "data.train_batch_size=8",
            "data.max_prompt_length=16",
            f"data.max_response_length={RESPONSE}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            "critic.ppo_micro_batch_size_per_gpu=4",
            "algorithm.adv_estimator=rloo",
            f"{ROLLOUT}.name={engine}",
            f"{ROLLOUT}.tensor_model_parallel_size=1",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
            f"{ROLLOUT}.temperature=0.7",
            f"{ROLLOUT}.max_num_seqs=2",  # eight prompts come in four waves
            f"{ROLLOUT}.update_weights_bucket_megabytes=1",
            f"{ROLLOUT}.engine_timeout=400",
            *(ON_CUDA if CUDA else ()),
        )
        return load([*base, *changes]).config

    return made


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="eng", dir="/tmp") as folder:
        ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="session")
def prompts() -> Prompts:
    """Eight of six tokens, the first with padding."""
    ids_BP = torch.randint(5, 60, (8, 6), generator=torch.Generator().manual_seed(1))
    mask_BP = torch.ones(8, 6, dtype=torch.long)
    mask_BP[0, :3] = 0
    rows = tuple(Row(i, "f", "openai/gsm8k", "1") for i in range(8))
    return Prompts(ids_BP, mask_BP, torch.arange(8), torch.zeros(8, dtype=torch.long), rows)


class World:
    """One rank in this process, its engine beside it."""

    def __init__(self, config: Config, environment: str | None = None) -> None:
        self.config = config
        self.pool = LocalPool()
        self.pool.build(RunSpec(config, None, 3, environment))
        self.workers = WorkerGroup(self.pool, config)

    @property
    def engine(self) -> Any:
        return self.pool.roles.engine

    def same_weights(self) -> bool:
        """By checksums of whole tensors; on CUDA the actor's are fp32 and the engine's bf16."""
        (engine,), (actor,) = (self.workers.checksums(role) for role in ("engine", "actor"))
        return engine.keys() == actor.keys() if CUDA else engine == actor

    def change_weights(self, seed: int) -> None:
        dice = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.pool.roles.actor.module.parameters():
                local = weight.to_local()
                local.add_(0.05 * torch.randn(local.shape, generator=dice).to(local.device))


def gap(workers: Any, rollout: Any) -> float:
    """The difference between the engine's log-probs and the trainer's, as `AGREE` has it."""
    apart = (workers.log_probs(rollout).now().logp_BT - rollout.logp_BT)[rollout.mask_BT.bool()].abs()
    print(f"log-probs apart by {float(apart.mean()):.4f} nats in the mean, {float(apart.max()):.4f} at most")
    return float(apart.mean() if CUDA else apart.max())
