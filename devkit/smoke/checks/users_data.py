"""The user's data files, against the limits of the full run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.made_up_responses import truth_text
from trainer.config.schema import DataConfig

FEWEST, MOSTLY, SELDOM = 8, 0.9, 0.2  # rows, and shares of them, that show what is no chance
MUCH = 0.05  # of the prompts: fewer are left out, or cut, of most data


@dataclass(frozen=True)
class Sampled:
    """A row of a data file."""

    label: str
    prompt: Any
    ground_truth: Any
    prompt_tokens: int = 0
    truth_tokens: int = 0  # 0: nothing that one would say
    published: str = ""  # an answer or a solution in its extra_info
    near: tuple[Any, Any] | None = None  # the ground truths of the rows before and after it


def data_rows(train: Sequence[Sampled], validation: Sequence[Sampled]) -> Outcome:
    """Prompts that ask something, ground truths that say something, and none of the training prompts in validation.

    Only an empty prompt can be meant by nobody; the rest is told as skipped.
    """
    rows = [*train, *validation]
    if empty := [row for row in rows if not _asks(row.prompt)]:
        return Outcome(False, f"the prompt of {_named(empty, rows)} is empty")
    if shifted := _shifted(rows):
        return Outcome(False, shifted)
    told = []
    if given_away := _given_away(rows):
        told.append(given_away)
    if silent := [row for row in rows if _nothing(row.ground_truth)]:
        told.append(f"the ground truth of {_named(silent, rows)} is empty")
    if odd := [row for row in rows if not _has_a_user(row.prompt)]:
        told.append(f"{_named(odd, rows)} has neither a user's nor a system message")
    known = {_key(row.prompt) for row in train}
    if both := [row for row in validation if _key(row.prompt) in known]:
        told.append(f"the prompt of {_named(both, validation)} is also among the training prompts")
    if told:
        return Outcome(None, "; ".join(told))
    return Outcome(True, f"{len(train):,} rows for training and {len(validation):,} for validation looked at")


def _shifted(rows: Sequence[Sampled]) -> str:
    """Ground truths that stand in the published answer of a row beside theirs, and seldom in their own row's."""
    known = [row for row in rows if row.near and row.published and truth_text(row.ground_truth)]
    own = [row for row in known if _holds(row.published, row.ground_truth)]
    if len(known) < FEWEST or len(own) > SELDOM * len(known):
        return ""
    for place, side in ((0, "before"), (1, "after")):
        there = [row for row in known if row.near and _holds(row.published, row.near[place])]
        if len(there) >= MOSTLY * len(known):
            said = (
                f"{there[0].label} has another row's ground truth: its published answer holds that of the row {side} it"
            )
            return f"{said} ({len(there):,} of {len(known):,} rows)"
    return ""


def _given_away(rows: Sequence[Sampled]) -> str:
    """Ground truths that stand in their prompts, where those of the next row do not."""
    known = [row for row in rows if row.near and truth_text(row.ground_truth)]
    own = [row for row in known if _holds(_text(row.prompt), row.ground_truth)]
    others = [row for row in known if row.near and _holds(_text(row.prompt), row.near[1])]
    if len(known) < FEWEST or len(own) < MOSTLY * len(known) or len(others) > SELDOM * len(known):
        return ""
    return (
        f"the prompt of {_named(own, known)} holds its ground truth: right where a text is to be read, else given away"
    )


def _holds(text: str, truth: Any) -> bool:
    """Whether a ground truth stands in a text, as a word of its own; thousands may have separators.

    >>> _holds("so 1,200 + 1", "1200"), _holds("12000", "1200"), _holds("", "1")
    (True, False, False)
    """
    said = (truth_text(truth) or "").replace(",", "")
    return bool(said) and re.search(rf"(?<!\w){re.escape(said)}(?!\w)", text.replace(",", "")) is not None


def _text(prompt: Any) -> str:
    return (
        prompt if isinstance(prompt, str) else "\n".join(str(each.get("content") or "") for each in _messages(prompt))
    )


def data_limits(rows: Sequence[Sampled], data: DataConfig) -> Outcome:
    """Prompts and ground truths fit the full run's limits, in tokens of its own model."""
    limit, longest = data.max_prompt_length, max(rows, key=lambda row: row.prompt_tokens)
    over = [row for row in rows if row.prompt_tokens > limit]
    long_ = f"{len(over):,} of {len(rows):,} prompts have more than data.max_prompt_length={limit} tokens"
    long_ += f" (the longest {longest.prompt_tokens:,}: {longest.label})"
    if over and not data.filter_overlong_prompts and data.truncation == "error":
        way_out = "data.filter_overlong_prompts=True drops them, data.truncation=left shortens them"
        return Outcome(False, f"{long_}: the full run ends there; {way_out}")
    if len(over) == len(rows) and data.filter_overlong_prompts:
        return Outcome(False, f"{long_}: data.filter_overlong_prompts drops all of them")
    told = []
    fate = "are left out" if data.filter_overlong_prompts else f"are cut (data.truncation={data.truncation})"
    if len(over) > MUCH * len(rows):
        told.append(f"{long_}: they {fate}")
    if unsayable := [row for row in rows if row.truth_tokens > data.max_response_length]:
        said = f"the ground truth of {_named(unsayable, rows)} has {unsayable[0].truth_tokens:,} tokens"
        told.append(
            f"{said}, more than data.max_response_length={data.max_response_length}: no response can contain it"
        )
    if told:
        return Outcome(None, "; ".join(told))
    few = f"; {len(over):,} longer ones {fate}" if over else ""
    within = f"up to {min(longest.prompt_tokens, limit):,} tokens, within data.max_prompt_length={limit}"
    return Outcome(True, f"{len(rows):,} prompts of {within}{few}")


def _named(rows: Sequence[Sampled], of: Sequence[Sampled]) -> str:
    return rows[0].label + (f" ({len(rows):,} of {len(of):,} rows)" if len(rows) > 1 else "")


def _key(prompt: Any) -> str:
    return json.dumps(prompt, sort_keys=True, default=str)


def _messages(prompt: Any) -> list[Mapping[str, Any]]:
    return [each for each in prompt if isinstance(each, Mapping)] if isinstance(prompt, list) else []


def _asks(prompt: Any) -> bool:
    """Whether anything stands in it."""
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return any(str(message.get("content") or "").strip() for message in _messages(prompt))


def _has_a_user(prompt: Any) -> bool:
    return isinstance(prompt, str) or any(each.get("role") in ("user", "system") for each in _messages(prompt))


def _nothing(truth: Any) -> bool:
    """Empty, or a list or mapping of nothing but empty things."""
    if isinstance(truth, Mapping):
        truth = list(truth.values())
    if isinstance(truth, (list, tuple)):
        return all(map(_nothing, truth))
    return truth is None or (isinstance(truth, str) and truth_text(truth) is None)
