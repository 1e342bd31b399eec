"""The parts of the doctor on their own: links, rounds, a rank that dies, the wire, commands and what they ask for."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.doctor import travel
from devkit.doctor.cluster import BOOT
from devkit.doctor.decode import decode
from devkit.doctor.onnode import links
from devkit.doctor.onnode.driver import judged, rounds
from devkit.doctor.onnode.facts import Interface, NodeFacts, Pair
from devkit.doctor.onnode.links import KEY_LENGTH, Listener, reach, stream
from devkit.doctor.onnode.machine import shown
from devkit.doctor.onnode.network import holder, look_up
from devkit.doctor.onnode.probe import Question, at_once, gather
from devkit.doctor.onnode.rank import Rank
from devkit.doctor.onnode.retriever import CANARIES
from devkit.doctor.onnode.retriever import ask as retriever_of
from devkit.doctor.plan import Demand, Room, place
from devkit.doctor.rules.check_network import matching
from devkit.doctor.training import wanted, without_gpus
from tests.doctor.scenes import facts, with_gpus
from tests.pace import stretched
from tests.trainer.retrievers import serving
from tests.trainer.search_stub import retriever

KEY = b"k" * KEY_LENGTH
HERE = Pair("a", "b", "127.0.0.1")


# --- links


def test_a_link_is_measured() -> None:
    listener = Listener(KEY)
    try:
        seen = stream(reach(HERE, listener.port, KEY), listener.port, KEY)
    finally:
        listener.close()
    assert seen.error == ""
    assert seen.latency_ms and seen.latency_ms > 0
    assert seen.mb_per_s and seen.mb_per_s > 1 and seen.segments > 10


def test_a_listener_answers_only_who_knows_the_key() -> None:
    listener = Listener(KEY)
    try:
        seen = reach(HERE, listener.port, b"x" * KEY_LENGTH)
    finally:
        listener.close()
    assert seen.latency_ms is None
    assert seen.error.startswith(f"port {listener.port}: ")


def test_strangers_at_a_listener_are_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST_CONNECTIONS", 2)
    listener = Listener(KEY)
    try:
        with ExitStack() as stack:
            at = ("127.0.0.1", listener.port)
            first, _ = (stack.enter_context(socket.create_connection(at, timeout=stretched(10))) for _ in range(2))
            for _ in range(3):
                with socket.create_connection(at, timeout=stretched(10)) as late:
                    assert late.recv(1) == b""
            first.sendall(KEY + b"e" + b"x")
            assert first.recv(1) == b"x"
    finally:
        listener.close()


def test_a_closed_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert reach(HERE, port, KEY).error == f"port {port}: connection refused"


@given(st.integers(0, 14), st.integers(2, 12))
def test_in_a_round_each_node_takes_part_once(count: int, most: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    dealt = rounds(nodes, most)
    for matches in dealt:
        ends = [end for match in matches for end in match]
        if count <= most:
            assert len(ends) == len(set(ends))
        assert len({source for source, _ in matches}) == len(matches)
    pairs = [match for matches in dealt for match in matches]
    assert len(pairs) == len(set(pairs))
    if count <= most:
        assert set(pairs) == {(a, b) for a in nodes for b in nodes if a != b}
    else:
        assert {source for source, _ in pairs} == set(nodes)


# --- probes


def test_a_probe_that_fails_or_hangs_costs_its_own_fact_alone() -> None:
    import threading
    import time

    never = threading.Event()
    probes = {"good": lambda: 1, "bad": lambda: 1 // 0, "late": never.wait}
    try:
        found, failed = at_once(probes, time.monotonic() + 0.3)
    finally:
        never.set()
    assert found == {"good": 1}
    assert failed["late"] == "took too long"
    assert failed["bad"].startswith("ZeroDivisionError")


def test_only_named_variables_are_shown() -> None:
    assert shown({"WANDB_API_KEY": "secret", "RAY_AUTH_TOKEN": "secret", "NCCL_DEBUG": "INFO"}) == {
        "NCCL_DEBUG": "INFO"
    }


def test_who_holds_a_port_is_found() -> None:
    import os

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert holder(server.getsockname()[1]).startswith(f"pid {os.getpid()}: ")


def test_look_ups_that_do_not_end_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    import time

    answer = threading.Event()
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: answer.wait() and ("late", "0"))
    [lookup] = look_up(("10.77.0.9",), time.monotonic() + 0.2)
    answer.set()
    assert not lookup.finished and lookup.name == ""


names = st.text("abcdef012", min_size=1, max_size=4)


@given(names, st.lists(names, max_size=4))
def test_nccl_takes_prefixes_and_gloo_names(wanted_name: str, there: list[str]) -> None:
    found = tuple(Interface(name, True, False, ()) for name in there)
    assert [i.name for i in matching(wanted_name, found, exact=False)] == [
        n for n in there if n.startswith(wanted_name)
    ]
    for exact, value in ((True, wanted_name), (False, f"={wanted_name}")):
        assert [i.name for i in matching(value, found, exact=exact)] == [n for n in there if n == wanted_name]
    avoided = matching(f"^{wanted_name}", found, exact=False)
    assert [i.name for i in avoided] == [n for n in there if not n.startswith(wanted_name)]


# --- the wire


@given(st.dictionaries(st.text(), st.text()), st.floats(allow_nan=False), st.none() | st.floats(0, 1e6))
def test_facts_survive_the_wire(variables: dict[str, str], seconds: float, latency: float | None) -> None:
    whole = replace(facts(3, **with_gpus(4)), environment=variables)
    assert decode(NodeFacts, json.loads(json.dumps(asdict(whole)))) == whole
    pair = Pair("a", "b", "c", latency_ms=latency, mb_per_s=seconds)
    assert decode(Pair, json.loads(json.dumps(asdict(pair)))) == pair


def test_fields_of_another_devkit_do_no_harm() -> None:
    assert decode(Pair, {"source": "a", "target": "b", "address": "c", "colour": "red"}) == Pair("a", "b", "c")


def test_what_travels_imports_the_standard_library_alone() -> None:
    import ast
    import sys

    allowed = {*sys.stdlib_module_names, "ray", "torch"}
    for module, text in travel.sources().items():
        for statement in ast.walk(ast.parse(text)):
            imported = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            if isinstance(statement, ast.ImportFrom) and statement.level == 0:
                imported = [statement.module or ""]
            assert {name.partition(".")[0] for name in imported} <= allowed, module


def test_the_program_fits_into_a_job() -> None:
    # A job's environment goes through a worker's command line: 128 KiB is what Linux takes in a word.
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(travel.driver().encode(), 9))
    assert len(packed) < 60_000
    assert "DEVKIT_DOCTOR" in BOOT


# --- ranks


def test_a_rank_that_dies_says_its_last_words() -> None:
    rank = Rank("import sys; print('libcudart.so.12: cannot open', file=sys.stderr); sys.exit(3)", {"PATH": "/bin"})
    try:
        answer = rank.answer(20.0)
    finally:
        rank.close()
    assert answer["status"] == "failed"
    assert answer["detail"].startswith("the process ended with 3")


def test_a_rank_that_says_nothing_is_late() -> None:
    rank = Rank("import sys; sys.stdin.read()", {"PATH": "/bin"})
    try:
        assert rank.run({"seconds": 0.2})["status"] == "late"
    finally:
        rank.close()


DONE = {"status": "done", "init_s": 0.5, "mb_per_s": 800.0, "transport": "", "import_errors": {}}


def test_the_slowest_rank_is_the_figure() -> None:
    verdict = judged("gloo", {"a": DONE, "b": {**DONE, "init_s": 0.7, "mb_per_s": 300.0}})
    assert (verdict.status, verdict.init_s, verdict.mb_per_s) == ("done", 0.7, 300.0)


def test_the_rank_that_failed_is_named_before_those_that_waited() -> None:
    late = {"status": "late", "detail": "no answer within 3.0 s"}
    verdict = judged("gloo", {"a": late, "b": {"status": "failed", "detail": "gloo: x"}, "c": DONE})
    assert (verdict.status, verdict.odd, verdict.detail) == ("failed", ("b",), "gloo: x")
    assert judged("gloo", {"a": late, "b": DONE}).odd == ("a",)


# --- commands


def test_what_a_verl_command_asks_for(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "N=2\npython3 -m verl.trainer.main_ppo trainer.nnodes=$N trainer.n_gpus_per_node=8 \\\n"
        "  actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.tensor_model_parallel_size=4\n"
    )
    expected = Demand("verl.trainer.main_ppo", f"{script}:2", 2, 8, True, 1.0, 1.0, 4, "sglang")
    assert wanted(["bash", str(script)]).demands == (expected,)
    assert wanted([str(script)]).demands == (expected,)


def test_the_retriever_of_a_command_that_searches() -> None:
    def urls(*words: str, module: str = "trainer.main_ppo") -> list[tuple[str, int]]:
        return [(each.retriever, each.topk) for each in wanted(["python", "-m", module, *words]).demands]

    url = "http://10.0.0.1:8000/retrieve"
    assert urls("agent.env=search", f"retriever.url={url}", "retriever.topk=5") == [(url, 5)]
    assert urls("agent.env=search", "retriever.serve=wiki.jsonl") == urls(f"retriever.url={url}") == [("", 3)]
    verl = "verl.trainer.main_ppo"
    assert urls("max_turns=2", module=verl) == [("http://127.0.0.1:8000/retrieve", 3)]
    assert urls("max_turns=2", f"retriever.url={url}", "retriever.topk=4", module=verl) == [(url, 4)]
    assert urls("max_turns=2", "do_search=false", module=verl) == urls(module=verl) == [("", 3)]


def test_a_retriever_is_looked_at_as_the_node_reaches_it() -> None:
    with retriever(lambda query: [f"{query}\nof {query}"]) as one, retriever(lambda query: ["b"]) as other:
        seen = [retriever_of(each.url, 3, stretched(5.0)) for each in (one, one, other)]
        assert [each.problem for each in seen] == ["", "", ""] and one.queries == [*CANARIES, *CANARIES]
        assert seen[0].found == seen[1].found != seen[2].found and seen[0].digest == ""
        one.status = 500
        assert retriever_of(one.url, 3, stretched(5.0)).problem.startswith("it answered 500")
        other.answers = False
        assert retriever_of(other.url, 3, 0.5).problem == "no answer within 0.5 s"
    assert retriever_of(one.url, 3, stretched(5.0)).problem == "Connection refused"
    assert "not known" in retriever_of("http://nowhere.invalid/retrieve", 3, stretched(5.0)).problem
    facts = gather(Question(stretched(5.0), retrievers=((one.url, 3),)))
    assert [each.problem for each in facts.retrievers] == ["Connection refused"]


def test_our_own_retriever_says_what_it_holds() -> None:
    with serving() as url:
        seen = retriever_of(url, 1, stretched(5.0))
    assert (seen.problem, seen.digest, seen.passages) == ("", "d", 4) and seen.found


def test_defaults_are_the_trainers_own() -> None:
    [verl] = wanted(["python3", "-m", "verl.trainer.main_ppo"]).demands
    assert (verl.nodes, verl.per_node, verl.tensor_parallel) == (1, 8, 2)
    [ours] = wanted(["python", "-m", "trainer.main_ppo", "trainer.n_gpus_per_node=4"]).demands
    assert (ours.nodes, ours.per_node, ours.gpus, ours.tensor_parallel, ours.engine) == (1, 4, True, 1, "hf")
    assert not without_gpus(ours, any_gpus=False).gpus  # a CPU slot per rank


def test_the_engines_of_our_trainer_are_on_the_ranks_that_generate() -> None:
    words = ["trainer.nnodes=2", "trainer.n_gpus_per_node=4", "actor_rollout_ref.rollout.name=sglang"]
    mapping = ["trainer.device_mapping.actor=[0,1,4,5]", "trainer.device_mapping.rollout=[2,3,6,7]"]
    [together] = wanted(["python", "-m", "trainer.main_ppo", *words]).demands
    [apart] = wanted(["python", "-m", "trainer.main_ppo", *words, *mapping]).demands
    [across] = wanted(
        ["python", "-m", "trainer.main_ppo", *words, *mapping, "actor_rollout_ref.rollout.tensor_model_parallel_size=4"]
    ).demands
    rooms = [Room(name, 4, 8, 4, 8) for name in "ab"]
    groups = [[node.groups for node in place(asked, rooms).nodes] for asked in (together, apart, across)]
    assert groups == [[("0-1", "2-3"), ("4-5", "6-7")], [("2-3",), ("6-7",)], [("2,3,6,7...",), ("2,3,6,7...",)]]


def test_verl_gets_gpus_and_a_trainer_of_ours_none_where_there_are_none() -> None:
    [verl] = wanted(["python3", "-m", "verl.trainer.main_ppo"]).demands
    assert without_gpus(verl, any_gpus=False).gpus


@pytest.mark.parametrize(
    ("words", "gap"),
    [
        (["python", "train.py"], "command runs neither trainer.main_ppo nor verl.trainer.main_ppo"),
        (["python -m verl.trainer.main_ppo trainer.nnodes=$N"], "trainer.nnodes=${N}"),
        (["python", "-m", "verl.trainer.main_ppo", "trainer.nnodes=0"], "trainer.nnodes=0"),
        (["python", "-m", "verl.trainer.main_ppo", "trainer.nnodes=two"], "trainer.nnodes=two"),
    ],
)
def test_what_cannot_be_told_is_said(words: list[str], gap: str) -> None:
    found = wanted(words)
    assert found.demands == ()
    assert len(found.gaps) == 1 and gap in found.gaps[0]


sizes = st.integers(0, 10)


@given(st.lists(st.tuples(sizes, sizes), max_size=6), st.integers(1, 5), st.integers(1, 8), st.integers(1, 8))
def test_a_plan_counts_what_is_lacking(nodes: list[tuple[int, int]], count: int, each: int, group: int) -> None:
    rooms = [Room(f"n{i}", gpus, cpus, gpus, cpus) for i, (gpus, cpus) in enumerate(nodes)]
    asked = Demand("verl.trainer.main_ppo", "x:1", count, each, True, tensor_parallel=group)
    plan = place(asked, rooms)
    # every rank has one place, and no node is used twice
    assert [rank for node in plan.nodes for rank in range(node.first_rank, node.first_rank + node.ranks)] == list(
        range(count * each)
    )
    used = [node.node for node in plan.nodes if node.node]
    assert len(used) == len(set(used)) == min(count, len(rooms))
    # it fits if and only if enough nodes have a whole share
    whole = sum(gpus >= each and cpus >= each for gpus, cpus in nodes)
    assert plan.fits == (whole >= count)
    # and every tensor-parallel group is on some node
    if group > 1 and count * each % group == 0:
        starts = {int(text.partition("-")[0]) for node in plan.nodes for text in node.groups}
        assert starts == set(range(0, count * each, group))
