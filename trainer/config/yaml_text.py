"""YAML that somebody else may have written, looked at before it is loaded: what cannot be loaded in short time is told.

Loaders follow brackets by recursion, and make of each alias all that it refers to: a file of one kilobyte may come to
billions of values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainer.config.model_folder import read_text

DEEPEST = 100  # brackets in brackets; what people write has ten
MOST_REPEATED = 5_000  # values that aliases stand for; what people write has some hundred


def checked(path: Path) -> str:
    """The text of a YAML file that can be loaded. Raises OSError, UnicodeDecodeError, yaml.YAMLError."""
    text = read_text(path)
    require_plain(text)
    return text


def require_plain(text: str) -> None:
    """Raises yaml.YAMLError for what is no YAML, nested too deeply, or repeats too much by aliases.

    >>> require_plain("a: &x [1, 2]\\nb: *x")
    >>> require_plain("a: &x [*x]")
    Traceback (most recent call last):
    ...
    yaml.error.MarkedYAMLError: an alias stands within what it refers to
      in "<unicode string>", line 1, column 8
    """
    sizes: dict[str, int] = {}  # of what is whole, by its anchor
    within: list[tuple[str | None, int]] = [(None, 0)]  # what is not: anchor, and values so far
    repeated = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, 0))
            if len(within) > DEEPEST:
                raise _wrong("it is nested too deeply", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = within.pop()
            size += 1
            if anchor is not None:
                sizes[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            if event.anchor is not None:
                sizes[event.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in within):
                raise _wrong("an alias stands within what it refers to", event)
            size = sizes.get(event.anchor or "", 0)
            repeated += size
            if repeated > MOST_REPEATED:
                raise _wrong(f"its aliases stand for more than {MOST_REPEATED:,} values", event)
        within[-1] = (within[-1][0], within[-1][1] + size)


def texts_in(text: str) -> Any:
    """What a text says that `checked` gave. Every value is a text, so that none is of a wrong form.

    Raises yaml.YAMLError.

    >>> texts_in("a: [1, 2020-99-99]")
    {'a': ['1', '2020-99-99']}
    """
    return yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))


def _wrong(what: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)
