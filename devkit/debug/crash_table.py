"""The list of crashes: causes one below the other, and below each what it brought down with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from devkit.debug import belated
from devkit.debug.briefly import Brief, brief
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.naming import Who, ago, count, is_library, label, short_path, short_places
from devkit.palette import NAME

if TYPE_CHECKING:
    from rich.text import Text

FOLLOWERS_SHOWN = 3
TOGETHER = 1.0  # seconds


def crash_table(
    crashes: Sequence[CrashRecord], now: float, *, width: int | None, cwd: str | None = None, over: bool = False
) -> Text:
    """Two or three lines for each cause, the newest first, one for each crash that followed. Equal causes are one.

    Below them are those of the kind of what the driver had failed by before. In a pipe lines are as long as they are.
    `over`: they are of a run that has ended.
    """
    from rich.text import Text

    if not crashes:
        hint = (
            "uncaught exceptions of Ray tasks, actors, threads and the driver, and deaths of processes that nobody has "
            "asked for appear here"
        )
        hint += "" if over else "; of asyncio tasks that nobody awaits devkit hang tells"
        return Text.assemble("no crashes\n", (hint, "dim"))
    ids = {crash.id for crash in crashes}
    roots = [crash for crash in crashes if crash.root is None or crash.root not in ids]
    late, below = belated.late(crashes), belated.of_a_kind(crashes)
    groups = sorted(_alike(roots, late), key=lambda group: group[0].id in below)
    blocks = [
        _block(group, _followers(group, crashes), now, width, cwd, when=belated.WHEN if group[0].id in late else "")
        for group in groups
    ]
    blocks.append(Text("see frames and variables with devkit crashes show [ID]", style="dim"))
    return Text("\n").join(blocks)


def _alike(roots: Sequence[CrashRecord], late: Collection[str]) -> list[list[CrashRecord]]:
    """Those that say the same of the same place, as of a call that is tried again and again; the newest first."""
    groups: dict[tuple[object, ...], list[CrashRecord]] = {}
    for each in sorted(roots, key=lambda crash: crash.time, reverse=True):
        who = (each.job_id, each.kind, each.role, each.rank)
        place = (each.file, each.line, each.function)
        groups.setdefault((*who, said(each), *place, each.id in late), []).append(each)
    return list(groups.values())


def first_like(one: CrashRecord, roots: Sequence[CrashRecord], late: Collection[str] = ()) -> CrashRecord:
    """The one by which the list shows it; `late` are those that came after their driver's end."""
    return next(_shown(group) for group in _alike(roots, late) if one in group)


def followers_of(one: str, crashes: Sequence[CrashRecord]) -> list[CrashRecord]:
    """What came of the crash with this id, and, later than it, of those that the list shows as one with it."""
    ids = {crash.id for crash in crashes}
    roots = [crash for crash in crashes if crash.root is None or crash.root not in ids]
    alike = _alike(roots, belated.late(crashes))
    group = next((each for each in alike if any(crash.id == one for crash in each)), [])
    others = {each.id for each in group} - {one}
    since = next((each.time for each in crashes if each.id == one), 0.0)
    return [each for each in crashes if each.root == one or (each.root in others and each.time >= since)]


def _shown(group: Sequence[CrashRecord]) -> CrashRecord:
    """Of processes that failed together, the first; of what is tried again and again, the newest."""
    return group[-1] if group[0].time - group[-1].time < TOGETHER else group[0]


def _followers(group: Sequence[CrashRecord], crashes: Sequence[CrashRecord]) -> list[CrashRecord]:
    causes = {each.id for each in group}
    return [each for each in crashes if each.root in causes]


def _times(group: Sequence[CrashRecord]) -> str:
    """How often, and within how long."""
    seconds = group[0].time - group[-1].time
    within = f"in {ago(seconds)}" if seconds >= 1 else "within a second"
    processes = len({(each.node_ip, each.pid) for each in group})
    where = f" in {processes} processes" if processes > 1 else ""
    return f"{len(group)} times {within}{where}" if len(group) > 1 else ""


