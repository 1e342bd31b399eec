"""Put this folder first on PYTHONPATH, and every Python that starts imports the trainer with mistakes in it.

    SMOKE_MUTANTS        names of mutants of `mutants.py`, with commas; empty: the trainer as it is
    SMOKE_MUTANTS_FILE   the name of a mutant is added to it by each process that imported it, a line each

The product has no hook for this: `site` imports the first `sitecustomize` that it finds, and this one goes on to the
one that it hides.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

HERE = Path(__file__).parent


class MutantLoader(SourceFileLoader):
    """Compiles the mutants' text in place of the file's, past the cache of compiled files."""

    mutants: list[Any]

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for mutant in self.mutants:
            source = mutant.applied_to(source)
        with open(os.environ["SMOKE_MUTANTS_FILE"], "a") as file:
            file.write("".join(f"{mutant.name}\n" for mutant in self.mutants))
        return compile(source, self.path, "exec", dont_inherit=True)


class MutantFinder(MetaPathFinder):
    """Finds a mutant's module as everybody else does, and gives it the other loader."""

    def __init__(self, mutants: list[Any]) -> None:
        self.mutants = mutants

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        mine = [mutant for mutant in self.mutants if mutant.module == fullname]
        if not mine:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None
        spec.loader = loader = MutantLoader(fullname, spec.origin)
        loader.mutants = mine
        return spec


def load(name: str, file: Path) -> ModuleType:
    """The module in `file`, under a name that nobody else uses; `dataclass` looks for it in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chain() -> None:
    """The `sitecustomize` that would have been imported without this one."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    hidden = PathFinder.find_spec("sitecustomize", others)
    if hidden is not None and hidden.origin is not None:
        load("_hidden_sitecustomize", Path(hidden.origin))


if wanted := os.environ.get("SMOKE_MUTANTS"):
    mutants = load("_smoke_mutants", HERE.parent / "mutants.py")
    known = {**mutants.BY_NAME, **mutants.OF_TESTS}
    sys.meta_path.insert(0, MutantFinder([known[name] for name in wanted.split(",")]))
chain()
