"""Ray's key-value store as far as notes need it, in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import noticeboard


class Store:
    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def internal_kv_put(self, key: bytes, value: bytes, _overwrite: bool, _namespace: bytes, timeout: float) -> None:
        assert timeout
        self.kept[key] = value

    def internal_kv_get(self, key: bytes, _namespace: bytes, timeout: float) -> bytes | None:
        assert timeout
        return self.kept.get(key)

    def internal_kv_keys(self, prefix: bytes, _namespace: bytes, timeout: float) -> list[bytes]:
        assert timeout
        return [key for key in self.kept if key.startswith(prefix)]

    def internal_kv_multi_get(self, keys: list[bytes], _namespace: bytes, timeout: float) -> dict[bytes, bytes]:
        assert timeout
        return {key: self.kept[key] for key in keys}

    def internal_kv_del(self, key: bytes, _by_prefix: bool, _namespace: bytes, timeout: float) -> None:
        for each in self.internal_kv_keys(key, _namespace, timeout):
            del self.kept[each]


def connected(patch: pytest.MonkeyPatch) -> Store:
    """This process is one of a job."""
    store = Store()
    worker: Any = SimpleNamespace(connected=True, current_job_id=SimpleNamespace(hex=lambda: "01000000"))
    patch.setattr(noticeboard, "gcs", lambda: store)
    patch.setattr(noticeboard, "_worker", lambda: worker)
    return store
