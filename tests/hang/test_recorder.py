"""What torch's flight recorder has of process groups: real entries of NCCL and of gloo, and the verdicts on them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import collectives
from devkit.debug.stack_groups import Frame
from devkit.hang.facts import CrashFacts
from tests.hang.jobs import NOW, RAY, TRAIN, driver, entry, facts, group, process, verdict

Document = dict[str, Any]

# Two ranks of torch 2.11 with NCCL on two GPUs: an all-reduce, three exchanges and two transfers from rank 0 to 1, each
# as a batch. "rest": all of it is through; "waits": then rank 1 receives, and rank 0 does not send; "plainwaits": that
# is through, too, and two transfers without a batch, and rank 1 receives once more.
NCCL: dict[str, list[Document]] = json.loads((Path(__file__).parent / "nccl_pipeline.json").read_text())
SECONDS = max(each["time_created_ns"] for each in NCCL["plainwaits 1"]) / 1e9 + 20
RANKS = (4, 6)  # of the job, those that the group has as 0 and 1


def told(name: str) -> list[Document]:
    return collectives.told(NCCL[name], RANKS, SECONDS)


def pipeline(name: str, line: int, **changes: Any) -> Document:
    """A rank of the pipeline at this line, with what its recorder had."""
    rank = RANKS[int(name[-1])]
    return process(facts(rank, line, groups=[group(told(name), RANKS, "2", "PIPELINE")], **changes), rank)


def test_a_pipeline_at_rest_waits_for_nobody() -> None:
    """Though the recorder calls each transfer of a batch scheduled, for ever."""
    for rank in (0, 1):
        assert {each["op"] for each in told(f"rest {rank}")} <= {"all_reduce", "send", "recv"}
        assert all(each["done"] for each in told(f"rest {rank}"))
    found = verdict(pipeline(f"rest {rank}", 0) for rank in (0, 1))
    assert found.kind == "idle", found


@pytest.mark.parametrize("state", ["waits", "plainwaits"])
def test_a_stage_that_does_not_send_is_named(state: str) -> None:
    """The call is over long before the GPU has what it waits for: only the recorder knows from whom it receives."""
    open_ = [each for each in told(f"{state} 1") if not each["done"]]
    assert [(each["op"], each["peer"], each["p2p"]) for each in open_] == [("recv", 4, True)]
    found = verdict([driver(), pipeline(f"{state} 0", 41, call_in="clock_nanosleep"), pipeline(f"{state} 1", 88)])
    assert (found.kind, found.culprit and (found.culprit.rank, found.culprit.line)) == ("missing", (4, 41)), found
    assert "recv of group PIPELINE" in found.sentence


def test_collectives_stay_behind_many_transfers() -> None:
    """A group may have both: how many collectives a rank has begun is known after any number of transfers."""
    sends = [{**each, "profiling_name": "nccl:send 0->1"} for each in NCCL["plainwaits 0"] if each["is_p2p"]]
    many = NCCL["rest 0"][:1] + [{**each, "p2p_seq_id": 10 + i} for i, each in enumerate(sends * 5)]
    assert [each["op"] for each in collectives.told(many, RANKS, SECONDS)].count("all_reduce") == 1


@pytest.mark.parametrize(
    ("ops", "kind", "odd"),
    [
        ((("recv", 6), ("recv", 4)), "mismatch", 6),
        ((("send", 6), ("send", 4)), "mismatch", 6),
        ((("send", 6), ("recv", 4)), "network", 4),
    ],
)
def test_both_ends_of_a_transfer(ops: Iterable[tuple[str, int]], kind: str, odd: int) -> None:
    ranks = [
        process(facts(rank, 88, groups=[group([entry(3, op, done=False, p2p=True, peer=peer)], RANKS)]), rank)
        for rank, (op, peer) in zip(RANKS, ops, strict=True)
    ]
    found = verdict([driver(), *ranks])
    assert (found.kind, found.culprit and found.culprit.rank) == (kind, odd), found
    assert kind == "network" or f"{next(iter(ops))[0]} " in found.sentence


def test_a_stage_that_has_asked_early_for_its_next_input_is_at_work() -> None:
    """Each of the two receives from the other, but only one of them waits."""

    def ranks(line: int, cpu: float) -> list[Document]:
        early, waits = (entry(3, "recv", done=False, p2p=True, peer=peer, age=3.0) for peer in RANKS)
        first = process(facts(4, 88, groups=[group([waits], RANKS)]), 4)
        return [driver(), first, process(facts(6, line, groups=[group([early], RANKS)], cpu=cpu), 6)]

    found = verdict(ranks(60, 1.0), ranks(61, 3.0))
    assert not found.hang and "rank 6 is working" in found.sentence, found
    assert not verdict(ranks(60, 1.0)).decided  # a transfer may be young


class Listed:
    """A process group, as torch.distributed lists it."""

    group_name, group_desc = "0", "default_pg"


def recorder(
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    entries: Iterable[Document],
    numbers: Mapping[int, int] = MappingProxyType({0: 0, 1: 1}),
) -> list[Document]:
    """What is told of one group that torch lists, whose recorder has these entries."""
    listed = Listed()
    world = SimpleNamespace(
        pg_map={listed: (config, None)}, pg_group_ranks={listed: numbers}, pg_backend_config={listed: config}
    )
    core = SimpleNamespace(_dump_fr_trace_json=lambda: json.dumps({"entries": list(entries)}))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=core)))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    return collectives.groups()


def raw(title: str, number: int, *, done: bool = True, name: str = "0", p2p: int = 0) -> Document:
    return {
        "profiling_name": title, "collective_seq_id": number, "p2p_seq_id": p2p, "pg_id": 0,
        "is_p2p": "->" in title or "<-" in title, "process_group": [name, ""],
        "state": "completed" if done else "scheduled", "retired": done, "time_created_ns": 0,
    }  # fmt: skip


def test_what_a_cuda_graph_captured_is_over_once_a_later_collective_is() -> None:
    """Its batch has no end in the recorder."""
    captured = [raw("nccl:send 0->1", 0, p2p=1, done=False)]
    later = [raw("nccl:all_reduce", 1, p2p=1), raw("nccl:all_reduce", 2, p2p=1, done=False)]
    assert [each["op"] for each in collectives.told(captured, RANKS, SECONDS)] == ["send"]
    told = collectives.told(captured + later, RANKS, SECONDS)
    assert [(each["op"], each["seq"]) for each in told] == [("all_reduce", 1), ("all_reduce", 2)]


def test_a_batch_whose_transfers_are_forgotten_is_no_collective() -> None:
    entries = [raw("nccl:all_reduce", 1, p2p=5), raw("nccl:coalesced", 1, p2p=6, done=False)]
    assert [(each["p2p"], each["seq"]) for each in collectives.told(entries, RANKS, SECONDS)] == [(False, 1), (True, 6)]
    whole = [raw("nccl:coalesced", 1, done=False)]  # as a torch has it that does not record what is within
    assert [(each["p2p"], each["seq"]) for each in collectives.told(whole, RANKS, SECONDS)] == [(False, 1)]


def test_each_backend_of_a_group_counts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [raw("gloo:barrier", 7, done=False), raw("nccl:all_gather", 900)]
    found = recorder(monkeypatch, "cpu:gloo,cuda:nccl", entries)
    assert [(each["backend"], [one["seq"] for one in each["entries"]]) for each in found] == [
        ("gloo", [7]),
        ("nccl", [900]),
    ]
    strange = recorder(monkeypatch, "cpu:gloo,npu:hccl", [raw("all_gather", 5)])
    assert [(each["backend"], len(each["entries"])) for each in strange] == [("gloo", 0), ("hccl", 1)]
    only = recorder(monkeypatch, "cuda:nccl", [raw("nccl:all_gather", 900)])
    assert [(each["backend"], len(each["entries"])) for each in only] == [("nccl", 1)]
    [ordered] = recorder(monkeypatch, "cuda:nccl", [raw("nccl:recv 1<-0", 0, p2p=1)], {2: 0, 0: 1, 1: 2})
    assert (ordered["ranks"], ordered["entries"][0]["peer"]) == ([0, 1, 2], 2)


def test_what_an_ended_group_has_left_open_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [raw("gloo:barrier", 3, done=False, name="7"), raw("gloo:barrier", 3, done=False, name="")]
    assert [each["name"] for each in recorder(monkeypatch, "gloo", entries)] == ["0", "gloo 0"]


def test_a_rank_that_misses_a_barrier_on_the_host_has_done_as_much_on_the_device() -> None:
    def rank(number: int, line: int, hosts: list[Document], **changes: Any) -> Document:
        on_device = {**group([entry(900, "all_gather")], [0, 1]), "backend": "nccl"}
        return process(facts(number, line, groups=[group(hosts, [0, 1]), on_device], **changes), number)

    waits = rank(0, 88, [entry(6), entry(7, "barrier", done=False)])
    found = verdict([driver(), waits, rank(1, 41, [entry(6)], call_in="clock_nanosleep")])
    assert (found.kind, found.culprit and found.culprit.rank) == ("missing", 1), found


# ---- groups that torch.distributed does not list


BARE = """
import datetime, json, sys, threading, time
import torch.distributed as dist
from devkit.debug.inworker import collectives

