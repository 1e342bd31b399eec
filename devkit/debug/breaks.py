"""`devkit break`, and the breakpoints that `run` and `submit` start a job with: read, checked, and made ready to post.

What can be wrong is said before anything starts: no such file, a line without code, a condition that doesn't parse.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit import console
from devkit.debug.inworker import instrument, specs
from devkit.debug.inworker.records import Breakpoint
from devkit.errors import UsageError

ARM_SECONDS = 5.0
ID_BYTES = 3


@dataclass(frozen=True)
class BreakOptions:
    """What `devkit break` was asked for."""

    spec: str | None = None
    hits: str = ""
    log: str = ""
    timeout: float = 0.0
    job: str = ""
    show: bool = False  # --list
    clear: str | None = None
    address: str | None = None
    json: bool = False


def make(
    text: str, *, hits: str = "", log: str = "", timeout: float = 0.0, job: str = "", folder: Path | None = None
) -> Breakpoint:
    """The breakpoint that `text` asks for. Raises `UsageError` for one that cannot be meant.

    Args:
        text: LOCATION [@TARGET] [if EXPR].
        hits: which hits stop, per process: "3", ">=3", ">3", "%3".
        log: an expression to print instead of stopping.
        timeout: seconds that a stop may last; 0: without end.
        job: id of the only job that it is for.
        folder: what relative file names are relative to; this process's own by default.
    """
    try:
        spec = specs.parse(text)
        specs.check_hits(hits)
        specs.check_log(log)
        path = _find(spec, folder or Path.cwd())
        source = path.read_text(encoding="utf-8")
        code = instrument.Source(source, str(spec.file or path))
        code.site(spec.line) if spec.line else code.site_by_name(spec.qualname)
    except specs.SpecError as error:
        raise UsageError(str(error), hint=error.hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the file of {text!r}: {error}", hint="name a Python source file") from None
    return Breakpoint(
        id=secrets.token_hex(ID_BYTES),
        spec=text,
        paths=names_of(path, folder or Path.cwd()),
        line=spec.line,
        module=spec.module,
        qualname=spec.qualname,
        role=spec.role,
        ranks=spec.ranks,
        condition=spec.condition,
        hits=hits,
        log=log,
        timeout=timeout,
        job_id=job,
        source=source,
    )


def make_all(texts: Sequence[str], **options: object) -> tuple[Breakpoint, ...]:
    return tuple(make(text, **options) for text in texts)  # type: ignore[arg-type]


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


def _find(spec: specs.Spec, folder: Path) -> Path:
    return _find_file(Path(spec.file).expanduser(), folder) if spec.line else find_module(spec.module, folder)


def _find_file(file: Path, folder: Path) -> Path:
    """In the folder, or, as in `transformers/trainer.py:10`, where Python looks for packages."""
    for root in (folder, *(Path(entry) for entry in sys.path)):
        path = (root / file).absolute()
        if path.is_file():
            return path
    raise specs.SpecError(f"no such file: {file}", hint=f"file names are relative to {folder} or to sys.path")


def find_module(name: str, folder: Path) -> Path:
    """Without importing it: that would run its code."""
    stem = Path(*name.split("."))
    for root in (folder, *(Path(entry) for entry in sys.path)):
        for path in ((root / stem).with_suffix(".py"), root / stem / "__init__.py"):
            if path.is_file():
                return path.absolute()
    raise specs.SpecError(f"no module {name} is found from {folder}", hint="FILE:LINE names a line by its file")


def main(options: BreakOptions) -> int:
    """`devkit break`: posts one, lists them, or clears one."""
    from devkit.debug.client import connect

    point = None
    if options.spec is not None:
        point = make(options.spec, hits=options.hits, log=options.log, timeout=options.timeout, job=options.job)
    with connect(options.address) as hub:
        if options.clear is not None:
            hub.call("clear", id=options.clear)
            return _tell([], f"cleared {options.clear}", options)
        if point is None:
            return _tell(hub.call("ps")["breakpoints"], "", options)
        state = hub.call("break", breakpoint=point.to_json(), wait=ARM_SECONDS)
    return _tell([state], "", options)


def _tell(states: list[dict[str, object]], done: str, options: BreakOptions) -> int:
    if options.json:
        console.emit({"breakpoints": states})
        return 0
    from devkit.debug.ps_view import armed

    out = console.result()
    if done:
        out.print(done)
    elif not states:
        out.print("no breakpoints; devkit break FILE:LINE sets one")
    for state in states:
        out.print(f"{state['id']}  {state['spec']}  {armed(state)}", soft_wrap=True)
        if state.get("error"):
            out.print(f"  its condition failed and was ignored: {state['error']}", soft_wrap=True)
    return 0
