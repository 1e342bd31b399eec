"""Where a relative path was looked for: workers of a job with a `working_dir` run in copies of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from . import private

_COPY = os.path.join("runtime_resources", "working_dir_files")  # where Ray has them

Document = dict[str, Any]


def of_errors(errors: Iterable[BaseException]) -> Document | None:
    """{"path", "folder", "copied"} of the first that did not find a file by a relative path; None of any other."""
    for each in errors:
        name = each.filename if isinstance(each, FileNotFoundError) else None
        if isinstance(name, str) and name and not os.path.isabs(name):
            folder = private.getcwd()
            return {"path": name, "folder": folder, "copied": "here" if _COPY in folder else _copied_elsewhere()}
    return None


def _copied_elsewhere() -> str:
    """Whether workers of this driver's job run in copies of a folder."""
    try:
        ray: Any = sys.modules["ray"]
        wanted = ray.is_initialized() and ray.get_runtime_context().runtime_env.get("working_dir")
        return "there" if wanted else ""
    except Exception:  # noqa: BLE001 - no Ray, or another one's: then nothing is known of it
        return ""


def said(found: Document) -> str:
    """
    >>> said({"path": "step_3/model.pt", "folder": "/job", "copied": ""})
    "'step_3/model.pt' was looked for in /job"
    >>> said({"path": "step_3/model.pt", "folder": "/job", "copied": "there"})[-79:]
    'in /job; the workers of the job run in copies of its working_dir, and not there'
    """
    text = f"{found['path']!r} was looked for in {found['folder']}"
    if found["copied"] == "here":
        return f"{text}, a copy of the job's working_dir"
    there = "; the workers of the job run in copies of its working_dir, and not there"
    return f"{text}{there if found['copied'] else ''}"


__all__ = ["of_errors", "said"]
