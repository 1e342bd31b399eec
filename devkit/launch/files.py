"""Where what a launcher makes is written to: a file, or stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from devkit.errors import UsageError


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
        raise UsageError(f"cannot write {output}: {error.strerror}", hint="--output names another file") from None
