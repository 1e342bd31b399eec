"""Models of one class that consist of different parameters: what one rank sends, another does not expect. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devkit.hang import words
from devkit.hang.model_facts import Model
from devkit.hang.states import State

SHOWN = 3  # parameters
_Known = tuple[Model, list[State]]


def differences(states: Sequence[State]) -> Iterator[str]:
    """A line for each class of which there are two sorts; the stages of a pipeline have more, and are to differ."""
    by_class: dict[str, list[_Known]] = {}
    for state in states:
        for model in state.facts.models:
            sorts = by_class.setdefault(model.kind, [])
            same = next((has for known, has in sorts if known == model), None)
            if same is None:
                sorts.append((model, [state]))
            elif state not in same:
                same.append(state)
    for kind, sorts in by_class.items():
        if len(sorts) == 2 and not any(state in sorts[1][1] for state in sorts[0][1]):
            parts = [*_between(sorts[0], sorts[1])]
            more = f"; and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
            if parts:
                yield f"{kind}: {'; '.join(parts[:SHOWN])}{more}"


def _between(one: _Known, other: _Known) -> Iterator[str]:
    kinds = dict.fromkeys([*one[0].parameters, *other[0].parameters])
    shapes = [_shapes(model) for model, _ in (one, other)]
    beside = [*one[1], *other[1]]
    whose = [f"that of {words.named(states, beside)}" for _, states in (one, other)]
    for each in kinds:
        counts = [model.parameters.get(each, 0) for model, _ in (one, other)]
        if counts[0] == counts[1]:
            continue
        if all(counts):
            yield f"{each} {counts[0]} x in {whose[0]}, {counts[1]} x in {whose[1]}"
            continue
        there = 0 if counts[0] else 1
        name = each.partition(" ")[0]
        both = [known.get(name, []) for known in shapes]
        if all(len(known) == 1 for known in both):
            if there == 0:  # and not once more for the other one's
                yield f"{name} is {both[0][0]} in {whose[0]}, {both[1][0]} in {whose[1]}"
            continue
        first = (one, other)[1 - there][0].tied.get(name)
        tied = f", where that is {first}" if first else ""
        yield f"{each} is in {whose[there]}, and no parameter of its own in {whose[1 - there]}{tied}"


def _shapes(model: Model) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in model.parameters:
        name, _, shape = each.partition(" ")
        found.setdefault(name, []).append(shape)
    return found


__all__ = ["differences"]
