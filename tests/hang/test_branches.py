"""Collectives of several groups in which each waits for another: who makes a call that not all of its group come to."""

from __future__ import annotations

from devkit.hang.records import Verdict
from tests.hang.jobs import TORCH, TRAIN, Document, driver, entry, facts, group, process, verdict

IF = "counts.max() > LIMIT and self.is_head"


def rank(number: int, group_of: list[int], name: str, line: int, **changes: str) -> Document:
    """One that has done five collectives of all four ranks and waits in a sixth, or in one of its replica's."""
    every = [entry(each) for each in range(1, 6)]
    waits = entry(6 if name == "0" else 1, "all_gather" if name == "0" else "broadcast", done=False)
    groups = [group([*every, waits] if name == "0" else every, range(4))]
    groups += [group([waits], group_of, name, f"pair {name}")] if name != "0" else []
    groups += [group([], group_of, str(1 + number // 2), f"pair {1 + number // 2}")] if name == "0" else []
    known = facts(number, line, "Rank.step", inner=[(TORCH, 9, "op")], groups=groups, call={"op": "op", "group": name})
    at = {"file": TRAIN, "line": line, "function": "Rank.step"}
    under = {"if": changes["under"], "values": {"self.is_head": changes["is_head"]}} if "under" in changes else None
    said = {"at": at, "text": "gather()", "values": {}, "under": under}
    stack = {"thread": "MainThread", "lines": [said]}
    return process({**known, "statements": [stack], "keeps": {"is_head": changes["is_head"]}}, number)


def heads(*, under: str = IF, others: str = "False") -> Verdict:
    """Ranks 0 and 2 gather in the group of all, 1 and 3 wait for them in their pairs."""
    ranks = [
        rank(each, [0, 1] if each < 2 else [2, 3], "0", 65, is_head="True", under=under)
        if each % 2 == 0
        else rank(each, [0, 1] if each < 2 else [2, 3], str(1 + each // 2), 75, is_head=others)
        for each in range(4)
    ]
    return verdict([driver(), *ranks], patience=1.0)


def test_the_call_that_only_some_ranks_come_to_is_named_first_and_not_who_waits_for_them() -> None:
    found = heads()
    assert found.kind == "mismatch" and found.sentence == (
        f"mismatched collectives: ranks 0,2 wait in all_gather #6 of group default_pg at {TRAIN}:65 in Rank.step, "
        f"under `if {IF}`, and self.is_head is True there and False in ranks 1,3: who does not pass that never comes "
        f"to it; Worker rank 1 waits in broadcast #1 of group pair 1 at {TRAIN}:75 in Rank.step; "
        f"Worker rank 3 waits in broadcast #1 of group pair 2 at {TRAIN}:75 in Rank.step"
    ), found.sentence
    assert found.culprit is not None and (found.culprit.rank, found.culprit.line) == (0, 65)


def test_of_equal_ones_nobody_is_to_blame() -> None:
    found = heads(others="True")
    assert found.culprit is None and found.sentence == (
        f"mismatched collectives: ranks 0,2 wait in all_gather #6 of group default_pg at {TRAIN}:65 in Rank.step, "
        f"while Worker rank 1 waits in broadcast #1 of group pair 1 at {TRAIN}:75 in Rank.step, and "
        f"Worker rank 3 waits in broadcast #1 of group pair 2 at {TRAIN}:75 in Rank.step: they use the groups in "
        "different orders, or not all of a group make its call"
    ), found.sentence


def test_one_that_is_alone_in_another_group_is() -> None:
    ranks = [rank(each, [0, 1], "0", 65, is_head="True") for each in (0, 2, 3)]
    alone = rank(1, [0, 1], "1", 75, is_head="True")
    found = verdict([driver(), *ranks, alone], patience=1.0)
    assert found.sentence.startswith("mismatched collectives: Worker rank 1 waits in broadcast #1 of")
    assert found.culprit is not None and found.culprit.rank == 1
