"""What `devkit smoke --agent` plays: a tiny model, its environment, and the command of the run.

lake      a board of four fields: three turns at most, a chat template, a reward at the goal
search    a name of two letters, a passage that says its number, and an answer: the trainer's own demo, smaller
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from devkit.smoke.options import LAKE, SEARCH
from devkit.smoke.shrink import Plan
from trainer.config import load, warning_lines
from trainer.demo import lake, search, tiny
from trainer.demo.task import END
from trainer.env.frozen_lake import FrozenLake

RANKS = 2
SAVE_AT, KILL_AT, LAST = 10, 11, 12  # steps of its run
BOARD = "SF/FG"
TURNS = 3
TEACHING_STEPS, TEACHING_ROWS, POSITIONS = 60, 16, 128
SEARCHING = 0.3  # of the conversations that it is taught
# A new model that copies what it has read takes a minute to teach: here it learns to search at all.
REWARD_FILE = "reward.py"
REWARD = '''
def compute_score(data_source, solution_str, ground_truth, extra_info):
    """1 where the first turn has found something."""
    return float("<information>Doc 1" in extra_info["turns"][0]["observation"])
'''
# Each message between marks of its own, an end behind each answer: nothing of it may be lost, or stand there twice.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '\\n' }}?{{ m.content }}!{% else %}"
    f"{{{{ m.content }}}}{END}"
    "{% endif %}{% endfor %}"
)
# By how much the reward must rise from the first steps to the last ones.
MARGINS, WINDOW = {LAKE: 0.15, SEARCH: 0.15}, 3


def words_of(agent: str, folder: Path, overrides: Sequence[str]) -> tuple[str, ...]:
    """The words of the run below `folder`, those of the user last."""
    of_all = [
        *tiny.learning(folder / "run", named="smoke", steps=LAST, workers=RANKS, log_prob_rows=256),
        *(f"trainer.save_freq={SAVE_AT}", "trainer.test_freq=-1", "trainer.val_before_train=False"),
        *("trainer.logger=[file]", "actor_rollout_ref.actor.optim.lr=2e-3", "data.train_batch_size=16"),
        *("agent.turn_timeout=60", "trainer.step_timeout=120", "actor_rollout_ref.nccl_timeout=90"),
        *("trainer.ray_wait_register_center_timeout=90", "trainer.max_rollout_drift=null"),  # a check looks at that
    ]
    if agent == LAKE:
        own = [
            *("agent.env=frozen_lake", f"agent.env_kwargs={{rows:{BOARD},terse:True}}", f"agent.max_turns={TURNS}"),
            *("agent.max_turn_tokens=3", "agent.episodes=1024", "agent.val_episodes=16"),
            *(tiny.place("actor_rollout_ref.model.path", folder / "model"), "data.max_prompt_length=16"),
            "data.max_response_length=48",
        ]
        return (*own, *of_all, *overrides)
    files = search.Files(folder / "model", folder / "corpus.jsonl", folder / "train.parquet", folder / "test.parquet")
    reward = tiny.place("custom_reward_function.path", folder / REWARD_FILE)
    return (*search.overrides(files, folder / "run"), *of_all, reward, "data.val_files=[]", *overrides)


def make_plan(agent: str, overrides: Sequence[str], dialect: str | None) -> Plan:
    """Raises ConfigErrors for keys that are none, and values that cannot be."""
    resolved = load([*words_of(agent, Path("smoke"), overrides)], dialect)
    return Plan(
        full=resolved.config,
        dialect=resolved.dialect,
        nodes=1,
        ranks_per_node=RANKS,
        overrides=tuple(overrides),
        kept={},
        cut=(),
        own_data=True,
        like=None,
        warnings=tuple(warning_lines(resolved.notes)),
    )


def write(agent: str, folder: Path, seed: int) -> None:
    """The model, and what it needs. It is taught what a conversation is, and not what is rewarded."""
    drawn = random.Random(seed)
    if agent == SEARCH:
        files = search.write_files(folder, seed)
        (folder / REWARD_FILE).write_text(REWARD)
        tokenizer = search.make_tokenizer()
        _teach(tokenizer, search.conversations(tokenizer, drawn, SEARCHING), files.model, seed)
        return
    tokenizer = lake.make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    _teach(tokenizer, games(tokenizer, drawn), folder / "model", seed)


def _teach(tokenizer: Any, taught: Iterator[tuple[list[int], list[bool]]], folder: Path, seed: int) -> None:
    import torch

    model = tiny.new_model(tokenizer, seed, POSITIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lake.TEACHING_RATE)
    for _ in range(TEACHING_STEPS):
        rows = [next(taught) for _ in range(TEACHING_ROWS)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([each + [0] * (width - len(each)) for each, _ in rows])
        said = [[token if own else -100 for token, own in zip(each, mask, strict=True)] for each, mask in rows]
        labels = torch.tensor([each + [-100] * (width - len(each)) for each in said])
        model(input_ids=ids, labels=labels).loss.backward()  # padding stands on the right, where nobody looks
        optimizer.step()
        optimizer.zero_grad()
    tiny.save(model, tokenizer, folder)


def games(tokenizer: Any, drawn: random.Random) -> Iterator[tuple[list[int], list[bool]]]:
    """Random play as tokens, and which of them the model would say: nothing of which way leads to the goal."""
    board = FrozenLake(rows=BOARD, terse=True)
    while True:
        messages = [{"role": "user", "content": board.reset(seed=0)[0]}]
        for _ in range(TURNS):
            letter = drawn.choice("LDRU")
            text, _, ended, _, _ = board.step(letter)
            messages += [{"role": "assistant", "content": letter}, {"role": "user", "content": text}]
            if ended:
                break
        ids: list[int] = []
        own: list[bool] = []
        for message in messages:
            text = tokenizer.apply_chat_template([message], tokenize=False)
            ids += tokenizer(text, add_special_tokens=False)["input_ids"]
            own += [message["role"] == "assistant"] * (len(ids) - len(own))
        yield ids, own
