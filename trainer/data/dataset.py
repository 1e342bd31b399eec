"""Prompts from parquet files in verl's schema, tokenised once, when they are loaded.

Loading reads everything and so finds every error before the first GPU second is spent. Kept in memory: the token ids,
4 bytes each, and the tables without their prompts. `Row`s are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from trainer.config.schema import DataConfig
from trainer.data.parquet import Part, read_parts
from trainer.errors import ConfigError, DataError
from trainer.records import Row

if TYPE_CHECKING:  # a second of imports that whoever loaded the tokenizer has paid
    from transformers import PreTrainedTokenizerBase

TRUNCATIONS = ("error", "left", "right", "middle")

_CHUNK = 1000  # prompts tokenised at once; bounds the memory for their text

Ids = NDArray[np.int32]
Tools = Callable[[Mapping[str, Any], str], Sequence[Mapping[str, Any]]]  # of extra_info and a row's label: schemas


@dataclass(frozen=True)
class Example:
    """One tokenised prompt and the row it came from."""

    ids: list[int]
    row: Row


class PromptDataset:
    """The prompts of some files, in file order. `dropped`: how many were left out as too long."""

    def __init__(self, parts: Sequence[Part], places: Sequence[tuple[int, int]], ids: Sequence[Ids], dropped: int):
        self._parts = parts
        self._places = np.asarray(places, dtype=np.int64).reshape(-1, 2)  # part, row in it
        self._ids = np.concatenate(ids)
        self._ends = np.cumsum([len(one) for one in ids])
        self.dropped = dropped

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._ends[index - 1] if index else 0
        part, row = self._places[index].tolist()
        return Example(self._ids[start : self._ends[index]].tolist(), self._parts[part].row(row))

    @property
    def data_sources(self) -> list[str]:
        """Those of all files, each once: to find out early that one has no reward function."""
        return list(dict.fromkeys(name for part in self._parts for name in part.data_sources()))


def load_prompts(
    files: Sequence[str],
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_samples: int = -1,
    seed: int = 0,
    tools: Tools | None = None,
    whole: bool = False,
) -> PromptDataset:
    """Reads, subsamples, tokenises, then drops or truncates what is longer than `config.max_prompt_length`.

    `max_samples` (-1: all) takes a random subset with `config.shuffle`, seeded by `config.seed` or, where that is
    null, by `seed`; else the first rows. As in verl, the subset is taken before too long prompts are dropped.

    A chat prompt goes through the tokenizer's chat template; without one, the contents are joined by newlines. A
    prompt column of plain strings is taken as it is. No special tokens are added beyond the template's own. `tools`
    gives the tools that a row's prompt shows. With `whole`, `extra_info` has what `row_options.whole_row` makes of the
    row, prompt included.

    Raises DataError for a file, column, row or prompt that can't be used; ConfigError for a wrong `config.truncation`.
    """
    if config.truncation not in TRUNCATIONS:
        raise ConfigError(f"data.truncation={config.truncation}", hint=f"one of: {', '.join(TRUNCATIONS)}")
    parts = read_parts(files, config)
    places = [(number, index) for number, part in enumerate(parts) for index in range(len(part))]
    if 0 <= max_samples < len(places):
        places = _subset(places, max_samples, config, seed)
    kept_places, kept_ids, shortest = [], [], None
    for start in range(0, len(places), _CHUNK):
        chunk = places[start : start + _CHUNK]
        for place, ids in zip(chunk, _tokenise(parts, chunk, config.prompt_key, tokenizer, tools), strict=True):
            shortest = len(ids) if shortest is None else min(shortest, len(ids))
            fitted = _fit(ids, parts[place[0]], place[1], config)
            if fitted is not None:
                kept_places.append(place)
                kept_ids.append(np.asarray(fitted, dtype=np.int32))
    if not kept_ids:
        raise _nothing_left(files, len(places), shortest, config)
    for part in parts:
        if whole:
            part.whole_key = config.prompt_key
        else:
            part.forget(config.prompt_key)
    return PromptDataset(parts, kept_places, kept_ids, dropped=len(places) - len(kept_ids))


def _subset(places: list[tuple[int, int]], size: int, config: DataConfig, seed: int) -> list[tuple[int, int]]:
    if not config.shuffle:
        return places[:size]
    random = np.random.default_rng((config.seed if config.seed is not None else seed) % 2**64)
    return [places[i] for i in np.sort(random.choice(len(places), size, replace=False))]


def _tokenise(
    parts: Sequence[Part],
    places: Sequence[tuple[int, int]],
    key: str,
    tokenizer: PreTrainedTokenizerBase,
    tools: Tools | None,
) -> list[list[int]]:
    texts = []
    for part, index in places:
        label = parts[part].label(index)
        shown = tools(parts[part].extra_info(index), label) if tools is not None else ()
        texts.append(_text(parts[part].value(key, index), label, tokenizer, shown))
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    for (part, index), one in zip(places, ids, strict=True):
        if not one:
            raise DataError(f"{parts[part].label(index)}: its prompt is empty", hint=f"fill its {key!r} column")
    return ids


def _text(prompt: Any, label: str, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text that the model reads. `prompt`: a string, or messages with `role` and `content`."""
    if isinstance(prompt, str) and not tools:
        return prompt
    if not isinstance(prompt, list) or not prompt or not all(_is_message(message) for message in prompt):
        raise DataError(
            f"{label}: its prompt is neither a text nor a list of messages with role and content: {prompt!r:.80}",
            hint='write it as [{"role": "user", "content": "..."}]',
        )
    if not tokenizer.chat_template:
        return "\n".join(message["content"] for message in prompt)
    try:
        shown: Any = [dict(each) for each in tools] or None
        text = tokenizer.apply_chat_template(prompt, tools=shown, add_generation_prompt=True, tokenize=False)
        return str(text)
    except jinja2.TemplateError as exc:
        raise DataError(
            f"{label}: the model's chat template refuses its prompt: {' '.join(str(exc).split())}",
            hint="some templates take no system message, or require user and assistant to alternate",
        ) from exc


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _fit(ids: list[int], part: Part, index: int, config: DataConfig) -> list[int] | None:
    """`ids` within the limit; None if the row is to be dropped."""
    limit = config.max_prompt_length
    if len(ids) <= limit:
        return ids
    if config.filter_overlong_prompts:
        return None
    if config.truncation == "error":
        raise DataError(
            f"{part.label(index)}: its prompt has {len(ids)} tokens, data.max_prompt_length is {limit}",
            hint="data.filter_overlong_prompts=True drops such rows, data.truncation=left shortens them",
        )
    return truncated(ids, limit, config.truncation)


def truncated(ids: list[int], limit: int, truncation: str) -> list[int]:
    """`ids` shortened to `limit` by leaving out tokens on the `left`, on the `right` or in the `middle`.

    >>> truncated([1, 2, 3, 4, 5], 3, "middle")
    [1, 4, 5]
    """
    head = {"left": 0, "right": limit, "middle": limit // 2}[truncation]
    return ids[:head] + ids[len(ids) - (limit - head) :]


def _nothing_left(files: Sequence[str], total: int, shortest: int | None, config: DataConfig) -> DataError:
    names = ", ".join(files)
    if shortest is None:
        return DataError(f"no rows in {names}", hint="is the file complete? is data.*_max_samples 0?")
    return DataError(
        f"all {total} prompts of {names} are longer than data.max_prompt_length={config.max_prompt_length}",
        hint=f"the shortest has {shortest} tokens: raise data.max_prompt_length",
    )
