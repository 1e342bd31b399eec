"""What a step with a retriever reports under Search-R1's names, so that its dashboards keep working.

`verl/trainer/ppo/ray_trainer.py` of PeterGriffinJin/Search-R1, from the counts of its `run_llm_loop`: an action is a
generation; a valid one has a whole tag, also where a search of the last turn is not carried out.
"""

from __future__ import annotations

import torch

from trainer.agent.episode import Episode
from trainer.env.search import FINISHED, SEARCHES, VALID
from trainer.records import Metrics, Rollout


def search_metrics(rollout: Rollout) -> Metrics:
    """`env/*` and `state_tokens/*`; nothing of a run without a retriever.

    `state_tokens/total` counts the model's own tokens, and `coverage` is their share, as there.
    """
    episodes = [each for each in rollout.episodes or () if {VALID, SEARCHES, FINISHED} <= each.numbers.keys()]
    if not episodes:
        return {}
    actions = torch.tensor([len(each.turns) for each in episodes], dtype=torch.float64)
    valid, searches, finished = (_counted(episodes, name) for name in (VALID, SEARCHES, FINISHED))
    own = float(rollout.mask_BT.sum())
    return {
        "env/number_of_actions/mean": float(actions.mean()),
        "env/number_of_actions/max": float(actions.max()),
        "env/number_of_actions/min": float(actions.min()),
        "env/finish_ratio": float(finished.mean()),
        "env/number_of_valid_action": float(valid.mean()),
        "env/ratio_of_valid_action": float((valid / actions).mean()),
        "env/number_of_valid_search": float(searches.mean()),
        "state_tokens/total": own,
        "state_tokens/coverage": own / float(rollout.context_BT.sum()),
    }


def _counted(episodes: list[Episode], name: str) -> torch.Tensor:
    return torch.tensor([each.numbers[name] for each in episodes], dtype=torch.float64)
