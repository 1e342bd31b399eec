"""What others wrote, read so that it can neither hang, fill nor crash who reads it: files, JSON, YAML, records."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
LONGEST_SOURCE = 10_000_000  # bytes of a program's file
DEEPEST = 100  # brackets in brackets; what people write has ten


def read_regular(path: Path | str, most: int) -> bytes:
    """A file of at most so many bytes. A pipe, a device or a socket is none: it may never end, or never begin.

    Raises:
        OSError: it can't be read, is no regular file, or is larger; `strerror` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is a folder, pipe or device, not a file")
    with open(descriptor, "rb") as file:
        data = file.read(most + 1) or b""  # sizes are not asked for: those of /proc are 0
    if len(data) > most:
        raise OSError(errno.EFBIG, f"is larger than {most:,} bytes")
    return data


def read_source(path: Path | str) -> str | None:
    """The text of a Python file, in the encoding that it names; None where it can't be read, or is none."""
    import tokenize

    try:
        data = io.BytesIO(read_regular(path, LONGEST_SOURCE))
        encoding, _ = tokenize.detect_encoding(data.readline)
        data.seek(0)
        return io.TextIOWrapper(data, encoding).read()
    except (OSError, SyntaxError, ValueError, LookupError):
        return None


def json_of(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for whatever is none, too deep nesting too.

    >>> json_of('{"a": [1]}')
    {'a': [1]}
    >>> json_of("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def yaml_of(text: str) -> Any:
    """What YAML says, as plain values. Raises yaml.YAMLError or ValueError."""
    import yaml

    check_depth(text)
    return yaml.load(text, Loader=yaml_loader())


def yaml_loader() -> Any:
    """The safe loader in C, where there is one."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_depth(text: str) -> None:
    """Raises yaml.YAMLError for YAML that is nested so deeply that its parser in C would end the process."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml_loader()):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=mark)


# ---- records


def record_of(kind: Callable[..., T], document: Any) -> T:
    """The dataclass that a document holds; the rest of it is left out. Raises ValueError where a type is another."""
    if not isinstance(document, dict):
        raise ValueError(f"no {kind}")
    hints = _hints(kind)
    names = [name for name in hints if name in document]
    try:
        return kind(**{name: _value(hints[name], document[name]) for name in names})
    except TypeError:
        raise ValueError(f"a part of {kind} is missing") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    """The value, if it is of a type that records have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return record_of(hint, value)
    if origin is Literal and isinstance(value, str) and value in arguments:
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(arguments[0], each) for each in value)
    if origin is dict and isinstance(value, dict):
        return {_value(str, name): each for name, each in value.items()}
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint is str and isinstance(value, str):
        return value.encode().decode()  # half of a pair of surrogates can't be printed
    if hint in (int, bool) and type(value) is hint:
        return value
    raise ValueError(f"{value!r:.40} is no {hint}")
