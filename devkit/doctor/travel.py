"""The programs of `onnode/` as they travel: a few lines that put the package together wherever they are run."""

from __future__ import annotations

import json
from pathlib import Path

PACKAGE = "devkit_onnode"
FOLDER = Path(__file__).with_name("onnode")

# Puts the package together from its sources: SOURCES is {module: text}.
_LOADER = """\
import importlib.abc, importlib.util, json, sys
class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        head, _, module = name.partition(".")
        if head == {package!r} and (module or "__init__") in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=not module)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__.partition(".")[2] or "__init__"
        exec(compile(SOURCES[name], "devkit_onnode/" + name + ".py", "exec"), module.__dict__)
SOURCES = json.loads({sources!r})
sys.meta_path.insert(0, Sources())
"""


def sources() -> dict[str, str]:
    """Module -> its text."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}


def program(call: str) -> str:
    """A program that has the package and ends with `call`."""
    return _LOADER.format(package=PACKAGE, sources=json.dumps(sources())) + call + "\n"


def driver() -> str:
    """The survey of a cluster; its order comes on stdin."""
    return program(f"from {PACKAGE}.driver import main; main()")


def collective() -> str:
    """One rank of an all-reduce; its jobs come on stdin."""
    return (FOLDER / "collective.py").read_text(encoding="utf-8")
