"""Which file a breakpoint means, and its text: on this disk, in an archive, or known to a process of the job alone."""

from __future__ import annotations

import os
import shlex
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from devkit.debug.inworker.specs import Spec, SpecError
from devkit.debug.inworker.specs import format as format_spec
from devkit.debug.inworker.texts import near

Ask = Callable[[str], Mapping[str, Any]]  # what the processes of the job have by this name: {"file", "text", "near"}

MOST_FILES = 5000  # that are looked at for one that was misspelt
DEPTH = 6  # folders below the working folder
NO_HINT = "file names are relative to {folder} or to sys.path"
SCRIPT_HINT = "name a program's own script by its file: job.py:14; in a notebook cell call breakpoint()"
MADE_HINT = "generated code has a source only once it exists: use devkit break in the running job"


@dataclass(frozen=True)
class Found:
    """A file and its text. `paths` is how a worker may name it, best first."""

    name: str
    paths: tuple[str, ...]
    text: str


def find(spec: Spec, folder: Path, ask: Ask | None = None) -> Found:
    """Raises `SpecError` for a file that is nowhere, `OSError` or `UnicodeDecodeError` for one that can't be read."""
    wanted = Path(spec.file).expanduser() if spec.line else _file_of(spec.module)
    for root in (folder, *(Path(entry) for entry in sys.path)):
        found = _on_disk(root, spec, wanted, folder)
        if found is not None:
            return found
    return _elsewhere(spec, folder, ask)


def find_module(name: str, folder: Path) -> Path:
    """Without importing it: that would run its code."""
    spec = Spec(module=name)
    for root in (folder, *(Path(entry) for entry in sys.path)):
        for file in _files(root, spec, _file_of(name)):
            if file.is_file() or _member(file) is not None:
                return file.absolute()
    raise SpecError(f"module {name} not found from {folder}", hint="use FILE:LINE instead")


def _file_of(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py") if module else Path()


def _files(root: Path, spec: Spec, wanted: Path) -> list[Path]:
    if spec.line:
        return [root / wanted]
    return [root / wanted, root / wanted.with_suffix("") / "__init__.py"]


def _on_disk(root: Path, spec: Spec, wanted: Path, folder: Path) -> Found | None:
    for file in _files(root, spec, wanted):
        path = file.absolute()
        if path.is_file():
            return Found(str(path), names_of(path, folder), decode_source(path.read_bytes()))
        member = _member(path)
        if member is not None:
            archive, name = member
            with zipfile.ZipFile(archive) as opened:
                text = decode_source(opened.read(name))
            return Found(str(path), tuple(dict.fromkeys((*names_of(path, folder), name))), text)
    return None


def _member(path: Path) -> tuple[Path, str] | None:
    """The archive that a path leads into, and the name in it; None if it leads into none, or there is no such name."""
    archive = _archive(path)
    if archive is None:
        return None
    name = path.relative_to(archive).as_posix()
    with zipfile.ZipFile(archive) as opened:
        return (archive, name) if name in opened.namelist() else None


def _archive(path: Path) -> Path | None:
    """The first part of a path that is a file and not a folder, if it is an archive."""
    outer = next((each for each in reversed(path.parents) if each.is_file()), None)
    return outer if outer is not None and zipfile.is_zipfile(outer) else None


def names_of(path: Path, folder: Path) -> tuple[str, ...]:
    """How a worker may name this file, best first: as it is, or below the folder that it was copied from.

    >>> names_of(Path("/home/me/project/pkg/train.py"), Path("/home/me/project"))[:2]
    ('/home/me/project/pkg/train.py', 'pkg/train.py')
    """
    names = [str(path)]
    for root in (folder, *(Path(entry) for entry in sys.path if entry)):
        if path.is_relative_to(root) and root != Path("/"):
            names.append(str(path.relative_to(root)))
    return tuple(dict.fromkeys(names))


def _elsewhere(spec: Spec, folder: Path, ask: Ask | None) -> Found:
    """Known to a process of the job alone: a notebook's cell, what was executed, a file of another machine."""
    name = spec.file or spec.module
    known = ask(str(spec.file)) if ask is not None and spec.line else {}
    if known.get("text") is not None:
        file = str(known["file"])
        return Found(file, tuple(dict.fromkeys((file, name))), str(known["text"]))
    alike = _near(spec, folder) or [str(each) for each in known.get("near") or ()]
    meant = f"did you mean {_typed(spec, alike[0])}?" if alike else ""
    if name.startswith("<") and spec.line:
        if ask is not None:
            raise SpecError(
                f"no process of the job has the source of {name}",
                hint=meant or "a program that generates code can put its source into linecache.cache, as IPython does",
            )
        raise SpecError(f"no such file: {name}", hint=MADE_HINT)
    if spec.line:
        raise SpecError(f"no such file: {name}", hint=meant or NO_HINT.format(folder=folder))
    if spec.module == "__main__":
        meant = SCRIPT_HINT
    raise SpecError(f"module {name} not found from {folder}", hint=meant or "use FILE:LINE instead")


def _typed(spec: Spec, name: str) -> str:
    """The breakpoint with another file or module, as a shell takes it.

    >>> _typed(Spec(file="tain.py", line=3, ranks="0"), "train.py")
    "'train.py:3 @[0]'"
    """
    return shlex.quote(format_spec(replace(spec, file=name) if spec.line else replace(spec, module=name)))


def _near(spec: Spec, folder: Path) -> list[str]:
    """Files or modules below the working folder, or in the archive, whose names are like the one that is not there."""
    archive = _archive((folder / spec.file).absolute()) if spec.line else None
    if archive is not None:
        with zipfile.ZipFile(archive) as opened:
            inside = [str(archive / each) for each in opened.namelist()]
        return [os.path.relpath(each, folder) for each in near(spec.file, inside)]
    files = list(_python_files(folder))
    if spec.line:
        return near(spec.file, files)
    modules = {name.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): name for name in files}
    ends = {f"{name.rpartition('.')[2]}.py": name for name in modules}
    return [ends[each] for each in near(f"{spec.module.rpartition('.')[2]}.py", ends)]


def _python_files(folder: Path) -> Iterator[str]:
    """Relative to the folder; without hidden folders, environments and what is installed."""
    count = 0
    for here, folders, files in os.walk(folder):
        depth = len(Path(here).relative_to(folder).parts)
        skipped = {"node_modules", "site-packages", "__pycache__", "build", "dist"}
        folders[:] = [each for each in folders if depth < DEPTH and each not in skipped and not each.startswith(".")]
        for file in files:
            if file.endswith(".py"):
                yield os.path.relpath(os.path.join(here, file), folder)
                count += 1
                if count >= MOST_FILES:
                    return
