"""What a launcher writes and says: a document in a file or on stdout, talk on stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from devkit import console
from devkit.errors import UsageError


def say(line: str) -> None:
    """Talk while a wait lasts."""
    console.talk().print(f"devkit: {line}", soft_wrap=True)


def write(text: str, output: str, *, executable: bool = False) -> None:
    """`output` is a path, or - for stdout. Raises UsageError if it cannot be written."""
    if output == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
        if executable:
            os.chmod(output, 0o755)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}", hint="choose another file with --output") from None


def as_yaml(document: Any) -> str:
    """For people: in the order in which it was made, a text of several lines as such, nothing by reference.

    >>> as_yaml({"b": "1", "a": ["x: y", "one\\ntwo\\n"]})
    "b: '1'\\na:\\n- 'x: y'\\n- |\\n  one\\n  two\\n"
    """
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=10**6)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.rstrip("\n") else None  # where that cannot be, the dumper takes quotes
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)
