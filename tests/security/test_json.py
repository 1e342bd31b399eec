"""JSON that somebody else may have written is read where brackets without end are an error like any other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CATCH = ("RecursionError", "_UNREADABLE", "Exception")
OWN = "what this very package wrote a moment ago: to a process of its own, or into a file that is its user's alone"
WHO = "what the scheduler, the cluster or the host says of itself, by its own command"
ALLOWED = {
    "devkit/vscode/jsonc.py": "a number or a text, without brackets",
    **dict.fromkeys(
        (
            "devkit/debug/dap_exchange.py",
            "devkit/debug/gcs.py",
            "devkit/debug/gcs_probe.py",
            "devkit/debug/hub_file.py",
            "devkit/debug/inworker/boot.py",
            "devkit/debug/inworker/crash_files.py",
            "devkit/debug/inworker/found_actors.py",
            "devkit/debug/inworker/hub_place.py",
            "devkit/debug/inworker/noticeboard.py",
            "devkit/debug/inworker/settings.py",
            "devkit/debug/inworker/unmet.py",
            "devkit/debug/launch.py",
            "devkit/doctor/cluster.py",
            "devkit/doctor/onnode/collective.py",
            "devkit/doctor/onnode/driver.py",
            "devkit/doctor/onnode/rank.py",
            "devkit/launch/host_boot.py",
            "devkit/launch/host_work.py",
            "devkit/launch/ssh_session.py",
            "devkit/smoke/direct_calls.py",
            "devkit/smoke/direct_process.py",
            "devkit/smoke/script.py",
            "devkit/smoke/validations.py",
            "devkit/smoke/warm.py",
            "devkit/smoke/warm_process.py",
            "trainer/agent/inside.py",
            "trainer/agent/row_options.py",
            "trainer/agent/tools/bundle.py",
            "trainer/agent/tools/rows.py",
            "trainer/agent/tools/shown.py",
            "trainer/demo/__main__.py",
            "trainer/demo/lake.py",
            "trainer/demo/search.py",
            "trainer/retrieval/node.py",
            "trainer/rewards/checker.py",
            "trainer/rollout/wire.py",
        ),
        OWN,
    ),
    **dict.fromkeys(
        (
            "devkit/launch/kubectl.py",
            "devkit/launch/kuberay_cluster.py",
            "devkit/launch/slurm_cluster.py",
        ),
        WHO,
    ),
}


def unguarded(text: str) -> Iterator[int]:
    """The lines that call `json.load` or `json.loads` with no such handler around."""

    def walk(node: ast.AST, guarded: bool) -> Iterator[int]:
        if isinstance(node, ast.Call) and not guarded and _reads_json(node.func):
            yield node.lineno
        if isinstance(node, ast.Try):
            caught = any(
                each.type is not None and any(n in ast.unparse(each.type) for n in CATCH) for each in node.handlers
            )
            for part in node.body:
                yield from walk(part, guarded or caught)
            rest: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        else:
            if isinstance(node, ast.With):
                words = " ".join(ast.unparse(item.context_expr) for item in node.items)
                guarded = guarded or "RecursionError" in words or "._read()" in words
            rest = list(ast.iter_child_nodes(node))
        for part in rest:
            yield from walk(part, guarded)

    if "json" in text:
        yield from walk(ast.parse(text), False)


def _reads_json(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute) or called.attr not in ("load", "loads"):
        return False
    return isinstance(called.value, ast.Name) and called.value.id == "json"


def test_it_would_be_seen() -> None:
    assert list(unguarded("json.loads(x)")) == [1]
    assert list(unguarded("try:\n  json.loads(x)\nexcept ValueError: pass")) == [2]
    assert not list(unguarded("try:\n  json.loads(x)\nexcept (ValueError, RecursionError): pass"))


def test_every_reader_catches_what_deep_nesting_raises() -> None:
    files = [path for package in ("trainer", "devkit") for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if list(unguarded(path.read_text()))}
    assert found == ALLOWED.keys()
