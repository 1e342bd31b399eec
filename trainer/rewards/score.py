"""Scores a batch of responses, and names the row when a reward function fails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainer.config.choices import LARGEST_FLOAT
from trainer.errors import RewardError
from trainer.rewards import blame
from trainer.rewards.custom import load_function
from trainer.rewards.registry import score_by_data_source, searching
from trainer.rewards.scorer import Scorer
from trainer.rewards.search_r1 import TURNS

if TYPE_CHECKING:  # trainer.records imports torch
    from trainer.agent.episode import Episode
    from trainer.config.agent_schema import SearchRewardConfig
    from trainer.config.schema import RewardFunctionConfig
    from trainer.records import Row


@dataclass(frozen=True)
class Scores:
    """The scores of B responses, and what else their reward functions gave.

    >>> Scores([1.0, 0.0], {"format": [1.0, 1.0]}).extras["format"]
    [1.0, 1.0]
    """

    scores: list[float]  # B, finite
    extras: dict[str, list[float]]  # B each; NaN where a response's reward function gave no such number


def build_scorer(
    config: RewardFunctionConfig, source_text: str | None, search: SearchRewardConfig | None = None
) -> Scorer:
    """The user's function if `source_text` (see `read_source`) is there, else ours, by each row's `data_source`.

    `search`: how questions and answers are scored, if not by an answer's equality alone.

    Raises what `load_function` raises.
    """
    if source_text is None:
        return score_by_data_source if search is None else searching(search)
    return load_function(source_text, config.path or "<custom reward>", config.name)


def score_all(
    responses: Sequence[str], rows: Sequence[Row], scorer: Scorer, episodes: Sequence[Episode] | None = None
) -> Scores:
    """Scores `responses[i]`, decoded without special tokens, against `rows[i]`.

    Of conversations, `extra_info["turns"]` has each turn's `action` and `observation`, so that a scorer can tell what
    the model said from what it read; beside it verl's `num_turns`, and `tool_rewards` of each turn that was answered.

    Raises RewardError, naming the row, if the scorer raises or gives something that is not a finite number.
    """
    if episodes is not None:
        rows = [_with_turns(row, episode) for row, episode in zip(rows, episodes, strict=True)]
    results = [_score_one(response, row, scorer) for response, row in zip(responses, rows, strict=True)]
    names = dict.fromkeys(name for _, extras in results for name in extras)
    extras = {name: [extras.get(name, math.nan) for _, extras in results] for name in names}
    return Scores([score for score, _ in results], extras)


def _with_turns(row: Row, episode: Episode) -> Row:
    turns = [{"action": turn.action, "observation": turn.observation} for turn in episode.turns]
    answered = [turn for turn, after in pairwise(episode.turns) if after.start > turn.end]
    known = {"num_turns": 1 + len(turns) + len(answered), "tool_rewards": [turn.reward for turn in answered]}  # verl's
    return replace(row, extra_info={**row.extra_info, **known, TURNS: turns})


def _score_one(response: str, row: Row, scorer: Scorer) -> tuple[float, dict[str, float]]:
    try:
        result = scorer(
            data_source=row.data_source,
            solution_str=response,
            ground_truth=row.ground_truth,
            extra_info=dict(row.extra_info),  # a copy: the samples of one prompt share the row
        )
    except RewardError as exc:
        raise RewardError(f"{row.label}: {exc.message}", hint=exc.hint) from exc
    except Exception as exc:  # the user's code may raise anything; it is reported, with its cause
        raise RewardError(
            f"the reward of {row.label} (data_source {row.data_source!r}) raised "
            f"{blame.what(exc)} at {blame.place(exc)}",
            hint="call the function with that row and the response to reproduce it",
        ) from exc
    return _checked(result, row)


def _checked(result: Any, row: Row) -> tuple[float, dict[str, float]]:
    """The score, and the other numbers of a mapping; what is no number there is not for us."""
    extras: dict[str, float] = {}
    score = result
    if isinstance(result, Mapping):
        if "score" not in result:
            raise _not_a_number(row, f'a mapping without "score" (keys: {", ".join(map(str, result))})')
        score = result["score"]
        for name, value in result.items():
            number = _number(value) if name != "score" else None
            if number is not None and not (math.isnan(number) or _fits(number)):
                raise _not_a_number(row, _shown(value), f"{name} of the reward")
            extras |= {} if number is None else {str(name): number}
    number = _number(score)
    if number is None or not _fits(number):
        raise _not_a_number(row, _shown(score))
    return number, extras


def _fits(number: float) -> bool:
    """Whether it is finite in fp32, in which it goes on."""
    return abs(number) <= LARGEST_FLOAT


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        text = "of thousands of digits"
    return f"{type(value).__name__} {text:.80}"


def _number(value: Any) -> float | None:
    """`value` as a float: any kind of number, numpy's and 0-dimensional tensors included, but no text."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond any float
        return math.inf
    except (TypeError, ValueError):
        return None


def _not_a_number(row: Row, what: str, which: str = "the reward") -> RewardError:
    return RewardError(
        f"{which} of {row.label} (data_source {row.data_source!r}) is not a finite fp32 number: {what}",
        hint='a reward function returns a number, or a dict with the number under "score"',
    )
