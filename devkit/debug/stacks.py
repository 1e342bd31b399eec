"""`devkit stacks`: what every rank of a job does just now, equal stacks merged, odd ranks named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from devkit import console, patience
from devkit.debug.grouping import Group, differing
from devkit.debug.naming import count, label, name_members, short_path
from devkit.debug.protocols import Hub
from devkit.debug.stack_bundles import MOST, bundles, heading, is_another_thread, number_of
from devkit.debug.stack_groups import SOME_CALL, Frame, Key, Line, Merged, Process, Stack, fold, merge
from devkit.errors import NoJobError
from devkit.palette import CAUTION, NAME

if TYPE_CHECKING:
    from rich.text import Text

    from devkit.debug.documents import StackGroup, StacksDocument
    from devkit.debug.inworker.documents import StackFrame, StackProcess

TIMEOUT = 25.0  # for what has come by then; whoever can be seen at all is seen in far less


def main(
    *, job: str | None = None, native: bool = False, everything: bool = False, address: str | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    """Show the stacks of all ranks; `everything` shows frames of libraries, and every stack of the program's."""
    from devkit.debug.client import connect

    with connect(address) as hub:
        return run(hub, job=job, native=native, everything=everything, json=json)


def nobody(job: str | None) -> NoJobError:
    """There is nobody who could be looked at."""
    hint = "devkit jobs lists the jobs" if job else "start the job with devkit run -- CMD or devkit submit -- CMD"
    return NoJobError(f"no process of {f'job {job}' if job else 'any job'} runs under devkit", hint=hint)


def run(hub: Hub, *, job: str | None = None, native: bool = False, everything: bool = False, json: bool = False) -> int:
    ranks = hub.call("stacks", job_id=job, native=native, timeout=patience.of_hub(TIMEOUT))["ranks"]
    if not ranks:
        raise nobody(job)
    merged = merge(ranks)
    if json:
        console.emit(record(ranks, merged))
    else:
        console.result().print(page(merged, everything=everything or native), soft_wrap=True)
    return 1 if len(merged.silent) == len(ranks) else 0


def record(ranks: Sequence[StackProcess], merged: Merged) -> StacksDocument:
    """The document of `--json`."""
    groups: list[StackGroup] = [
        {
            "role": merged.by_who[one.members[0]].role,
            "ranks": one.ranks,
            "pids": [merged.by_who[who].pid for who in one.members],
            "frames": [_frame(each) for each in merged.by_who[one.members[0]].own],
            "stopped": one.key.stopped,
        }
        for one in merged.groups
    ]
    return {
        "ranks": list(ranks),
        "groups": groups,
        "odd": sorted({who.rank for who in merged.odd if who.rank is not None}),
    }


def _frame(frame: Frame) -> StackFrame:
    return {"file": frame.file, "line": frame.line, "function": frame.function}


def page(merged: Merged, *, everything: bool = False, cwd: str | None = None) -> Text:
    """A block for each group, the innermost frame first; then who is idle and who gave no answer."""
    from rich.text import Text

    blocks = [_group_block(one, merged, everything, cwd) for one in merged.groups]
    for process in merged.silent:
        blocks.append(Text(f"{_named(process)}: no stack: {process.error}", style="red"))
    for process in filter(lambda each: each.untold, merged.by_who.values()):
        missing = count(process.untold, "child process")
        blocks.append(Text(f"{_named(process)}: no answer in time from its {missing}", style=CAUTION))
    called = [process for process in merged.idle if process.call and not process.is_child]
    idle = [process for process in merged.idle if process not in called]
    if called:
        names = ", ".join(
            _named(process) + (f" ({process.call})" if process.call != SOME_CALL else "") for process in called
        )
        blocks.append(
            Text(f"{count(len(called), 'process')} in a call, in no line of the program: {names}", style="dim")
        )
    if idle:
        names = ", ".join(map(_named, idle))
        blocks.append(Text(f"{count(len(idle), 'process')} idle: {names}", style="dim"))
    if merged.odd:
        everyone = list(merged.by_who)
        blocks.append(Text(differing(merged.odd, everyone), style=f"bold {CAUTION}"))
    return Text("\n\n").join(blocks)


def _group_block(one: Group[Key], merged: Merged, everything: bool, cwd: str | None) -> Text:
    from rich.text import Text

    is_odd = bool(set(merged.odd).intersection(one.members))
    processes = [merged.by_who[who] for who in one.members]
    first = processes[0]
    lines = [_heading(one, processes, is_odd)]
    if not first.stack:
        does = "devkit ps shows where" if one.key.stopped else "idle: no code of the program is running"
        lines.append(Text(f"  {does}", style=CAUTION if is_odd else "dim"))
    found = bundles(processes, whole=everything)
    shown = found if everything else found[:MOST]
    for bundle in shown:
        alone = bundle is found[0] and len(bundle.names) == len(processes) and not is_another_thread(found)
        if not alone:
            lines.append(Text(f"  {heading(bundle, processes)}", style="dim"))
        lines += stack_lines(bundle.stack, everything, cwd, "  " if alone else "    ")
    if rest := _rest([name for bundle in found[len(shown) :] for name in bundle.names], first):
        lines.append(Text(f"  + {rest}", style="dim"))
    return Text("\n").join(lines)


def _rest(hidden: Sequence[str], process: Process) -> str:
    """What is not shown of a process: further stacks, and who runs none of the program's code."""
    parts = [f"{number_of(hidden)} (shown with --all)"] if hidden else []
    parts += [count(number, noun) for number, noun in _idle(process) if number]
    return ", ".join(parts)


def _idle(process: Process) -> tuple[tuple[int, str], ...]:
    return (process.idle, "idle thread"), (process.idle_tasks, "idle task")


def _heading(one: Group[Key], processes: Sequence[Process], is_odd: bool) -> Text:
    """Who it is, how many, and where the process is if it is a single one."""
    from rich.text import Text

    named = one.key.role.lower() not in ("", "rank") and any(who.rank is not None for who in one.members)
    role = f"{one.key.role} " if named else ""
    name = f"{role}{name_members(one.members)}"
    text = Text.assemble((name, f"bold {CAUTION}" if is_odd else "bold"))
    if len(processes) == 1:
        pid = f"pid {processes[0].pid}"
        place = processes[0].node_ip if name.endswith(pid) else f"{processes[0].node_ip} {pid}"
        text.append(f"  {place}", style="dim")
    if one.key.stopped:
        text.append("  stopped by devkit", style=NAME)
    if is_odd:
        text.append("  differs from the rest", style=CAUTION)
    return text


def stack_lines(stack: Stack, everything: bool, cwd: str | None, indent: str = "  ") -> list[Text]:
    lines = [Line(frame, False) for frame in stack] if everything else fold(stack)
    return [_line(line, indent, cwd) for line in lines]


def _line(line: Line, indent: str, cwd: str | None) -> Text:
    from rich.text import Text

    text = Text(f"{indent}{line.frame.function}  ", style="dim" if line.library else "")
    text.append(f"{short_path(line.frame.file, cwd)}:{line.frame.line}", style="dim")
    if line.folded:
        text.append(f"  (+{line.folded} more)", style="dim")
    return text


def _named(process: Process) -> str:
    return f"{label(process.who)}{',' * (' pid ' in process.who.role)} pid {process.pid}"
