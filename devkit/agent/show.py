"""`devkit agent show`: conversations that a run has written to `trainer.rollout_data_dir`, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from devkit.console import emit, result
from devkit.errors import UsageError
from devkit.logs import redact
from devkit.palette import NAME
from devkit.reading import json_of, read_regular

LARGEST = 2**30  # bytes of a file
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "sampled": str,
    "sampled_ids": list,
    "logp": list,
    "answered": str,
    "answered_ids": list,
    "reward": (int, float),
    "seconds": (int, float),
}


def main(file: Path, row: int | None, turn: int | None, *, json: bool) -> int:
    """The exit code. Raises UsageError for a file without conversations, and for a row or turn that is not there."""
    if turn is not None and row is None:
        raise UsageError("--turn needs a conversation", hint="give one as --row N")
    samples = read(file)
    if row is None:
        if json:
            heads = [_head(number, sample) for number, sample in enumerate(samples, start=1)]
            emit(redact.texts({"conversations": heads}))
        else:
            _print(_list(samples))
        return 0
    sample = nth(samples, row, "conversation")
    turns = sample["turns"] if turn is None else [nth(sample["turns"], turn, "turn")]
    if json:
        emit(redact.texts(_head(row, sample) | {"prompt": sample["prompt"], "turns": turns}))
    else:
        _print(_conversation(row, sample, turns, turn))
    return 0


def read(file: Path) -> list[dict[str, Any]]:
    """The samples of a step. Raises UsageError that says which line is none."""
    try:
        lines = read_regular(file, LARGEST).decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a UTF-8 text"
        raise UsageError(f"cannot read {file}: {why}", hint="give a STEP.jsonl of trainer.rollout_data_dir") from error
    samples = []
    for number, line in enumerate(lines, start=1):
        try:
            sample = json_of(line)
        except ValueError:
            sample = None
        if not _is_conversation(sample):
            raise UsageError(
                f"line {number} of {file} is no conversation",
                hint="give a STEP.jsonl of trainer.rollout_data_dir, of a run with agent.env",
            )
        samples.append(sample)
    return samples


def _is_conversation(sample: Any) -> bool:
    turns = sample.get("turns") if isinstance(sample, dict) else None
    if not isinstance(turns, list) or not all(isinstance(sample.get(name), str) for name in ("row", "prompt", "ended")):
        return False
    if not isinstance(sample.get("score"), (int, float)):
        return False
    fit = (isinstance(turn, dict) and all(isinstance(turn.get(k), v) for k, v in _FIELDS.items()) for turn in turns)
    return all(fit) and all(isinstance(number, (int, float)) for turn in turns for number in turn["logp"])


def nth(items: Sequence[Any], number: int, what: str) -> Any:
    if number > len(items):
        raise UsageError(f"there is no {what} {number}", hint=f"there are {len(items)}, counted from 1")
    return items[number - 1]


def _head(number: int, sample: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: sample.get(name) for name in ("row", "sample", "seed", "score", "ended", "seconds")}
    return {"number": number, **kept, "turn_count": len(sample["turns"])}


def _list(samples: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    yield Text(f"{'number':>6} {'score':>8} {'turns':>5} {'ended':<11} row", style="bold")
    for number, sample in enumerate(samples, start=1):
        head = f"{number:>6} {sample['score']:>8.3g} {len(sample['turns']):>5} {sample['ended']:<11} "
        label = f", sample {sample['sample']}" if sample.get("sample") else ""
        yield Text(redact.text(f"{head}{sample['row']}{label}"))


def _conversation(
    number: int, sample: Mapping[str, Any], turns: Sequence[Mapping[str, Any]], only: int | None
) -> Iterator[Text]:
    said = f"conversation {number}: {sample['row']}, sample {sample.get('sample')}, seed {sample.get('seed')}"
    yield Text(redact.text(f"{said}; {sample['ended']}, score {sample['score']:g}"), style="bold")
    if only is None:
        yield from block("env", sample["prompt"])
    for place, turn in enumerate(turns, start=only or 1):
        count, logp = len(turn["sampled_ids"]), turn["logp"]
        mean = f", mean log-prob {sum(logp) / len(logp):.3f}" if logp else ""
        yield Text(
            f"turn {place}: {count} tokens{mean}, reward {turn['reward']:g}, {turn['seconds']:.3f} s", style="bold"
        )
        yield from block("model", turn["sampled"], NAME)
        if turn["answered"]:
            yield from block("env", turn["answered"])


def block(who: str, text: str, style: str = "") -> Iterator[Text]:
    """Each line with whose it is before it: not by colour alone. Without what tools and servers may have told them."""
    for line in redact.text(text).split("\n"):
        shown = "".join(char if char.isprintable() else " " for char in line)
        yield Text.assemble((f"{who:>{6 if len(who) < 7 else 8}} | ", "dim"), (shown, style))


def _print(lines: Iterator[Text]) -> None:
    page = result()
    for line in lines:
        page.print(line, soft_wrap=True)
