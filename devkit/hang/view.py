"""The page of `devkit hang`: the verdict, what it rests on, how far each rank has come, and their stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from devkit.debug.naming import label, short_path
from devkit.hang.chains import judged
from devkit.hang.gather import Diagnosis
from devkit.hang.groups import NAMELESS
from devkit.hang.records import RankProgress
from devkit.hang.states import BEGUN, State
from devkit.palette import GOOD

if TYPE_CHECKING:
    from rich.text import Text

ROWS = 16  # ranks of the table; of more only those that differ from most
IDLE = ("idle",)
IN_A_CALL = "in a call"  # and in no line of the program
HEADS = ("who", "pid", "doing", "step", "phase", "last collective", "where")
LEAST = ("last collective", "phase", "pid")  # what goes first where the terminal is narrow


def page(found: Diagnosis, cwd: str | None = None, width: int | None = None) -> Text:
    """What a person reads; `width` is the terminal's, if there is one."""
    from rich.text import Text

    from devkit.debug import stacks
    from devkit.debug.stack_groups import SOME_CALL, merge
    from devkit.hang.run import stack_documents

    verdict = found.verdict
    blocks = [Text(verdict.sentence, style="bold red" if verdict.hang else f"bold {GOOD}")]
    if verdict.evidence:
        blocks.append(Text("\n").join(Text(f"  {line}") for line in verdict.evidence))
    states = judged(found.first, found.last, 0.0).states
    blame = verdict.culprit if verdict.hang else None
    blamed = (blame.node_ip, blame.pid) if blame else None
    named = {(node_ip, pid): thread for node_ip, pid, thread in verdict.threads}
    rows = [
        each
        for each in states
        if each.doing not in IDLE
        or each.facts.phase
        or each.about == BEGUN
        or (each.facts.node_ip, each.facts.pid) == blamed
        or (each.facts.node_ip, each.facts.pid) in named
    ]
    begun = {(state.facts.node_ip, state.facts.pid) for state in states if state.about == BEGUN}
    does = {**dict.fromkeys(begun, IN_A_CALL), **dict.fromkeys(named, "io")}
    shown = (replace(row, doing=does.get((row.node_ip, row.pid), row.doing)) for row in map(progress, rows))
    blocks.append(Text("\n").join(table(list(shown), cwd, width)))
    if verdict.hang:
        places = {(state.facts.node_ip, state.facts.pid): state.works_at for state in states if state.works_at}
        documents = stack_documents(found.raw)
        for each in documents:
            if (each["node_ip"], each["pid"]) in begun and not each["call"]:
                each["call"] = SOME_CALL
            each["named"] = named.get((each["node_ip"], each["pid"]), "")
        blocks.append(stacks.page(merge(documents, places), cwd=cwd))
    return Text("\n\n").join(block for block in blocks if block.plain)


def progress(state: State) -> RankProgress:
    """How far a process has come."""
    facts, place = state.facts, state.works_at
    return RankProgress(
        role=facts.role,
        rank=facts.rank,
        node_ip=facts.node_ip,
        pid=facts.pid,
        doing=state.doing,
        moved=state.moved,
        step=facts.step,
        phase=facts.phase,
        collective=_collective(state),
        file=place.file if place else "",
        line=place.line if place else 0,
        function=place.function if place else "",
        task=facts.task,
    )


def _collective(state: State) -> str:
    """The youngest one, of whichever group."""
    known = [(entry.age, entry, group) for group in state.facts.groups for entry in group.entries[-1:]]
    if not known:
        return str(state.facts.call.get("op") or "")
    _, entry, group = min(known, key=lambda one: one[0])
    named = group.description if group.description not in NAMELESS else f"group {group.name}"
    return f"{entry.op}{'' if entry.p2p else f' #{entry.seq}'} of {named}"


def table(rows: Sequence[RankProgress], cwd: str | None = None, width: int | None = None) -> Iterator[Text]:
    """One line for each; equal ones of a large job in one. Where it is too wide, what tells least is left out."""
    from rich.text import Text

    cells = [_cells(row, cwd) for row in sorted(rows, key=lambda row: (row.role, -1 if row.rank is None else row.rank))]
    shown = cells if len(cells) <= ROWS else _unlike(cells)
    if not shown:
        return
    sizes = [max(len(line[column]) for line in (HEADS, *shown)) for column in range(len(HEADS))]
    kept = _kept(sizes, shown, width)
    for number, line in enumerate((HEADS, *shown)):
        text = "  ".join(line[column].ljust(sizes[column]) for column in kept).rstrip()
        yield Text(text, style="dim" if number == 0 else "")
    if len(shown) < len(cells):
        yield Text(f"and {len(cells) - len(shown)} more like one of these", style="dim")


def _kept(sizes: Sequence[int], shown: Sequence[tuple[str, ...]], width: int | None) -> list[int]:
    """The columns for which there is room: empty ones go first."""
    kept = list(range(len(HEADS)))
    empty = [column for column in kept if not any(line[column] for line in shown)]
    for column in (*empty, *map(HEADS.index, LEAST)):
        if width is None or sum(sizes[each] + 2 for each in kept) - 2 <= width:
            break
        if column in kept:
            kept.remove(column)
    return kept


def _unlike(cells: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The first of each kind: who and pid make no difference."""
    kinds: dict[tuple[str, ...], tuple[str, ...]] = {}
    for line in cells:
        kinds.setdefault(line[2:], line)
    return list(kinds.values())[:ROWS]


def _cells(row: RankProgress, cwd: str | None) -> tuple[str, ...]:
    from devkit.debug.naming import Who
    from devkit.debug.stack_groups import task_role

    where = f"{short_path(row.file, cwd)}:{row.line}" if row.file else ""
    doing = row.doing if not row.moved or row.doing in ("busy", "idle") else f"{row.doing}, moving"
    doing = IN_A_CALL if row.doing == "idle" and row.phase else doing  # which is in no line of the program
    step = "" if row.step is None else str(row.step)
    return (
        label(Who(task_role(row.role, row.task), row.rank, "")),
        str(row.pid),
        doing,
        step,
        row.phase,
        row.collective,
        where,
    )
