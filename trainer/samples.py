"""What was asked, answered and earned, a line of JSON per sample: `trainer.rollout_data_dir`, `validation_data_dir`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer import own_files
from trainer.agent.episode import Episode
from trainer.agent.loop import seed_in
from trainer.agent.row_options import ROW
from trainer.agent.tools.rows import OPTIONS
from trainer.records import Rollout, Scores
from trainer.tracking import written

Decode = Callable[[Sequence[int]], str]  # token ids to text


def dump(
    folder: str | None,
    step: int,
    samples: Sequence[tuple[Rollout, Scores]],
    decode: Decode,
    rewards_BT: Tensor | None = None,
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Writes `folder`/STEP.jsonl. `reward` is what was trained on: the score, less a KL penalty where there is one."""
    if folder is None:
        return
    rows = [
        {"step": step, **sample(rollout, scores, i, decode)} for rollout, scores in samples for i in range(len(rollout))
    ]
    if environment is not None:
        rows = [row | {"environment": environment} for row in rows]
    if rewards_BT is not None:
        rows = [row | {"reward": reward} for row, reward in zip(rows, rewards_BT.sum(-1).tolist(), strict=True)]
    path = Path(folder).expanduser() / f"{step}.jsonl"
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
        own_files.write(path, "\n".join(lines) + "\n")


def sample(rollout: Rollout, scores: Scores, i: int, decode: Decode) -> Mapping[str, Any]:
    """One sequence of a rollout, for people; special tokens are shown."""
    prompts, row = rollout.prompts, rollout.prompts.rows[i]
    extras = {name: float(values[i]) for name, values in scores.extras.items()}
    own = {
        "row": row.label,
        "data_source": row.data_source,
        "ground_truth": row.ground_truth,
        "prompt": decode(prompts.ids_BP[i][prompts.mask_BP[i].bool()].tolist()),
        "response": decode(rollout.response_BT[i][rollout.context_BT[i].bool()].tolist()),
        "score": float(scores.score_B[i]),
    }
    told = {name: value for name, value in extras.items() if name not in own and not math.isnan(value)}  # NaN: has none
    return {
        **own,
        **told,
        **({} if rollout.episodes is None else conversation(rollout, rollout.episodes[i], i, decode)),
    }


def conversation(rollout: Rollout, episode: Episode, i: int, decode: Decode) -> Mapping[str, Any]:
    """The turns of a sequence: what was sampled, and what followed upon it; `devkit agent show` reads them.

    `action` and `observation` are what the environment was given and gave, which `devkit agent replay` needs.
    """
    ids, logp = rollout.response_BT[i].tolist(), rollout.logp_BT[i].tolist()
    starts = [turn.start for turn in episode.turns[1:]]
    ends = [*starts, int(rollout.context_BT[i].sum())]
    turns = [
        {
            "sampled": decode(ids[turn.start : turn.end]),
            "sampled_ids": ids[turn.start : turn.end],
            "logp": [round(each, 6) for each in logp[turn.start : turn.end]],
            "answered": decode(ids[turn.end : end]),
            "answered_ids": ids[turn.end : end],
            "reward": turn.reward,
            "seconds": turn.seconds,
            "action": turn.action,
            "observation": turn.observation,
        }
        for turn, end in zip(episode.turns, ends, strict=True)
    ]
    seed = seed_in(rollout.prompts.rows[i])
    sample = int(rollout.prompts.sample_B[i])
    known = {"seed": seed, "ended": episode.ended, "seconds": episode.seconds, "observation": episode.observation}
    asked = {name: value for name, value in rollout.prompts.rows[i].extra_info.items() if name in (*OPTIONS, ROW)}
    return {"sample": sample, **known, **({"asked": asked} if asked else {}), "turns": turns}
