"""A tiny model and GSM8K-like rows, made once for all xdist workers, and the command of a small run on them."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ARCHITECTURES = ("qwen2", "qwen2-tied", "llama", "gpt2", "gemma")


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Word problems in verl's schema."""
    dice = random.Random(seed)
    made = []
    for index in range(count):
        a, b = dice.randint(2, 60), dice.randint(2, 60)
        question = f"Ann has {a} pens and buys {b} more. How many pens has she? End with #### and the number."
        made.append(
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": question}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": "train", "index": index},
            }
        )
    return made


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def config_like(architecture: str) -> Any:
    import transformers

    return {
        "qwen2": lambda: transformers.Qwen2Config(num_key_value_heads=2, tie_word_embeddings=False),
        "qwen2-tied": lambda: transformers.Qwen2Config(num_key_value_heads=2, tie_word_embeddings=True),
        "llama": lambda: transformers.LlamaConfig(),
        "gpt2": lambda: transformers.GPT2Config(),  # with its dropouts of 0.1
        "gemma": lambda: transformers.GemmaConfig(),
    }[architecture]()


def build_models(folder: Path) -> None:
    from devkit.smoke.tiny import TinySpec, build

    texts = tuple(row["prompt"][0]["content"] for row in rows(200, 0))
    for seed, name in enumerate(ARCHITECTURES):
        like = folder / f"{name}-config"
        config_like(name).save_pretrained(like)
        build(TinySpec(str(folder / name), str(like), texts, seed, max_positions=512))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all xdist workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def models(shared: Path) -> Path:
    """A folder with one tiny model per name in ARCHITECTURES."""
    folder = shared / "trainer-models"
    with locked(shared / "trainer-models.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build_models(folder)
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="session")
def tiny_model(models: Path) -> str:
    return str(models / "qwen2")


@pytest.fixture(scope="session")
def parquet(shared: Path) -> Path:
    """A folder with train.parquet (24 rows) and test.parquet (6 rows)."""
    folder = shared / "trainer-data"
    with locked(shared / "trainer-data.lock"):
        if not folder.exists():
            folder.mkdir()
            for name, count, seed in (("train", 24, 1), ("test", 6, 2)):
                pq.write_table(pa.Table.from_pylist(rows(count, seed)), folder / f"{name}.parquet")
    return folder


Words = Callable[..., list[str]]


@pytest.fixture(scope="session")
def words(tiny_model: str, parquet: Path) -> Words:
    """`words("key=value", ...)`: a run of 8 prompts a step on one rank, with these changes."""
    base = {
        "data.train_files": str(parquet / "train.parquet"),
        "data.val_files": str(parquet / "test.parquet"),
        "data.train_batch_size": "8",
        "data.max_prompt_length": "128",
        "data.max_response_length": "6",
        "actor_rollout_ref.model.path": tiny_model,
        "actor_rollout_ref.actor.optim.lr": "1e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "2",
        "critic.ppo_micro_batch_size_per_gpu": "2",
        "critic.optim.lr": "1e-3",
        "trainer.n_gpus_per_node": "1",
        "trainer.device": "cpu",
        "trainer.total_training_steps": "1",
        "trainer.val_before_train": "False",
        "trainer.default_local_dir": "run",
    }

    def command(*changes: str, without: tuple[str, ...] = ()) -> list[str]:
        given = {key: value for key, value in base.items() if key not in without}
        given.update(change.split("=", 1) for change in changes)
        return [f"{key}={value}" for key, value in given.items()]

    return command


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """A process group of this process alone, for the code that shards."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
