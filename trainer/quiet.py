"""What libraries say of themselves in a worker, and nobody reads a run's log for: it is left out, errors are not.

Ray shows each line that a worker writes in the driver's log. Only the environment reaches the processes that an engine
starts, and torch reads its variable once, when it is loaded; what the user has set stands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ERRORS_ONLY = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch's C++: a warning for each socket whose host has no name
NO_BARS = {"TQDM_DISABLE": "1"}  # a bar is a line for each of its moves where it is not on a terminal


def quiet_torch() -> None:
    """Before torch is loaded."""
    _default(ERRORS_ONLY)


def quiet_engine(options: Mapping[str, Any]) -> None:
    """Before an engine is loaded, unless its options ask for more."""
    if errors_only(options):
        _default(ERRORS_ONLY | NO_BARS)


def errors_only(options: Mapping[str, Any]) -> bool:
    """Of an engine's `log_level`, which is "error" where nothing is said."""
    return str(options.get("log_level", "error")).lower() in ("error", "critical")


@contextmanager
def without_bars() -> Iterator[None]:
    """Within it, transformers shows no bars of what it loads and saves."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _default(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)