folder, rank = sys.argv[1], int(sys.argv[2])
bare = dist.ProcessGroupGloo(dist.FileStore(f"{folder}/bare", 2), rank, 2, datetime.timedelta(seconds=60))
dist.init_process_group("gloo", init_method=f"file://{folder}/listed-{rank}", world_size=1, rank=0)
if rank == 1:
    print("there", flush=True)
    sys.stdin.readline()
waits = threading.Thread(target=lambda: bare.barrier().wait())
waits.start()
deadline = time.monotonic() + 30
while rank == 0 and len(collectives.groups()) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps(collectives.groups()), flush=True)
waits.join()
while len(collectives.groups()) > 1 and time.monotonic() < deadline:  # the recorder hears of it a little later
    time.sleep(0.01)
print(json.dumps(collectives.groups()), flush=True)
"""


def test_a_group_of_a_program_s_own_making_is_told_while_something_waits_in_it(tmp_path: Path) -> None:
    command = (sys.executable, "-c", BARE, str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "1"], **pipes) as late, subprocess.Popen([*command, "0"], **pipes) as first:
        assert late.stdout and late.stdin and first.stdout
        assert late.stdout.readline() == "there\n"
        [listed, bare] = json.loads(first.stdout.readline())
        late.stdin.write("\n")
        late.stdin.flush()
        after = json.loads(first.stdout.readline())
    assert (first.returncode, late.returncode) == (0, 0)
    assert (listed["ranks"], bare["ranks"]) == ([0], [])
    assert [(each["op"], each["done"]) for each in bare["entries"]] == [("barrier", False)]
    assert [each["ranks"] for each in after] == [[0]]


def crossing(engine: Document) -> list[Document]:
    """Two teams: the actor's rank 0 waits for its rank 1, and that for the engine, in a group that is not listed."""
    bare = {**group([entry(3, "barrier", done=False)], [], "gloo 4", ""), "world": ""}
    own = [entry(5)]
    sender = process(facts(1, 61, groups=[group(own, [0, 1]), bare]), 1, "ActorWorker")
    waits = process(
        facts(0, 62, groups=[group([*own, entry(6, "all_gather", done=False)], [0, 1])], call={"op": "all_gather"}),
        0,
        "ActorWorker",
    )
    return [driver(), sender, waits, engine]


