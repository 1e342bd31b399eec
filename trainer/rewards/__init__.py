"""Reward functions: text in, a number out. Nothing here imports torch.

    build_scorer(config, read_source(config)) -> Scorer        score_all(responses, rows, scorer) -> Scores

`registry` chooses a scorer by a row's `data_source`; `custom` loads the user's own function.
"""

from trainer.rewards.custom import load_function, read_source
from trainer.rewards.registry import known_data_sources, score_by_data_source, scorer_for
from trainer.rewards.score import Scores, build_scorer, score_all
from trainer.rewards.scorer import Scorer

__all__ = [
    "Scorer",
    "Scores",
    "build_scorer",
    "known_data_sources",
    "load_function",
    "read_source",
    "score_all",
    "score_by_data_source",
    "scorer_for",
]
