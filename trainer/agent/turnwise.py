"""Conversations as rows of single turns, each with a prompt of its own: ROLL's step-wise manager.

While it is played, such a conversation is one row, like any other: between two turns stands all of the next prompt.

    played   prompt1 | A A  prompt2  B B B      mask 1 1 0 0 0 1 1 1
    rows     prompt1 | A A
             prompt2 | B B B
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from trainer.agent.episode import Episode
from trainer.agent.laying import Laid, left_padded, rollout_of
from trainer.errors import EpisodeError
from trainer.records import Rollout
from trainer.rows import take

_PAD = 0  # nobody looks at it: its mask is 0


def rows_of_turns(played: Rollout, even: int) -> Rollout:
    """A row for each turn; the last ones are left out where their number is not a multiple of `even`.

    Raises EpisodeError where that leaves none.
    """
    rows = [(row, *each) for row in range(len(played)) for each in _turns(played, row)]
    rows = rows[: len(rows) // even * even]
    if not rows:
        raise EpisodeError(
            f"{len(played)} conversations have fewer than {even} turns, of which each copy of the model must have one",
            hint="raise data.train_batch_size, or agent.min_kept",
        )
    of = torch.tensor([row for row, *_ in rows])
    ids_BP, mask_BP = left_padded([prompt for _, prompt, _, _ in rows], _PAD)
    turn_B = torch.tensor([episode.step for _, _, _, episode in rows])
    prompts = replace(take(played.prompts, of), ids_BP=ids_BP, mask_BP=mask_BP, turn_B=turn_B)
    return rollout_of(prompts, [laid for _, _, laid, _ in rows], [episode for *_, episode in rows], _PAD)


def _turns(played: Rollout, row: int) -> Iterator[tuple[list[int], Laid, Episode]]:
    """The prompt of each turn, what was sampled upon it, and what is known of it."""
    assert played.episodes is not None
    episode, prompts = played.episodes[row], played.prompts
    ids, logp = played.response_BT[row].tolist(), played.logp_BT[row].tolist()
    prompt = prompts.ids_BP[row][prompts.mask_BP[row].bool()].tolist()
    rewards = tuple(turn.reward for turn in episode.turns)
    for number, turn in enumerate(episode.turns):
        own = (replace(turn, start=0, end=turn.tokens),)
        laid = Laid(ids[turn.start : turn.end], [1] * turn.tokens, logp[turn.start : turn.end], own)
        yield prompt, laid, replace(episode, turns=own, step=number, rewards=rewards)
        after = episode.turns[number + 1].start if number + 1 < len(episode.turns) else turn.end
        prompt = ids[turn.end : after]