def _block(
    group: Sequence[CrashRecord],
    followers: Sequence[CrashRecord],
    now: float,
    width: int | None,
    cwd: str | None,
    *,
    when: str,
) -> Text:
    from rich.text import Text

    root, newest = _shown(group), group[0]
    head = f"{root.id}  {label(Who(root.role, root.rank, root.id))}  "
    indent = " " * (len(root.id) + 2)
    first, *rest = _on_two_lines(said(root, cwd), width, len(head), len(indent))
    lines = [Text.assemble((root.id, NAME), head[len(root.id) :], (first, "red"))]
    lines += [Text(indent + each, style="red") for each in rest]
    facts = [
        *_places(root, cwd),
        when,
        _times(group),
        f"{ago(now - newest.time)} ago",
        f"{root.node_ip} pid {root.pid}".strip(),
    ]
    lines.append(Text(indent + clip(" · ".join(fact for fact in facts if fact), width, len(indent)), style="dim"))
    for each in followers[:FOLLOWERS_SHOWN]:
        text = f"then {each.id}  {label(Who(each.role, each.rank, each.id))}  {each.exception.get('type', '')}"
        lines.append(Text(indent + clip(text, width, len(indent)), style="dim"))
    if len(followers) > FOLLOWERS_SHOWN:
        lines.append(Text(f"{indent}then {count(len(followers) - FOLLOWERS_SHOWN, 'more crash')}", style="dim"))
    return Text("\n").join(lines)


def _on_two_lines(text: str, width: int | None, used: int, indent: int) -> list[str]:
    """What a sentence leads to stands at its end: what does not fit beside the `used` columns goes on below, once.

    >>> _on_two_lines("lost with its owner, which was killed at a.py:3", 34, 10, 4)
    ['lost with its owner,', 'which was killed at a.py:3']
    >>> _on_two_lines("lost with its owner", 40, 10, 4), _on_two_lines("a " * 20, 20, 10, 4)
    (['lost with its owner'], ['a a a a a', 'a a a a a a a a…'])
    """
    room = max(8, (width or 0) - used)
    if width is None or len(text) <= room:
        return [text]
    at = text.rfind(" ", 1, room + 1)
    first, rest = (text[:at], text[at:]) if at > 0 else (text[:room], text[room:])
    return [first, clip(rest.strip(), width, indent)]


SAID = 300  # characters


def said(crash: CrashRecord, cwd: str | None = None) -> str:
    """Type and message, in one line."""
    handled = f", {left_for(crash.handled)}" if crash.handled else ""
    return clip(short_places(_brief(crash).said + handled, cwd), SAID)  # `show` has all of it


def left_for(handled: str) -> str:
    """
    >>> left_for("KeyError: 'a' (b.py:3)")
    "while KeyError: 'a' (b.py:3) was handled"
    """
    return f"while {handled} was handled"


def _brief(crash: CrashRecord) -> Brief:
    return brief(crash.exception.get("type", ""), crash.exception.get("message", ""))


def _places(crash: CrashRecord, cwd: str | None) -> list[str]:
    """Where it was raised; of what another process raised, also where that was asked for."""
    words = _brief(crash)
    inner, own = place_of(words, cwd), where(crash, cwd)
    inner = f"{words.raised} raised at {inner}" if inner and words.raised else inner
    if inner and is_library(crash.file):  # what Ray read for a call: nobody's line asked for it
        return [inner]
    return [inner, f"awaited at {own}" if own else ""] if inner else [own]


def place_of(words: Brief, cwd: str | None) -> str:
    return f"{short_path(words.file, cwd)}:{words.line} in {words.function}" if words.file else ""


def where(crash: CrashRecord, cwd: str | None) -> str:
    return f"{short_path(crash.file, cwd)}:{crash.line} in {crash.function}" if crash.file else ""


def clip(text: str, width: int | None, used: int = 0) -> str:
    """What fits beside the `used` columns.

    >>> clip("a long message", 12, 2), clip("a long message", None)
    ('a long me…', 'a long message')
    """
    if width is None or len(text) <= width - used:
        return text
    return text[: max(8, width - used) - 1] + "…"
