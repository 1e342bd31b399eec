"""Which scorer belongs to which `data_source`: the names that verl and Search-R1 write into their data."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.errors import RewardError
from trainer.rewards import exact_match, gsm8k, math
from trainer.rewards.scorer import Scorer
from trainer.rewards.search_r1 import EXACT, TURNS, SearchScorer

if TYPE_CHECKING:
    from trainer.config.agent_schema import SearchRewardConfig

_QA = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")

_QA_SOURCES = frozenset({*_QA, *(f"searchR1_{name}" for name in _QA)})

_SCORERS: dict[str, Scorer] = {
    "openai/gsm8k": gsm8k.compute_score,
    "lighteval/MATH": math.compute_score,
    "DigitalLearningGmbH/MATH-lighteval": math.compute_score,
    "HuggingFaceH4/MATH-500": math.compute_score,
    "EleutherAI/hendrycks_math": math.compute_score,
    **dict.fromkeys(_QA, exact_match.compute_score),
    **dict.fromkeys((f"searchR1_{name}" for name in _QA), exact_match.compute_score),
}


def known_data_sources() -> list[str]:
    return list(_SCORERS)


def scorer_for(data_source: str) -> Scorer:
    """Raises RewardError for a `data_source` that none of ours scores."""
    if data_source in _SCORERS:
        return _SCORERS[data_source]
    near = difflib.get_close_matches(data_source, _SCORERS, n=1)
    known = f"did you mean {near[0]}?" if near else f"known: {', '.join(n for n in _SCORERS if 'searchR1' not in n)};"
    raise RewardError(
        f"no reward function for data_source {data_source!r}",
        hint=f"{known} or give your own: custom_reward_function.path=FILE.py",
    )


def score_by_data_source(
    *, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]
) -> float | Mapping[str, Any]:
    """The default scorer: each row by its own `data_source`, so that one batch may mix them."""
    scorer = scorer_for(data_source)
    if TURNS in extra_info and data_source not in _QA_SOURCES:  # an answer that a tool gave is not the model's
        solution_str = "\n".join(turn["action"] for turn in extra_info[TURNS])
    return scorer(data_source=data_source, solution_str=solution_str, ground_truth=ground_truth, extra_info=extra_info)


def searching(config: SearchRewardConfig) -> Scorer:
    """As `score_by_data_source`, with `config` for questions and answers; the same where it asks for nothing."""
    of_questions = SearchScorer(
        config.structure_format_score, config.final_format_score, config.retrieval_score, config.match
    )
    if of_questions == SearchScorer(matches=EXACT):
        return score_by_data_source

    def score(
        *, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]
    ) -> float | Mapping[str, Any]:
        scorer: Scorer = of_questions if data_source in _QA_SOURCES else score_by_data_source
        return scorer(
            data_source=data_source, solution_str=solution_str, ground_truth=ground_truth, extra_info=extra_info
        )

    return score
