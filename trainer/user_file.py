"""A Python file of the user's: read on the driver, and loaded from its text, since nodes need no copy of it.

Standard library only: it runs in an environment's process, too.
"""

from __future__ import annotations

import linecache
import os
import sys
import tokenize
import types


def text_of(path: str) -> str:
    """A file as Python reads it: a byte order mark is none of it, and it may declare another encoding than UTF-8.

    Raises OSError, SyntaxError and UnicodeDecodeError.
    """
    with tokenize.open(os.path.expanduser(path)) as file:
        return file.read()


def read(path: str, setting: str) -> str:
    """The text of the file that `setting`, as `agent.env=lake.py:Lake`, names. Raises ConfigError."""
    from trainer.errors import ConfigError

    try:
        return text_of(path)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a UTF-8 text, nor one of the encoding it declares"
        raise ConfigError(f"{setting}: {why}", hint="give a Python file that the driver can read") from error


def load(text: str, file: str, name: str) -> types.ModuleType:
    """The module `name` that `text` makes; `file` is what tracebacks call it. Raises what the user's code raises."""
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    if not os.path.exists(file):  # on another node: give tracebacks and debuggers the text
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(module))
    return module
