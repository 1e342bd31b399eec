"""Jobs as the hub tells of them: ranks of one group, each in its place. For tests and for the benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devkit.hang.answers import read_sample
from devkit.hang.case import PATIENCE
from devkit.hang.diagnose import diagnose
from devkit.hang.records import Verdict

Document = dict[str, Any]
TRAIN = "/job/train.py"
TORCH = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
RAY = "/v/lib/python3.11/site-packages/ray/_private/worker.py"
NOW = 1_000_000.0


def frames(*rows: tuple[str, int, str]) -> list[Document]:
    return [{"file": file, "line": line, "function": function} for file, line, function in rows]


def entry(
    seq: int,
    op: str = "all_reduce",
    *,
    done: bool = True,
    age: float = 20.0,
    sizes: Any = ((8, 4),),
    p2p: bool = False,
    peer: int | None = None,
) -> Document:
    return {
        "seq": seq,
        "p2p": p2p,
        "op": op,
        "peer": peer,
        "sizes": [list(each) for each in sizes],
        "dtypes": ["Float"],
        "state": "",
        "done": done,
        "age": age,
    }


def group(
    entries: Iterable[Document],
    ranks: Iterable[int],
    name: str = "0",
    description: str = "default_pg",
    world: str = "h:1",
) -> Document:
    return {
        "name": name,
        "description": description,
        "backend": "gloo",
        "world": world,
        "ranks": list(ranks),
        "entries": list(entries),
    }


def facts(rank: int | None, line: int, function: str = "step", **changes: Any) -> Document:
    """A process whose main thread stands at this line of the program, in a wait that the kernel calls a futex."""
    inner = changes.pop("inner", [])
    call, target, cpu = changes.pop("call_in", "futex"), changes.pop("target", ""), changes.pop("cpu", 1.0)
    rows = [*inner, (TRAIN, line, function), (RAY, 900, "main_loop")] if line else [(RAY, 900, "main_loop")]
    wait = {"call": call, "target": target} if target else {"call": call}
    return {
        "time": NOW, "rank": rank, "step": None, "phase": "", "groups": [], "call": None, "locks": [], "stops": [],
        "threads": [
            {"name": "MainThread", "frames": frames(*rows), "stopped": False, "state": "S", "cpu": cpu, "wait": wait}
        ],
        "process": {"state": "S", "cpu": cpu, "children_cpu": 0.0, "io": 0},
        **changes,
    }  # fmt: skip


def process(known: Document | None, rank: int | None, role: str = "Worker", **changes: Any) -> Document:
    number = 900 if rank is None else rank
    who = {
        "job_id": "01000000", "worker_id": f"{role}-{number}",
        "node_id": f"n{number // 8}", "node_ip": f"10.0.0.{number // 8}", "host": "h",
        "pid": 1000 + number, "role": role, "actor": "", "rank": rank,
    }  # fmt: skip
    return {"identity": who, "facts": known, "error": None if known else "no answer within 1.5 s", **changes}


def in_collective(
    rank: int, world: int, seq: int = 6, op: str = "all_reduce", line: int = 88, age: float = 20.0, **changes: Any
) -> Document:
    """A rank that waits in a collective."""
    entries = [*(entry(each, age=age + seq - each) for each in range(1, seq)), entry(seq, op, done=False, age=age)]
    known = facts(
        rank,
        line,
        inner=[(TORCH, 100, op)],
        groups=[group(entries, range(world))],
        call={"op": op, "group": "0", **changes.pop("call", {})},
        **changes,
    )
    return process(known, rank)


def elsewhere(rank: int, world: int, line: int, *, seq: int = 5, **changes: Any) -> Document:
    """A rank that has done `seq` collectives and is somewhere else in the program."""
    groups = [group([entry(each) for each in range(1, seq + 1)], range(world))]
    return process(facts(rank, line, groups=groups, **changes), rank)


def idle(rank: int, world: int, **changes: Any) -> Document:
    return process(facts(rank, 0, groups=[group([entry(5)], range(world))], **changes), rank)


def driver(**changes: Any) -> Document:
    return process(facts(None, 12, "main", inner=[(RAY, 7, "get")], **changes), None, "driver")


def answer(ranks: Iterable[Document], at: float = NOW, left: Iterable[Document] = ()) -> Document:
    return {"time": at, "ranks": list(ranks), "left": list(left)}


def verdict(
    first: Iterable[Document],
    last: Iterable[Document] | None = None,
    *,
    seconds: float = 2.0,
    patience: float = PATIENCE,
    **tables: Any,
) -> Verdict:
    """Of two samples; of the same one twice, when nothing moved."""
    before = list(first)
    left = tables.pop("left", ())
    now = before if last is None else list(last)
    return diagnose(
        read_sample(answer(before), **tables), read_sample(answer(now, NOW + seconds, left), **tables), patience
    )


def simulated(world: int, odd: int) -> list[Document]:
    """A large job in which one rank sleeps and all others wait for it, with the recorder's newest entries."""
    return [
        elsewhere(rank, world, 41, seq=7, call_in="clock_nanosleep") if rank == odd else in_collective(rank, world, 8)
        for rank in range(world)
    ]
