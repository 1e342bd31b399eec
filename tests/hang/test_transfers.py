"""Two ranks that send to and receive from each other, out of step or crossed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hang.jobs import TORCH, Document, driver, facts, process, verdict


def end(rank: int, op: str, line: int, **call: Any) -> Document:
    inner = [(TORCH, 2753, op)]
    return process(facts(rank, line, f"Link.{op}", inner=inner, call={"op": op, **call}), rank, "Node")


def test_a_send_and_a_receive_with_other_tags() -> None:
    sends = end(0, "send", 28, dst=1, tag=22, group="0")  # as torch's frames have it
    found = verdict([driver(), sends, end(1, "recv", 31, src=0, tag=21)], seconds=12.0)
    assert found.kind == "mismatch" and found.sentence == (
        "mismatched transfers: Node rank 0 sends to rank 1 with tag 22 at /job/train.py:28 in Link.send, while "
        "Node rank 1 receives from rank 0 with tag 21 at /job/train.py:31 in Link.recv: the tags differ"
    )


def test_who_receives_from_anybody_is_the_other_end() -> None:
    found = verdict([driver(), end(0, "send", 28, dst=1, tag=2), end(1, "recv", 31, src=None, tag=1)], seconds=12.0)
    assert "Node rank 1 receives from any rank with tag 1" in found.sentence, found.sentence


def test_both_send_and_both_receive() -> None:
    found = verdict([driver(), end(0, "send", 28, dst=1, tag=0), end(1, "send", 28, dst=0, tag=0)], seconds=12.0)
    assert found.kind == "mismatch" and found.sentence.endswith("both send, and neither receives")
    found = verdict([driver(), end(0, "recv", 31, src=1, tag=0), end(1, "recv", 31, src=0, tag=0)], seconds=12.0)
    assert found.sentence.endswith("both receive, and neither sends")


def test_transfers_of_two_groups_are_not_one() -> None:
    ends = [end(0, "send", 28, dst=1, tag=2, group="0"), end(1, "recv", 31, src=0, tag=1, group="3")]
    assert "mismatched" not in verdict([driver(), *ends], seconds=12.0).sentence


@pytest.mark.parametrize("dst", [1, 2])
def test_nothing_is_mismatched_in_a_transfer_that_may_come_through_or_is_somebody_elses(dst: int) -> None:
    found = verdict([driver(), end(0, "send", 28, dst=dst, tag=7), end(1, "recv", 31, src=0, tag=7)], seconds=12.0)
    assert "mismatched" not in found.sentence


def group(*ranks: int) -> Document:
    return {"name": "0", "description": "default_pg", "backend": "gloo", "world": "w", "ranks": ranks, "entries": []}


def test_who_waits_for_a_rank_of_another_role_that_has_returned() -> None:
    call, inner = {"op": "recv", "src": 0, "tag": 0}, [(TORCH, 2799, "recv")]
    waits = process(facts(1, 76, "Engine.receive", call=call, inner=inner, groups=[group(0, 1)]), 1, "Engine")
    returned = process(facts(0, None, groups=[group(0, 1)]), 0, "Trainer")
    found = verdict([driver(), waits, returned], seconds=12.0)
    assert found.kind == "missing" and found.sentence == (
        "Trainer rank 0 has not reached the send for it: it is idle, and Engine rank 1 waits in recv at "
        "/job/train.py:76 in Engine.receive"
    )


def test_a_ring_in_which_all_send_first() -> None:
    ring = [end(rank, "send", 28, dst=(rank + 1) % 3, tag=0) for rank in range(3)]
    for each in ring:
        each["facts"]["groups"] = [group(0, 1, 2)]
    found = verdict([driver(), *ring], seconds=12.0)
    assert found.kind == "missing", found.sentence
    assert found.sentence.startswith("Node rank 1 has not reached the receive for it: it is in send"), found.sentence


def test_a_transfer_whose_other_end_nobody_knows() -> None:
    found = verdict([driver(), end(1, "recv", 31, src=None, tag=0)], seconds=12.0)
    assert found.kind == "missing" and "1 ranks" not in found.sentence
    assert "Node rank 1 receives from any rank at /job/train.py:31 in Link.recv" in found.sentence, found.sentence


def test_two_ends_that_are_there_are_cut_off() -> None:
    found = verdict([driver(), end(0, "send", 28, dst=1, tag=7), end(1, "recv", 31, src=0, tag=7)], seconds=12.0)
    assert found.kind == "network" and "Node rank 0 sends to rank 1 with tag 7" in found.sentence, found.sentence
