"""JSON documents back to the dataclasses that they were made from."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def decode(kind: type[T], document: dict[str, Any]) -> T:
    """A dataclass from what `asdict` and JSON made of it. A field that is missing has its default.

    Another devkit may have made the document: a field that is not known here is left out.
    """
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], value) for name, value in document.items() if name in known})


def _value(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if origin in (Union, types.UnionType):
        return _value(next(each for each in arguments if each is not type(None)), value)
    if isinstance(kind, type) and is_dataclass(kind):
        return decode(kind, value)
    return value
