"""Seed commands as the shell hands them over, and tiny data and model folders."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.pace import stretched

SEED_SCRIPTS = sorted((Path(__file__).parent / "seeds").glob("*.sh"))
STUB = '#!/bin/sh\nprintf "%s\\0" "$@" > "$WORDS_FILE"\n'


def write_rows(path: Path, rows: int, **columns: object) -> str:
    """A parquet file in verl's schema; `columns` replace values, None drops the column."""
    row: dict[str, object] = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "data_source": "toy",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        **columns,
    }
    kept = {name: [value] * rows for name, value in row.items() if value is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(kept), path)
    return str(path)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """What can be loaded, as far as that is looked at."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 4, "vocab_size": 3}))
    save_file({"model.embed_tokens.weight": np.zeros((3, 4), np.float32)}, folder / "model.safetensors")
    Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def command(tmp_path: Path, model_dir: Path) -> Callable[..., list[str]]:
    """A command without problems on one rank; further words are put at its end."""
    base = [
        f"data.train_files={write_rows(tmp_path / 'train.parquet', 16)}",
        f"data.val_files={write_rows(tmp_path / 'test.parquet', 4)}",
        f"actor_rollout_ref.model.path={model_dir}",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "critic.ppo_micro_batch_size_per_gpu=2",
        "trainer.n_gpus_per_node=1",
    ]
    return lambda *words: [*base, *words]


@pytest.fixture
def seed_words(tmp_path: Path) -> Callable[[Path], list[str]]:
    """What `main_ppo` is called with when bash runs a seed's command."""

    def run(script: Path) -> list[str]:
        words_file = tmp_path / "words"
        stubs = tmp_path / "stubs"
        stubs.mkdir(exist_ok=True)
        for name in ("python3", "ray", "srun"):
            (stubs / name).write_text(STUB)
            (stubs / name).chmod(0o755)
        environment = {"PATH": f"{stubs}:{os.defpath}", "HOME": str(tmp_path), "WORDS_FILE": str(words_file)}
        subprocess.run(
            ["bash", str(script)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=stretched(30),
            check=False,
        )
        words = words_file.read_text().removesuffix("\0").split("\0")
        return words[words.index("verl.trainer.main_ppo") + 1 :]

    return run


@pytest.fixture
def local_seed(seed_words: Callable[[Path], list[str]], tmp_path: Path, model_dir: Path) -> Callable[[Path], list[str]]:
    """The same with data files and models that are here."""

    def run(script: Path) -> list[str]:
        return [_local(word, tmp_path, model_dir) for word in seed_words(script)]

    return run


def _local(word: str, tmp_path: Path, model_dir: Path) -> str:
    key, _, value = word.partition("=")
    if key in ("data.train_files", "data.val_files"):
        files = [write_rows(tmp_path / f"{key}{i}.parquet", 2048) for i in range(value.count(".parquet"))]
        return f"{key}={files}" if value.startswith("[") else f"{key}={files[0]}"
    if key == "trainer.default_local_dir":  # such as /checkpoints, which root alone may make
        return f"{key}={tmp_path / 'checkpoints'}"
    return f"{key}={model_dir}" if key.endswith("model.path") else word
