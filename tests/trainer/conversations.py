"""Conversations for tests: made-up rows, an engine that says what it is told, environments that behave as they like."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from trainer.agent.episode import TERMINATED, Episode
from trainer.agent.laying import Laid, Said, lay, left_padded, rollout_of
from trainer.interfaces import Sampling
from trainer.records import Prompts, Rollout, Row
from trainer.rollout.answers import assemble
from trainer.rollout.server import Answer

SAMPLING = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, do_sample=True, ignore_eos=False, seed=3)
END = 1  # of the tokenizer below

IDS = st.integers(3, 290)
TURN = st.tuples(
    st.lists(IDS, min_size=1, max_size=4), st.lists(IDS, min_size=1, max_size=4), st.floats(-2, 2, width=32)
)
ROWS = st.lists(
    st.tuples(st.lists(IDS, min_size=1, max_size=5), st.lists(TURN, min_size=1, max_size=4)), min_size=1, max_size=4
)
Turns = Sequence[tuple[Sequence[int], Sequence[int], float]]  # sampled, answered, reward


def said_of(turns: Turns) -> list[Said]:
    """As the loop has them: nothing follows upon the last one. Log-probs tell their tokens."""
    last = len(turns) - 1
    return [
        Said(sampled, [-0.01 * token for token in sampled], reward, 0.0, answered if i < last else ())
        for i, (sampled, answered, reward) in enumerate(turns)
    ]


def conversations(rows: Sequence[tuple[Sequence[int], Turns]]) -> Rollout:
    """Rows of a prompt and turns."""
    laid = [lay(said_of(turns)) for _, turns in rows]
    return rollout_of(
        prompts_of([prompt for prompt, _ in rows]), laid, [Episode(each.turns, TERMINATED) for each in laid], pad_id=0
    )


def prompts_of(ids: Sequence[Sequence[int]], uids: Sequence[int] | None = None, seeds: bool = False) -> Prompts:
    ids_BP, mask_BP = left_padded(ids, 0)
    rows = tuple(Row(i, "lake", "lake", None, {"seed": 100 + i}) for i in range(len(ids)))
    uid_B = torch.tensor(list(uids) if uids is not None else list(range(len(ids))), dtype=torch.int64)
    return Prompts(ids_BP, mask_BP, uid_B, torch.zeros(len(ids), dtype=torch.int64), rows)


def plain(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Rollout, Rollout]:
    """Rows of one turn: as a run without environments has them, and laid as conversations."""
    prompts = prompts_of([prompt for prompt, _ in rows])
    answers = [Answer(i, ids, [-0.01 * token for token in ids]) for i, (_, ids) in enumerate(rows)]
    laid: list[Laid] = [lay(said_of([(ids, (), 1.0)])) for _, ids in rows]
    return assemble(prompts, answers, 0), rollout_of(prompts, laid, [Episode(e.turns, TERMINATED) for e in laid], 0)


class Characters:
    """A tokenizer: a character is a token, `|` ends a turn. As transformers' in what speech asks of one."""

    chat_template: str | None = None
    pad_token_id, eos_token_id = 0, END

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [END if char == "|" else ord(char) + 2 for char in text]}

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        ends = "" if skip_special_tokens else "|"
        return "".join(ends if i == END else chr(i - 2) if i > 1 else "" for i in ids)


Say = Callable[[str, int, int, int], str]  # context, uid, sample, turn -> what is said, without its end


class Scripted:
    """An engine that says what `say` tells it; `calls` are the rows of each call."""

    version = 0

    def __init__(self, say: Say, dies_in: Sequence[int] = ()) -> None:
        self.say, self.dies_in = say, set(dies_in)
        self.calls: list[list[tuple[int, int, int]]] = []
        self.contexts: list[list[int]] = []
        self.tokenizer = Characters()

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        assert prompts.turn_B is not None and prompts.room_B is not None
        answers = []
        rows = list(zip(*(x.tolist() for x in (prompts.uid_B, prompts.sample_B, prompts.turn_B)), strict=True))
        for i, row in enumerate(rows):
            context = prompts.ids_BP[i][prompts.mask_BP[i].bool()].tolist()
            self.contexts.append(context)
            ids = self.tokenizer(self.say(self.tokenizer.decode(context), *row) + "|")["input_ids"]
            most = min(sampling.max_new_tokens, int(prompts.room_B[i]))
            if len(self.calls) not in self.dies_in:
                answers.append(Answer(i, ids[:most], [-0.5] * len(ids[:most])))
        self.calls.append(rows)
        return assemble(prompts, answers, 0)

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None: ...

    def revive(self, tensors: Iterable[tuple[str, Tensor]]) -> int:
        return 0

    def checksums(self) -> dict[str, str]:
        return {}

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


def dice(*key: object) -> int:
    """A number that depends on `key` alone."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little")
