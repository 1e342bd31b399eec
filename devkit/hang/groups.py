"""Process groups whose collectives do not go on: who is missing from which, and who is in another one. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from devkit.hang.facts import Entry, GroupFacts, ProcessFacts
from devkit.hang.states import State

# All ranks give these the same sizes; of others each rank may give its own.
EQUAL_SIZES = frozenset({"all_reduce", "broadcast", "reduce", "allreduce", "_all_reduce"})
Key = tuple[str, str, str, tuple[int, ...]]


NAMELESS = ("", "undefined")  # descriptions, as torch has them of a group that was made without one


@dataclass(frozen=True)
class Group:
    """One process group, and the ranks of it that are known."""

    key: Key
    description: str
    members: Mapping[int, State]

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.key[3]

    @property
    def title(self) -> str:
        return self.description if self.description not in NAMELESS else self.key[0] or "default"

    def facts(self, rank: int) -> GroupFacts:
        own = self.members[rank].facts.groups
        return next(each for each in own if each.place == self.key[:3])


@dataclass(frozen=True)
class Stuck:
    """A collective of a group that some ranks are in and that has not gone on between the two samples."""

    kind: Literal["missing", "mismatch", "together"]
    group: Group
    seq: int
    p2p: bool
    waiting: tuple[int, ...]  # ranks that are in a collective of this group
    divergent: tuple[int, ...]  # ranks that are missing, or in another one than most
    said: Mapping[int, str]  # what each rank is in, or was
    age: float  # seconds that the first of them has waited

    @property
    def name(self) -> str:
        op = Counter(self.said[rank] for rank in self.waiting if rank not in self.divergent) or Counter(
            self.said[rank] for rank in self.waiting
        )
        what = op.most_common(1)[0][0].partition(" ")[0]
        return f"{what}{'' if self.p2p else f' #{self.seq}'} of group {self.group.title}"


def groups_of(states: Iterable[State]) -> list[Group]:
    """Every group of more than one rank."""
    members: dict[Key, dict[int, State]] = defaultdict(dict)
    titles: dict[Key, str] = {}
    for state in states:
        for group in state.facts.groups:
            if state.facts.rank is None or len(group.ranks) < 2:
                continue
            key = (*group.place, group.ranks)
            members[key][state.facts.rank] = state
            titles[key] = group.description
    return [Group(key, titles[key], found) for key, found in members.items()]


def stuck(group: Group, before: Mapping[str, ProcessFacts]) -> Stuck | None:
    """What holds this group up; None if nobody waits in it, or it went on since `before`."""
    waits = {rank: entry for rank in group.members if (entry := _unmoved(group, rank, before)) is not None}
    if not waits:
        return None
    if all(entry.p2p for entry in waits.values()):
        # Who has asked for its next transfer early and is at work meanwhile does not wait.
        waits = {rank: entry for rank, entry in waits.items() if not group.members[rank].moved}
        return _between_two(group, waits) if waits else None
    waits = {rank: entry for rank, entry in waits.items() if not entry.p2p}
    top = max(entry.seq for entry in waits.values())
    found = _mismatch(group, waits) or _behind(group, waits, top)
    age = max(entry.age for entry in waits.values())
    kind, seq, divergent = found
    return Stuck(kind, group, seq, False, tuple(sorted(waits)), divergent, _said(group, seq), age)


def _unmoved(group: Group, rank: int, before: Mapping[str, ProcessFacts]) -> Entry | None:
    """The collective that a rank waits in, if it did already in the earlier sample."""
    now = group.facts(rank).waiting
    earlier = before.get(group.members[rank].facts.id)
    same = next((each for each in earlier.groups if each.place == group.key[:3]), None) if earlier else None
    then = same.waiting if same else None
    return now if now and then and (now.seq, now.op, now.p2p) == (then.seq, then.op, then.p2p) else None


def _behind(
    group: Group, waits: Mapping[int, Entry], top: int
) -> tuple[Literal["missing", "together"], int, tuple[int, ...]]:
    """The ranks that have not begun the collective that the first of the waiting ones is in."""
    counts = {rank: _last(group, rank) for rank in group.ranks}
    absent = tuple(rank for rank in group.ranks if counts[rank] < top)
    if not absent:
        return "together", top, ()
    first = min(entry.seq for entry in waits.values())
    nearest = tuple(rank for rank in absent if counts[rank] < first)
    # All have begun the one that the last of them wait in: what was sent has not come to them.
    return ("missing", first, nearest) if nearest else ("together", first, ())


def _last(group: Group, rank: int) -> int:
    if rank not in group.members:
        return -1
    last = group.facts(rank).last
    return last.seq if last else 0


def _mismatch(group: Group, waits: Mapping[int, Entry]) -> tuple[Literal["mismatch"], int, tuple[int, ...]] | None:
    """The first number under which the ranks have done different things, and the ranks that are not as most are."""
    seen: dict[int, dict[int, str]] = defaultdict(dict)
    for rank in group.members:
        for entry in group.facts(rank).entries:
            if not entry.p2p:
                seen[entry.seq][rank] = _signature(entry)
    for seq in sorted(seen):
        signatures = seen[seq]
        if all(_is_done(group, rank, seq) for rank in group.members):
            continue  # whatever it was, it holds up nobody
        at_this = {rank for rank in waits if waits[rank].seq == seq}
        if len(set(signatures.values())) == 1 and len(at_this) > 1:
            signatures = {rank: _with_root(group.members[rank], signatures[rank]) for rank in sorted(at_this)}
        if len(set(signatures.values())) > 1:
            return "mismatch", seq, _odd(signatures)
    return None


def _is_done(group: Group, rank: int, seq: int) -> bool:
    return any(each.seq == seq and not each.p2p and each.done for each in group.facts(rank).entries)


def _signature(entry: Entry) -> str:
    return f"{entry.op} {elements(entry.sizes)} {entry.dtypes}" if entry.op in EQUAL_SIZES else entry.op


def elements(sizes: str) -> str:
    """How many there are in each tensor, which is what has to be equal: a number and a list of one go together.

    >>> elements("[8, 4], [2]"), elements("[]"), elements("[1]")
    ('32, 2', '1', '1')
    """
    found = re.findall(r"\[([\d, ]*)\]", sizes)
    return ", ".join(str(math.prod(int(each) for each in re.findall(r"\d+", one))) for one in found)


def _with_root(state: State, signature: str) -> str:
    """Whom the data comes from or goes to: the recorder does not know it, the call's arguments do."""
    call = state.facts.call
    roots = [f"{name}={call[name]}" for name in ("src", "dst", "group_src", "group_dst") if name in call]
    return " ".join([signature, *roots])


