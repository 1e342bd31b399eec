"""Who waits until another thread has imported a module, and for what that one waits."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import locks
from tests.debug.conftest import eventually
from tests.debug.test_primitives import run

Document = dict[str, Any]
__all__ = ["run"]

BODY = """
from concurrent.futures import ThreadPoolExecutor

def read():
    from {name} import rows
    return rows

pool = ThreadPoolExecutor(1, thread_name_prefix="reads")
future = pool.submit(read)
rows = future.result()
"""


def test_a_module_whose_body_waits_for_a_thread_that_imports_it(
    run: Callable[[Callable[[], object]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "devkit_test_of_import_locks"
    (tmp_path / f"{name}.py").write_text(BODY.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))

    def imports() -> None:
        importlib.import_module(name)

    def both() -> dict[str, Document]:
        found = locks.describe(*locks.innermost("devkit"))
        rows = {each["thread"]: each for each in found if each["at"]["file"].startswith(str(tmp_path))}
        return rows if len(rows) == 2 else {}

    run(imports)
    found = eventually(both, "both wait", 20)
    sys.modules[name].future.set_result([])  # which lets the body end, and so the import
    reads, body = found.pop("reads_0"), next(iter(found.values()))
    assert (reads["at"]["line"], reads["holder"], body["holder"]) == (5, body["thread"], "reads_0")
    assert reads["held_at"]["function"] == "<module>" and reads["held_at"]["line"] == body["at"]["line"] == 10
    assert reads["what"] == f"the import of module {name}, which thread {body['thread']} has begun"
    assert body["what"] == "a concurrent.futures.Future that thread reads_0 computes"
