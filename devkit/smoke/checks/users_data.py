"""The user's data files, against the limits of the full run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.made_up_responses import shown, truth_text
from devkit.smoke.row_texts import holds, holds_messages, in_order, messages_of, text_of
from trainer.config.schema import DataConfig

FEWEST, MOSTLY, SELDOM = 8, 0.9, 0.2  # rows, and shares of them, that show what is no chance
LONG = 20  # rows: so many are in order by chance with a probability of 1e-18
WHOLE_FLOAT = re.compile(r"-?\d+\.0+")
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
    file: str = ""


def data_rows(train: Sequence[Sampled], validation: Sequence[Sampled]) -> Outcome:
    """Prompts that ask something, ground truths that say something, and none of the training prompts in validation.

    What nobody can mean is a failure; the rest is told as skipped.
    """
    rows = [*train, *validation]
    if empty := [row for row in rows if not _asks(row.prompt)]:
        return Outcome(False, f"the prompt of {_named(empty, rows)} is empty")
    if encoded := [row for row in rows if holds_messages(row.prompt)]:
        said = f"the prompt of {_named(encoded, rows)} is a text that holds a list of messages"
        return Outcome(False, f"{said}: no chat template is applied to a text; store the list itself")
    files = _by_file(rows)
    if alike := next(filter(None, map(_alike, files)), ""):
        return Outcome(False, alike)
    if shifted := _shifted(rows):
        return Outcome(False, shifted)
    orders = [found for found in map(_sorted_alone, files) if found]
    if proven := [order.words for order in orders if order.proven]:
        return Outcome(False, proven[0])
    told = [order.words for order in orders]
    if given_away := _given_away(rows):
        told.append(given_away)
    told += filter(None, map(_from_floats, files))
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


def _by_file(rows: Sequence[Sampled]) -> list[list[Sampled]]:
    files: dict[str, list[Sampled]] = {}
    for row in rows:
        files.setdefault(row.file, []).append(row)
    return list(files.values())


def _alike(rows: Sequence[Sampled]) -> str:
    """Nearly all prompts of a file are one text, and their ground truths are several."""
    prompts = [_key(row.prompt) for row in rows]
    often, count = Counter(prompts).most_common(1)[0]
    same = [row for row, prompt in zip(rows, prompts, strict=True) if prompt == often]
    truths = {_key(row.ground_truth) for row in same}
    if count < max(FEWEST, MOSTLY * len(rows)) or len(truths) < 2:
        return ""
    said = f"{count:,} of {len(rows):,} rows have the same prompt {shown(text_of(same[0].prompt))}"
    return f"{said} and {len(truths):,} different ground truths: is the question left out? Look at {same[0].label}"


@dataclass(frozen=True)
class _Order:
    """Ground truths in an order that their prompts don't have."""

    words: str
    proven: bool  # published answers show that they are those of other rows


def _sorted_alone(rows: Sequence[Sampled]) -> _Order | None:
    """Ground truths of a file that rise or fall all the way, unless prompts or published answers go with them."""
    truths = [truth_text(row.ground_truth) for row in rows]
    texts = [text for text in truths if text]
    if len(texts) < len(truths) or len(texts) < LONG or len(set(texts)) < FEWEST or not in_order(texts):
        return None
    if in_order([text_of(row.prompt) for row in rows]) or _given_away(rows):
        return None
    known = [row for row in rows if row.published]
    own = [row for row in known if holds(row.published, row.ground_truth)]
    said = f"the ground truths from {rows[0].label} on are sorted, and the prompts are not"
    if len(known) >= FEWEST and len(own) <= SELDOM * len(known):
        seldom = f"{len(known) - len(own):,} of {len(known):,} published answers do not hold their row's ground truth"
        return _Order(f"{said}: {seldom}; were they sorted on their own?", True)
    if len(known) >= FEWEST and len(own) >= MOSTLY * len(known):
        return None
    return _Order(f"{said}: right where the whole rows are; were the ground truths sorted on their own?", False)


def _from_floats(rows: Sequence[Sampled]) -> str:
    """Whole numbers that are all written as 72.0."""
    truths = [truth_text(row.ground_truth) for row in rows]
    if len(rows) < FEWEST or not all(text and WHOLE_FLOAT.fullmatch(text) for text in truths):
        return ""
    said = f"the ground truth of {_named(rows, rows)} is {truths[0]}"
    return f"{said}, as from a column of floats: compared as a text, {str(truths[0]).partition('.')[0]} is wrong"


def _shifted(rows: Sequence[Sampled]) -> str:
    """Ground truths that stand in the published answer of a row beside theirs, and seldom in their own row's."""
    known = [row for row in rows if row.near and row.published and truth_text(row.ground_truth)]
    own = [row for row in known if holds(row.published, row.ground_truth)]
    if len(known) < FEWEST or len(own) > SELDOM * len(known):
        return ""
    for place, side in ((0, "before"), (1, "after")):
        there = [row for row in known if row.near and holds(row.published, row.near[place])]
        if len(there) >= MOSTLY * len(known):
            said = (
                f"{there[0].label} has another row's ground truth: its published answer holds that of the row {side} it"
            )
            return f"{said} ({len(there):,} of {len(known):,} rows)"
    return ""


def _given_away(rows: Sequence[Sampled]) -> str:
    """Ground truths that stand in their prompts, where those of the next row do not."""
    known = [row for row in rows if row.near and truth_text(row.ground_truth)]
    own = [row for row in known if holds(text_of(row.prompt), row.ground_truth)]
    others = [row for row in known if row.near and holds(text_of(row.prompt), row.near[1])]
    if len(known) < FEWEST or len(own) < MOSTLY * len(known) or len(others) > SELDOM * len(known):
        return ""
    return (
        f"the prompt of {_named(own, known)} holds its ground truth: right where a text is to be read, else given away"
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


def _asks(prompt: Any) -> bool:
    """Whether anything stands in it."""
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return any(str(message.get("content") or "").strip() for message in messages_of(prompt))


def _has_a_user(prompt: Any) -> bool:
    return isinstance(prompt, str) or any(each.get("role") in ("user", "system") for each in messages_of(prompt))


def _nothing(truth: Any) -> bool:
    """Empty, or a list or mapping of nothing but empty things."""
    if isinstance(truth, Mapping):
        truth = list(truth.values())
    if isinstance(truth, (list, tuple)):
        return all(map(_nothing, truth))
    return truth is None or (isinstance(truth, str) and truth_text(truth) is None)
