"""Makes a small PPO run that turns into NaN at step 3, on rank 1, because of one row of its data.

python docs/examples/nan_hunt.py FOLDER     writes the model, the data, the reward function and FOLDER/train.sh
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from devkit.smoke.problems import word_problems, write_parquet
from devkit.smoke.tiny import TinySpec, build

ROWS, BATCH, RANKS = 64, 8, 2
BAD_ROW = 2 * BATCH + BATCH // RANKS + 1  # in the third batch, in the second rank's half of it

BAD_ANSWER = "5" * 40  # the answers of a whole column, run together

REWARD = '''\
"""The nearer the response's digits come to the right answer, the better."""


def compute_score(data_source, solution_str, ground_truth, extra_info):
    said = float("".join(c for c in solution_str if c.isdigit())[:3] or 0)
    return -abs(said - float(ground_truth)) / 100
'''


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = tuple(record["question"] for record in word_problems(200, seed=0))
    build(TinySpec(str(folder / "model"), None, texts, seed=0, max_positions=512))
    train, test = write_parquet(folder, ROWS, seed=0)
    spoil(Path(train))
    (folder / "reward.py").write_text(REWARD)
    command = " \\\n  ".join(["exec python -m trainer.main_ppo", *words(folder, train, test), '"$@"'])
    (folder / "train.sh").write_text(command + "\n")
    sys.stdout.write(f"wrote {folder.name}/train.sh, its model, its data and its reward function\n")


def spoil(path: Path) -> None:
    """The answer of one row becomes a number that no float32 holds."""
    rows = pq.read_table(path).to_pylist()
    rows[BAD_ROW]["reward_model"]["ground_truth"] = BAD_ANSWER
    pq.write_table(pa.Table.from_pylist(rows), path)


def words(folder: Path, train: str, test: str) -> list[str]:
    settings = {
        "data.train_files": train,
        "data.val_files": test,
        "data.train_batch_size": BATCH,
        "data.shuffle": False,
        "data.max_prompt_length": 128,
        "data.max_response_length": 8,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.actor.ppo_mini_batch_size": BATCH,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "critic.ppo_micro_batch_size_per_gpu": 4,
        "custom_reward_function.path": folder / "reward.py",
        "trainer.n_gpus_per_node": RANKS,
        "trainer.device": "cpu",
        "trainer.total_training_steps": 5,
        "trainer.val_before_train": False,
        "trainer.default_local_dir": folder / "run",
    }
    return [shlex.quote(f"{key}={value}") for key, value in settings.items()]


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
