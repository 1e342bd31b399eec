"""The page of `devkit ps`: from a document to text, for any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from devkit.debug import caught_view
from devkit.debug.crash_table import clip
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, ago, count, fit_path, label, name_members, short_path
from devkit.debug.protocols import Document
from devkit.palette import CAUTION, NAME

if TYPE_CHECKING:
    from rich.text import Text

WIDE = ("ID", "JOB", "ROLE", "RANK", "HOST", "PID", "WHERE", "FUNCTION", "REASON", "SINCE", "ATTACHED")
NARROW = ("ID", "WHO", "WHERE", "FUNCTION", "SINCE")
WHERE = {WIDE: 6, NARROW: 2}
GAP = 2
INDENT = "  "
SHORTEST_PATH = 12
GONE_SHOWN = 5
REASON = 160  # characters of why a stop is over
NEXT = (
    "pause them with devkit break FILE:LINE\ndevkit stacks shows where they are; if nothing moves, devkit hang says why"
)
Cells = tuple[str, ...]


def page(
    document: Document, now: float, *, width: int | None, cwd: str | None = None, foot: Sequence[str] = ()
) -> Text:
    """All that `ps` has to say, in `width` columns; None: as wide as it gets, one line a stop."""
    from rich.text import Text

    stops = sorted((StopRecord.from_json(stop) for stop in document["stops"]), key=by_rank)
    lost = frozenset(str(one["worker_id"]) for one in document["workers"] if one.get("connected") is False)
    blocks = [stops_block(stops, now, width, cwd, lost) if stops else empty_block(document)]
    if document["breakpoints"]:
        blocks.append(breakpoints_block(document["breakpoints"]))
    if gone := of_now(document["gone"], document["workers"]):
        blocks.append(gone_block(gone, now))
    caught = caught_view.parted(caught_view.rows(document["workers"], cwd))
    blocks += [caught_block(head, part, width) for head, part in caught]
    if document["crashes"]:
        blocks.append(Text(f"{count(document['crashes'], 'crash')}: devkit crashes lists them", style="red"))
    if foot:
        blocks.append(Text("\n").join(Text(clip(line, width), style=CAUTION) for line in foot))
    return Text("\n\n").join(blocks)


def by_rank(stop: StopRecord) -> tuple[str, int, str]:
    """By role, rank and id: whoever looks for rank 5 among 64 does not know when it stopped."""
    return stop.role, -1 if stop.rank is None else stop.rank, stop.id


def empty_block(document: Document) -> Text:
    """Nothing is stopped: what can be done next."""
    from rich.text import Text

    workers = document["workers"]
    ids = {str(each.get("worker_id", "")) for each in workers} - {""}
    children = sum(each.rpartition("-")[0] in ids for each in ids)  # a child's id begins with that of its worker
    running = f"{count(len(workers) - children, 'Ray process')} running"
    if not workers:
        hint = "no process runs under devkit\nstart the job with devkit run -- CMD, or devkit submit -- CMD"
    elif document["breakpoints"]:
        hint = f"{running}; ranks appear here when they hit a breakpoint"
    else:
        hint = f"{running}; {NEXT}"
    started = f"\ndevkit is in {count(children, 'process')} that these have started, too" if children else ""
    return Text.assemble("nothing is stopped\n", (f"{hint}{started}", "dim"))


def stops_block(
    stops: Sequence[StopRecord], now: float, width: int | None, cwd: str | None, lost: frozenset[str] = frozenset()
) -> Text:
    """One line for each stop where the columns allow it, else two. `lost` are workers that can't be asked now."""
    wide = [wide_cells(stop, now, cwd, lost) for stop in stops]
    if width is None or natural_width(WIDE, wide) <= width:
        return _table(WIDE, wide, width, ())
    details = [detail(stop, lost) for stop in stops]
    return _table(NARROW, [narrow_cells(stop, now, cwd) for stop in stops], width, details)


