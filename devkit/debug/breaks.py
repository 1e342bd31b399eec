"""`devkit break`, and the breakpoints that `run` and `submit` start a job with: read, checked, and made ready to post.

What can be wrong is said before anything starts: no such file, a line without code, a condition that doesn't parse.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit import console, patience
from devkit.debug.break_files import Ask, Found, find, find_module
from devkit.debug.inworker import instrument, specs
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.naming import count
from devkit.debug.protocols import Hub
from devkit.debug.targets import ALL
from devkit.errors import DevkitError, UsageError

__all__ = ["BreakOptions", "find_module", "main", "make", "make_all"]

ARM_SECONDS = 5.0  # for the processes to arm it; those that are late do it when they can
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
    text: str,
    *,
    hits: str = "",
    log: str = "",
    timeout: float = 0.0,
    job: str = "",
    folder: Path | None = None,
    ask: Ask | None = None,
) -> Breakpoint:
    """The breakpoint that `text` asks for. Raises `UsageError` for one that cannot be meant.

    Args:
        text: LOCATION [@TARGET] [if EXPR], or raise TYPE [@TARGET] [if EXPR].
        hits: which hits stop, per process: "3", ">=3", ">3", "%3".
        log: an expression to print instead of stopping.
        timeout: seconds that a stop may last; 0: without end.
        job: id of the only job that it is for.
        folder: what relative file names are relative to; this process's own by default.
        ask: what the processes of the job have by the name of a file that is not here.
    """
    try:
        spec = specs.parse(text)
        specs.check_hits(hits)
        specs.check_log(log)
        found = None if spec.raises else _found(spec, log, folder or Path.cwd(), ask)
    except specs.SpecError as error:
        raise UsageError(str(error), hint=error.hint) from None
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise UsageError(f"cannot read the file of {text!r}: {error}", hint="give a Python source file") from None
    return Breakpoint(
        id=secrets.token_hex(ID_BYTES),
        spec=text,
        paths=found.paths if found else (),
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
        source=found.text if found else None,
        raises=spec.raises,
    )


def _found(spec: specs.Spec, log: str, folder: Path, ask: Ask | None) -> Found:
    """The file of a breakpoint that has a place. Raises as `find` does, and where there is no code at its place."""
    found = find(spec, folder, ask)
    code = instrument.Source(found.text, str(spec.file or found.name))
    code.sites(instrument.Mark("", spec.line, spec.qualname, spec.condition, log))
    return found


def make_all(texts: Sequence[str], **options: object) -> tuple[Breakpoint, ...]:
    return tuple(make(text, **options) for text in texts)  # type: ignore[arg-type]


def main(options: BreakOptions) -> int:
    """`devkit break`: posts one, lists them, or clears one."""
    from devkit.debug.client import connect

    point = None
    if options.spec is not None:
        point = make(
            options.spec,
            hits=options.hits,
            log=options.log,
            timeout=options.timeout,
            job=options.job,
            ask=lambda name: _ask(name, options),
        )
    with connect(options.address) as hub:
        if options.clear is not None:
            return _tell([], _clear(hub, options.clear, options.job), options)
        if point is None:
            return _tell(hub.call("ps")["breakpoints"], "", options)
        state = hub.call("break", breakpoint=point.to_json(), wait=patience.of_hub(ARM_SECONDS))
    return _tell([state], "", options)


def _clear(hub: Hub, name: str, job: str) -> str:
    """Removes one, or all of them, or all that are for one job; what was done."""
    if name != ALL:
        hub.call("clear", id=name)
        return f"cleared {name}"
    every = hub.call("ps")["breakpoints"]
    mine = [str(each["id"]) for each in every if job in ("", each.get("job_id"))]
    for each in mine:
        hub.call("clear", id=each)
    return f"cleared {count(len(mine), 'breakpoint')}" if mine else "there are no breakpoints"


def _ask(name: str, options: BreakOptions) -> Mapping[str, Any]:
    """What the processes of the job have by this name; nothing where nobody can be asked."""
    from devkit.debug.client import connect

    try:
        with connect(options.address) as hub:
            known: Mapping[str, Any] = hub.call("source", file=name, job_id=options.job or None)
            return known
    except DevkitError:
        return {}


def _tell(states: list[dict[str, object]], done: str, options: BreakOptions) -> int:
    if options.json:
        console.emit({"breakpoints": states})
        return 0
    from devkit.debug.ps_view import armed

    out = console.result()
    if done:
        out.print(done)
    elif not states:
        out.print("no breakpoints; set one with devkit break FILE:LINE")
    for state in states:
        out.print(f"{state['id']}  {state['spec']}  {armed(state)}", soft_wrap=True)
        if state.get("error"):
            out.print(f"  its condition failed and was ignored: {state['error']}", soft_wrap=True)
    return 0