def engine(line: int, **changes: Any) -> Document:
    return process(facts(0, line, groups=[group([entry(1)], [0], world="h:2")], **changes), 0, "RolloutWorker")


def test_who_waits_for_an_engine_that_starts_is_not_to_blame() -> None:
    found = verdict(crossing(engine(71, cpu=1.0)), crossing(engine(71, cpu=2.9)))
    assert not found.hang and "RolloutWorker" in found.sentence, found


def test_who_keeps_another_team_waiting_is_named() -> None:
    found = verdict(crossing(engine(71, call_in="clock_nanosleep")))
    assert found.hang and found.culprit and (found.culprit.role, found.culprit.line) == ("RolloutWorker", 71), found
    assert "ActorWorker ranks 0,1 and the driver wait for it" in found.sentence
    found = verdict(crossing(engine(71, call_in="clock_nanosleep"))[1:])
    assert "RolloutWorker rank 0" in found.sentence and "and ActorWorker ranks 0,1 wait for it" in found.sentence


def by_itself(function: str, inner: str, **changes: Any) -> Document:
    """A process that is no rank."""
    return process(facts(None, 12, function, **changes), None, inner)


BYSTANDERS = {
    "nobody": [],
    "an engine with nothing to do": [engine(0)],
    "a driver that sleeps": [by_itself("main", "driver", call_in="clock_nanosleep")],
    "an actor that waits to be asked": [by_itself("serve", "Reward")],
    "an actor that looks around": [by_itself("serve", "Reward", call_in="clock_nanosleep")],
}