def wide_cells(stop: StopRecord, now: float, cwd: str | None, lost: frozenset[str]) -> Cells:
    return (
        stop.id,
        stop.job_id,
        stop.role,
        "" if stop.rank is None else str(stop.rank),
        stop.node_ip,
        str(stop.pid),
        where(stop, cwd),
        stop.function,
        why(stop, lost),
        ago(now - stop.since),
        str(stop.attached) if stop.attached else "",
    )


def narrow_cells(stop: StopRecord, now: float, cwd: str | None) -> Cells:
    who = label(Who(stop.role, stop.rank, stop.id))
    return stop.id, who, where(stop, cwd), stop.function, ago(now - stop.since)


def detail(stop: StopRecord, lost: frozenset[str]) -> str:
    parts = [why(stop, lost), f"{stop.node_ip} pid {stop.pid}", f"job {stop.job_id}" if stop.job_id else ""]
    attached = f"{stop.attached} attached" if stop.attached else ""
    return " · ".join(part for part in (*parts, attached) if part)


def where(stop: StopRecord, cwd: str | None) -> str:
    return f"{short_path(stop.file, cwd)}:{stop.line}"


def why(stop: StopRecord, lost: frozenset[str] = frozenset()) -> str:
    """The reason, with the name of the exception or of the breakpoint."""
    named = (stop.exception["type"] if stop.exception else "") or stop.breakpoint
    text = f"{stop.reason} {named}".strip()
    return f"{text}, connection lost" if stop.worker_id in lost else text


def natural_width(head: Cells, rows: Iterable[Cells]) -> int:
    widths = _widths(head, rows)
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(head: Cells, rows: Iterable[Cells]) -> list[int]:
    return [max(map(len, column)) for column in zip(head, *rows, strict=True)]


def _table(head: Cells, rows: Sequence[Cells], width: int | None, details: Sequence[str]) -> Text:
    """Columns aligned by hand: a line is never wrapped, and the path gives way first, then the function's name."""
    from rich.text import Text

    rows = rows if width is None else [_fitted(head, row, rows, width) for row in rows]
    widths = _widths(head, rows)
    lines = [Text(_line(head, widths), style="bold")]
    for number, row in enumerate(rows):
        lines.append(Text(_line(row, widths)))
        lines[-1].stylize(NAME, 0, len(row[0]))
        if details:
            lines.append(Text(_clipped(" " * (widths[0] + GAP) + details[number], width), style="dim"))
    return Text("\n").join(lines)


def _fitted(head: Cells, row: Cells, rows: Sequence[Cells], width: int) -> Cells:
    over = natural_width(head, rows) - width
    if over <= 0:
        return row
    widths, at = _widths(head, rows), WHERE[head]
    path_width = max(SHORTEST_PATH, widths[at] - over)
    left = over - (widths[at] - path_width)
    name_width = max(len(head[at + 1]), widths[at + 1] - max(0, left))
    cells = list(row)
    cells[at], cells[at + 1] = fit_path(row[at], path_width), _clipped(row[at + 1], name_width)
    return tuple(cells)


def _clipped(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: max(1, width - 1)] + "…"


def _line(cells: Cells, widths: Sequence[int]) -> str:
    return (" " * GAP).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def breakpoints_block(breakpoints: Sequence[Document]) -> Text:
    from rich.text import Text

    longest = max(len(str(one["id"])) for one in breakpoints)
    lines = [Text("breakpoints", style="bold")]
    for one in breakpoints:
        lines.append(Text.assemble("  ", (str(one["id"]).ljust(longest), NAME), "  ", str(one["spec"]), "  "))
        lines[-1].append(armed(one), style="" if one.get("armed") else CAUTION)
        if one.get("error"):
            lines.append(Text(f"    {one['error']}", style="red"))
    return Text("\n").join(lines)