def _odd(signatures: Mapping[int, str]) -> tuple[int, ...]:
    """Those who differ from most; where there is no most, from the lowest rank."""
    counted = Counter(signatures[rank] for rank in sorted(signatures))
    common = counted.most_common(1)[0][0]
    if list(counted.values()).count(counted[common]) > 1:
        common = signatures[min(signatures)]
    return tuple(rank for rank in sorted(signatures) if signatures[rank] != common)


def _said(group: Group, seq: int) -> dict[int, str]:
    """What each rank did under this number, or last before it."""
    found: dict[int, str] = {}
    for rank in group.members:
        entries = [entry for entry in group.facts(rank).entries if not entry.p2p and entry.seq <= seq]
        if entries:
            found[rank] = entries[-1].said if entries[-1].seq == seq else f"{entries[-1].said} (#{entries[-1].seq})"
    return found


def _between_two(group: Group, waits: Mapping[int, Entry]) -> Stuck:
    """Ranks that wait in `send` or `recv`: who does not wait among those that they name is missing."""
    open_at = {rank: _open_transfers(group, rank) for rank in waits}
    peers = {peer for rank, found in open_at.items() for _, peer in found if peer != rank}
    absent = tuple(sorted(peers - set(waits)))
    said = {rank: entry.said for rank, entry in waits.items()}
    age = max(entry.age for entry in waits.values())
    seq = max(entry.seq for entry in waits.values())
    kind: Literal["missing", "mismatch", "together"] = "missing" if absent else "mismatch"
    unmet = [rank for rank in sorted(waits) if not _is_met(rank, open_at)]
    odd = absent or tuple(unmet or sorted(waits))[-1:]
    if peers and not absent and not unmet:
        kind, odd = "together", ()
    return Stuck(kind, group, seq, True, tuple(sorted(waits)), odd, said, age)


def _open_transfers(group: Group, rank: int) -> set[tuple[str, int]]:
    """Each as `("recv", 3)`, from the recorder; where that is silent of the other end, from the call's arguments."""
    entries = group.facts(rank).entries
    found = {(each.op, each.peer) for each in entries if each.p2p and not each.done and each.peer is not None}
    call = group.members[rank].facts.call
    ends = (("recv", "src"), ("send", "dst"))
    return found or {(op, int(call[name])) for op, name in ends if isinstance(call.get(name), int)}


def _is_met(rank: int, open_at: Mapping[int, set[tuple[str, int]]]) -> bool:
    """Whether each of its transfers has its counterpart at the other end."""
    opposite = {"send": "recv", "recv": "send"}
    return all((opposite[op], rank) in open_at[peer] for op, peer in open_at[rank] if peer in open_at)