@pytest.mark.parametrize("bystanders", BYSTANDERS)
def test_where_nobody_else_has_a_cause_the_rank_is_told_with_its_group(bystanders: str) -> None:
    _, *teams, _ = crossing(engine(0))
    found = verdict([*BYSTANDERS[bystanders], *teams])
    assert (found.kind, found.culprit and (found.culprit.role, found.culprit.rank)) == ("missing", ("ActorWorker", 1))
    assert found.decided and "ActorWorker rank 0 waits for it in all_gather #6" in found.sentence, found
    assert "waits in barrier of a process group created without torch.distributed" in found.sentence


def test_a_driver_that_looks_around_explains_nothing() -> None:
    _, *teams, _ = crossing(engine(0))
    before, after = (process(facts(None, line, "main", cpu=float(line)), None, "driver") for line in (1, 2))
    assert verdict([before, *teams], [after, *teams]).kind == "missing"


def test_a_rank_that_sleeps_beside_a_group_of_another_thread_sleeps() -> None:
    _, sender, waits, other = crossing(engine(71, call_in="clock_nanosleep"))
    sender["facts"]["threads"][0]["wait"] = {"call": "clock_nanosleep"}
    found = verdict([sender, waits, other])
    assert (found.kind, found.culprit and found.culprit.line) == ("missing", 61) and "it sleeps at" in found.sentence


def test_all_wait_in_groups_that_are_not_listed() -> None:
    _, sender, _, _ = crossing(engine(0))
    asks = process(facts(0, 62, inner=[(RAY, 7, "get")]), 0, "ActorWorker")  # its rank is lower, and it is not told
    found = verdict([driver(), asks, sender])
    assert (found.kind, found.culprit and found.culprit.rank, found.decided) == ("missing", 1, True), found
    assert "which does not show who else has to join" in found.sentence


def test_a_rank_that_raised_is_told_though_the_others_wait_in_an_unlisted_group() -> None:
    bare = [group([entry(3, "all_gather", done=False)], [], "gloo 4", "")]
    there = [process(facts(rank, 88, groups=bare, call={"op": "all_gather"}), rank) for rank in (0, 2)]
    crash = CrashFacts("c1", "Worker-1", "Worker", 1, "ValueError: bad", Frame(TRAIN, 70, "load"), NOW - 9, None)
    found = verdict([driver(), *there, process(facts(1, 0), 1)], crashes=[crash])
    assert (found.kind, found.culprit and (found.culprit.rank, found.culprit.line)) == ("raised", (1, 70)), found
    asleep = process(facts(1, 41, call_in="clock_nanosleep"), 1)
    found = verdict([driver(), *there, asleep])
    assert (found.kind, found.culprit and (found.culprit.rank, found.culprit.line)) == ("missing", (1, 41)), found


def test_an_agent_that_knows_no_peers_is_understood() -> None:
    known = entry(1, "recv", done=False, p2p=True)
    del known["peer"]
    waits = process(facts(0, 21, groups=[group([known], [0, 1])], call={"op": "recv", "src": 1}), 0)
    found = verdict([waits, process(facts(1, 22, groups=[group([], [0, 1])], call_in="clock_nanosleep"), 1)])
    assert (found.kind, found.culprit and found.culprit.rank) == ("missing", 1), found
