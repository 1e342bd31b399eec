"""Records as JSON and back, their tensors beside it: no pickle, so that reading a file runs nothing.

A tensor stands in the JSON as the name under which it lies in the other half; the types come from the records.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

PLAIN = (str, int, float, bool, type(None))


class NotPlain(TypeError):
    """A value that JSON cannot hold; the message says where it stands."""


class Unfit(ValueError):
    """JSON that is not of the record's type; the message says where."""


def encode(value: Any, tensors: dict[str, Tensor], at: str = "") -> Any:
    """`value` as lists, dicts and plain values; its tensors go into `tensors`, named by where they stand.

    Raises NotPlain.

    >>> from trainer.records import Row
    >>> encode(Row(1, "a.parquet", "gsm8k", "72"), {})["ground_truth"]
    '72'
    """
    if isinstance(value, Tensor):
        tensors[at] = value.detach().cpu().contiguous().clone()  # two fields may be one tensor: not in a file
        return at
    if isinstance(value, PLAIN):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name), tensors, _below(at, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotPlain(f"{at} has keys that are no text")
        return {key: encode(item, tensors, _below(at, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, tensors, _below(at, str(i))) for i, item in enumerate(value)]
    raise NotPlain(f"{at} is a {type(value).__name__}")


def decode(kind: Any, data: Any, tensors: Mapping[str, Tensor], at: str = "") -> Any:
    """What `encode` was given, of the type `kind`. Fields that are missing take their defaults. Raises Unfit."""
    if kind is Any:
        return data
    if data is None:
        if type(None) not in get_args(kind):
            raise Unfit(f"{at} is null")
        return None
    if kind is Tensor:
        if data not in tensors:
            raise Unfit(f"there is no tensor {data}")
        return tensors[data]
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, tensors, at)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return decode(next(each for each in inner if each is not type(None)), data, tensors, at)
    if origin in (tuple, list):
        items = (decode(inner[0], item, tensors, _below(at, str(i))) for i, item in enumerate(_of(list, data, at)))
        return origin(items)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: decode(inner[1], item, tensors, _below(at, key)) for key, item in _of(dict, data, at).items()}
    if kind is float and type(data) is int:
        return float(_of(int, data, at))
    if isinstance(data, bool) and kind is not bool:
        raise Unfit(f"{at} is no {kind.__name__}")
    return _of(kind, data, at)


def _record(kind: Any, data: Any, tensors: Mapping[str, Tensor], at: str) -> Any:
    hints, names = get_type_hints(kind), {f.name for f in dataclasses.fields(kind)}
    if unknown := _of(dict, data, at).keys() - names:
        raise Unfit(f"{_below(at, min(unknown))} is not known")
    try:
        return kind(**{name: decode(hints[name], item, tensors, _below(at, name)) for name, item in data.items()})
    except TypeError as error:  # a field without a default is missing
        raise Unfit(f"{at}: {error}") from error


def _of(kind: Any, data: Any, at: str) -> Any:
    if not isinstance(data, kind):
        raise Unfit(f"{at} is no {kind.__name__}")
    return data


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
