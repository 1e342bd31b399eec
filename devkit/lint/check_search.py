"""Rules about commands that search: where their retriever is, and what Search-R1 needs of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import expanduser, isfile
from typing import Any

from devkit.lint.check_keys import audited, span_of
from devkit.lint.launch import Launch, Training
from devkit.lint.records import Finding
from trainer.agent.source import SEARCH
from trainer.config.releases import SEARCH_R1
from trainer.config.search_r1 import URL

_URL, _SERVE, _FILES = "retriever.url", "retriever.serve", ("data.train_files", "data.val_files")
_ROWS = 64  # of a file that are looked at
_TAG = "<answer>"


def check(launch: Launch) -> Iterator[Finding]:
    for training in launch.trainings:
        target = audited(launch, training).target
        if not _searches(training, target):
            continue
        nodes = training.number("trainer.nnodes", 1) or launch.nodes
        if nodes > 1 and not {_URL, _SERVE} & training.by_key.keys() and not training.takes_more:
            yield _by_default(training, int(nodes))
        for key in _FILES:
            if key in training.by_key:
                yield from _rows(training, key, target)


def _searches(training: Training, target: str) -> bool:
    if training.value("agent.env") is not None:
        return training.value("agent.env") == SEARCH
    return training.is_on("do_search", target == SEARCH_R1)


def _by_default(training: Training, nodes: int) -> Finding:
    """One that is given is told by the rule of addresses in general."""
    message = f"{_URL} is {URL} unless it is given, but the run has {nodes} nodes"
    why = "it is the node's own: one must run on every node that searches, and each with the same corpus"
    ours = f"give {_SERVE}=CORPUS.jsonl, which starts one on each node, or {_URL}"
    span = span_of(training, "max_turns", "do_search", "agent.env")
    return Finding(
        "loopback-address", span, message, why, ours if training.is_ours else f"give {_URL} of one host", "warning"
    )


def _rows(training: Training, key: str, target: str) -> Iterator[Finding]:
    """Of the first file that can be read here."""
    argument = training.by_key[key]
    rows = rows_of(argument.value) if argument.known else ()
    if not rows:
        return
    prompts = [_text(row.get("prompt")) for row in rows]
    if all(_TAG not in prompt for prompt in prompts):
        message = f"no prompt of {key} says what an answer looks like: none of the first {len(rows)} has {_TAG}"
        if target == SEARCH_R1:
            why = f"its reward takes the second {_TAG} of prompt and response: without an example each answer scores 0"
        else:
            why = f"the reward looks for {_TAG} in what the model says, and nothing tells it so"
        hint = "python -m trainer.data.prepare nq --search writes Search-R1's prompt"
        yield Finding("answer-tag", argument.span, message, why, hint)
    missing = sum(not isinstance(_mapping(row.get("extra_info")).get("index"), int) for row in rows)
    if missing and target == SEARCH_R1 and key == _FILES[0]:
        message = f"{missing} of the first {len(rows)} rows of {key} have no extra_info.index"
        why = "Search-R1 groups samples by it: all rows without one are a single group"
        yield Finding("row-index", argument.span, message, why, "number the rows: extra_info.index")


def rows_of(value: str) -> Sequence[Mapping[str, Any]]:
    """The first rows of a Parquet file that is named, alone or first in a list; none where it can't be read here."""
    path = expanduser(value.strip("[]'\" ").split(",")[0].strip("'\" "))
    if not path.endswith(".parquet") or not isfile(path):
        return ()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in ("prompt", "extra_info") if name in file.schema_arrow.names]
            batch = next(file.iter_batches(batch_size=_ROWS, columns=columns), None)
            return () if batch is None else batch.to_pylist()[:_ROWS]
    except (OSError, ValueError, pa.ArrowException):
        return ()


def _text(prompt: object) -> str:
    """
    >>> _text([{"role": "user", "content": "Who?"}]), _text("Who?"), _text(None)
    ('Who?', 'Who?', '')
    """
    if isinstance(prompt, str):
        return prompt
    messages = prompt if isinstance(prompt, list) else []
    return "\n".join(str(_mapping(message).get("content", "")) for message in messages)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