def armed(breakpoint: Document) -> str:  # noqa: A002 - the field's own word
    """How far a breakpoint has come: never silent about one that nobody has.

    >>> armed({"armed": 3, "workers": 8, "hits": 2, "note": ""})
    'armed in 3 of 8, 2 hits'
    >>> armed({"armed": 0, "workers": 8, "note": "module not loaded yet"})
    'armed in 0 of 8: module not loaded yet'
    >>> armed({"armed": 0, "workers": 0, "note": "no worker has joined yet"})
    'pending: no worker yet (armed when one starts)'
    >>> missing = [{"role": "driver", "rank": None}, {"role": "Worker", "rank": 2}]
    >>> armed({"armed": 1, "workers": 3, "note": "module not loaded yet", "missing": missing})
    'armed in 1 of 3 (not in rank 2 and the driver: module not loaded yet)'
    """
    if not breakpoint.get("workers") and not breakpoint.get("hits"):
        return "pending: no worker yet (armed when one starts)"
    text = f"armed in {breakpoint.get('armed', 0)} of {breakpoint.get('workers', 0)}"
    if breakpoint.get("hits"):
        text += f", {count(breakpoint['hits'], 'hit')}"
    note = breakpoint.get("note")
    if not note or not breakpoint.get("armed"):
        return f"{text}: {note}" if note else text
    missing = breakpoint["armed"] < breakpoint.get("workers", 0)
    return f"{text} ({f'not in {_without(breakpoint)}: ' if missing else ''}{note})"


def _without(breakpoint: Document) -> str:  # noqa: A002 - the field's own word
    """Who has not armed it, in a few words however many there are; an older hub says only how many."""
    missing = breakpoint.get("missing")
    if not missing:
        return count(breakpoint["workers"] - breakpoint["armed"], "other process")
    ranked = [Who(one["role"], one["rank"], "") for one in missing if one["rank"] is not None]
    others = Counter(str(one["role"] or "worker") for one in missing if one["rank"] is None)
    named = [name_members(ranked)] if ranked else []
    for role, number in others.items():
        named.append("the driver" if (role, number) == ("driver", 1) else count(number, f"{role} process"))
    return ", ".join(named[:-1]) + " and " * (len(named) > 1) + named[-1]


def caught_block(head: str, rows: list[caught_view.Row], width: int | None) -> Text:
    from rich.text import Text

    room = None if width is None else width - len(INDENT)
    lines = [f"{INDENT}{line}" for line in caught_view.lines(rows, room)]
    return Text("\n").join([Text(head, style="bold"), *map(Text, lines)])


def of_now(gone: Sequence[Document], workers: Sequence[Document]) -> list[Document]:
    """Without the stops of jobs that have ended, once a later job runs on the same cluster."""
    jobs = {str(one.get("job_id") or "") for one in workers}
    newest = max(map(_age_of, jobs), default=0)
    return [one for one in gone if str(one.get("job_id")) in jobs or _age_of(str(one.get("job_id"))) >= newest]


def _age_of(job_id: str) -> int:
    """Ray counts jobs, with the low byte first; what is no such number is as new as can be, if it is a job at all.

    >>> _age_of("02000000") < _age_of("00010000"), _age_of(""), _age_of("None") > _age_of("ffffff7f")
    (True, 0, True)
    """
    try:
        return int.from_bytes(bytes.fromhex(job_id), "little")
    except ValueError:
        return 1 << 64


def gone_block(gone: Sequence[Document], now: float) -> Text:
    """Stops that are over, the newest first, and why."""
    from rich.text import Text

    newest = sorted(gone, key=lambda one: -float(one["time"]))
    lines = [Text("no longer stopped", style="bold")]
    for one in newest[:GONE_SHOWN]:
        who = label(Who.of(one))
        reason = clip(" ".join(str(one["reason"]).split()), REASON)
        lines.append(Text(f"  {one['id']}  {who}  {reason}  {ago(now - one['time'])} ago", style="dim"))
    if len(newest) > GONE_SHOWN:
        lines.append(Text(f"  and {len(newest) - GONE_SHOWN} more: devkit ps --json", style="dim"))
    return Text("\n").join(lines)
