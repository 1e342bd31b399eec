"""The debugger's cluster, for tests of hangs and first errors."""

from __future__ import annotations

from tests.debug.conftest import cluster, launch

__all__ = ["cluster", "launch"]
