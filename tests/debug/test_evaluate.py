"""`devkit eval` and `devkit continue`: whom they mean, and how equal answers come together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug import continue_, evaluate
from devkit.debug.grouping import group, odd
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who
from devkit.debug.targets import find_id, rank_matcher, select
from devkit.errors import DevkitError, UsageError
from tests import documents
from tests.debug.hub_fake import FakeHub, printed, ps_document, stop

STOPS = [stop(number, rank) for number, rank in enumerate(range(5), start=10)] + [
    stop(20, 0, role="Critic", actor="critic_a"),
    stop(21, None, role="driver"),
]
RECORDS = [StopRecord.from_json(each) for each in STOPS]


def result(number: int, value: str | None, error: str | None = None) -> dict[str, Any]:
    return {"id": f"s{10 + number}", "role": "Worker", "rank": number, "value": value, "error": error}


def hub_with(results: Sequence[dict[str, Any]], stops: Sequence[dict[str, Any]] = STOPS[:4]) -> FakeHub:
    return FakeHub(ps=ps_document(stops=list(stops)), eval={"results": list(results)})


@pytest.mark.parametrize(
    ("target", "ids"),
    [
        ("all", [each["id"] for each in STOPS]),
        ("s11", ["s11"]),
        ("s11, s13", ["s11", "s13"]),
        ("1", ["s11"]),
        ("0,2:4", ["s10", "s12", "s13", "s20"]),
        ("3:", ["s13", "s14"]),
        ("::2", ["s10", "s12", "s14", "s20"]),
        ("Worker", ["s10", "s11", "s12", "s13", "s14"]),
        ("Worker[0,4]", ["s10", "s14"]),
        ("critic_a", ["s20"]),
        ("driver", ["s21"]),
    ],
)
def test_a_target_means_these_stops(target: str, ids: list[str]) -> None:
    assert [each.id for each in select(RECORDS, target)] == ids


@pytest.mark.parametrize("target", ["9", "Nobody", "s99", "Worker[9]", "s10,s99"])
def test_a_target_that_means_nobody_says_who_is_there(target: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(RECORDS, target)
    assert target in caught.value.message and "s10 (Worker[0])" in caught.value.hint


@pytest.mark.parametrize("ranks", ["::0", "1:2:3:4", "Worker[a]", "Worker[-1]"])
def test_bad_ranks_are_a_usage_error(ranks: str) -> None:
    with pytest.raises(UsageError):
        select(RECORDS, ranks)


@given(st.integers(0, 20), st.one_of(st.none(), st.integers(0, 20)), st.integers(1, 5), st.integers(0, 25))
def test_ranks_are_pythons_slices(start: int, end: int | None, by: int, rank: int) -> None:
    text = f"{start}:{'' if end is None else end}:{by}"
    assert rank_matcher(text)(rank) == (rank in range(100)[start:end:by])


def test_an_id_may_be_short_but_not_ambiguous() -> None:
    assert find_id("s2", ["s10", "s20"], "stop") == "s20"
    with pytest.raises(UsageError, match="more than one"):
        find_id("s1", ["s10", "s11"], "stop")
    with pytest.raises(UsageError, match="no crash") as caught:
        find_id("ab3", ["ab12", "zz"], "crash")
    assert "ab12" in caught.value.hint


answers = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("xyz")), unique_by=lambda one: one[0])


@given(answers, st.randoms())
def test_groups_are_a_partition_whatever_the_order(pairs: list[tuple[int, str]], random: Any) -> None:
    told = [(Who("W", rank, f"s{rank}"), value) for rank, value in pairs]
    groups = group(told)
    assert sorted(who.rank for one in groups for who in one.members) == sorted(rank for rank, _ in pairs)
    assert len({one.key for one in groups}) == len(groups)
    assert all(dict(told)[who] == one.key for one in groups for who in one.members)
    assert [len(one.members) for one in groups] == sorted((len(one.members) for one in groups), reverse=True)
    shuffled = list(told)
    random.shuffle(shuffled)
    assert group(shuffled) == groups


@given(answers)
def test_odd_are_those_who_differ_from_a_single_largest_group(pairs: list[tuple[int, str]]) -> None:
    groups = group((Who("W", rank, f"s{rank}"), value) for rank, value in pairs)
    different = set(odd(groups))
    sizes = [len(one.members) for one in groups]
    if len(sizes) < 2 or sizes[0] == sizes[1]:
        assert not different
    else:
        assert different == {who for one in groups[1:] for who in one.members}


def test_json_has_results_groups_and_the_odd_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    results = [result(0, "1"), result(1, "nan"), result(2, "1"), result(3, None, "NameError: x")]
    hub = hub_with(results)
    assert evaluate.run(hub, "loss", json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["results"] == results
    assert document["groups"] == [
        {"value": "1", "ranks": [0, 2], "ids": ["s10", "s12"]},
        {"value": "nan", "ranks": [1], "ids": ["s11"]},
    ]
    assert document["odd"] == [1, 3]


def test_equal_values_are_shown_once_and_the_odd_one_stands_out() -> None:
    text = printed(evaluate.page([result(0, "0.5"), result(1, "nan"), result(2, "0.5"), result(3, "0.5")]))
    assert text == "ranks 0,2,3  0.5\nrank 1       nan\ndiffers from the rest: rank 1\n"


def test_an_error_is_shown_for_its_ranks_and_a_long_value_below() -> None:
    text = printed(evaluate.page([result(0, "a\nb"), result(1, None, "NameError: x")]))
    assert text == "rank 0\n    a\n    b\nrank 1  error: NameError: x\n"


def test_several_expressions_each_with_its_own_values(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"loss": [result(0, "0.5"), result(1, "nan")], "x": [result(n, None, "NameError: x") for n in (0, 1)]}
    hub = FakeHub(ps={"stops": STOPS[:2]}, eval=lambda expression, ids: {"results": given[expression]})
    assert evaluate.run(hub, "x", "loss", json=True) == 1
    document = json.loads(capsys.readouterr().out)
    documents.check_output(["eval"], document)
    [further] = document.pop("further")
    assert (document["results"], document["groups"]) == (given["x"], [])
    assert (further.pop("expression"), further["results"]) == ("loss", given["loss"])
    assert [group["value"] for group in further["groups"]] == ["0.5", "nan"]

    assert evaluate.run(hub, "x", "loss") == 1
    said = capsys.readouterr().out
    assert said == "x\n  ranks 0,1  error: NameError: x\nloss\n  rank 0  0.5\n  rank 1  nan\n"


def test_what_is_asked_twice_is_answered_twice(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([result(0, None, "NameError: x")] + [result(0, str(number)) for number in range(2)])
    hub = FakeHub(ps={"stops": STOPS[:1]}, eval=lambda expression, ids: {"results": [next(answers)]})
    assert evaluate.run(hub, "x", "x", "x", json=True) == 1, "it failed once"
    document = json.loads(capsys.readouterr().out)
    documents.check_output(["eval"], document)
    assert document["results"][0]["error"] == "NameError: x"
    assert [(each["expression"], each["results"][0]["value"]) for each in document["further"]] == [
        ("x", "0"),
        ("x", "1"),
    ]


def test_one_of_several_that_is_no_expression_is_told_before_any_rank_is_asked() -> None:
    with pytest.raises(UsageError, match="x = 1"):
        evaluate.main("loss", "x = 1")


def test_only_the_target_is_asked() -> None:
    hub = hub_with([result(1, "1")])
    evaluate.run(hub, "x", target="1")
    assert hub.asked[-1] == ("eval", {"expression": "x", "ids": ["s11"]})


def test_who_went_on_in_between_is_named_and_not_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.run(hub_with([result(0, "1")], STOPS[:2]), "x", json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["results"][1]["error"] == "no longer stopped"


@pytest.mark.parametrize(("errors", "code"), [((None, "E"), 0), (("E", "E"), 1)])
def test_exit_code_1_when_it_failed_everywhere(errors: tuple[str | None, ...], code: int) -> None:
    results = [result(number, None if error else "1", error) for number, error in enumerate(errors)]
    assert evaluate.run(hub_with(results, STOPS[:2]), "x") == code


def test_what_is_no_expression_fails_before_any_rank_is_asked() -> None:
    for text in ("x = 1", "1 +", "", "import os", "\0"):
        with pytest.raises(UsageError):
            evaluate.main(text)


def test_nothing_stopped_is_an_error_with_the_next_step() -> None:
    with pytest.raises(DevkitError, match="nothing is stopped") as caught:
        evaluate.run(hub_with([], []), "x")
    assert caught.value.exit_code == 1 and "devkit break" in caught.value.hint


def continuing(stops: Sequence[dict[str, Any]], failed: dict[str, str] | None = None) -> FakeHub:
    def answer(ids: list[str] | None) -> dict[str, Any]:
        wanted = [each["id"] for each in stops] if ids is None else ids
        return {"continued": [each for each in wanted if each not in (failed or {})], "failed": failed or {}}

    return FakeHub(ps=ps_document(stops=list(stops)), continue_=answer)


def test_continue_alone_means_the_only_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert continue_.run(continuing(STOPS[1:2])) == 0
    assert capsys.readouterr().out == "continued: rank 1\n"


def test_continue_alone_does_not_guess_among_several() -> None:
    with pytest.raises(UsageError, match="name one") as caught:
        continue_.run(continuing(STOPS[:2]))
    assert "s10, s11" in caught.value.hint and "--all" in caught.value.message


def test_continue_all_and_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert continue_.run(continuing(STOPS[:4]), everything=True) == 0
    assert continue_.run(continuing(STOPS[:4]), ["1:3", "s13"]) == 0
    assert capsys.readouterr().out == "continued: ranks 0-3\ncontinued: ranks 1-3\n"


def test_what_could_not_be_continued_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert continue_.run(continuing(STOPS[:2], {"s11": "not stopped any more"}), everything=True) == 1
    told = capsys.readouterr()
    assert told.out == "continued: rank 0\n" and "rank 1: not stopped any more" in told.err


def test_who_has_not_answered_yet_has_been_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert continue_.run(continuing(STOPS[:2], {"s11": "no answer within 10 s"}), everything=True) == 1
    assert capsys.readouterr().err == "not continued yet: rank 1: no answer within 10 s\n"


def test_ids_and_all_exclude_each_other() -> None:
    with pytest.raises(UsageError):
        continue_.main(["s1"], everything=True)


# ---- one job of several

TWO_JOBS = [stop(10, 0), stop(11, 1), stop(30, 0, job_id="03000000"), stop(31, 1, job_id="03000000")]


def test_a_job_narrows_whom_eval_asks(capsys: pytest.CaptureFixture[str]) -> None:
    hub = hub_with([{**result(20, "7"), "rank": 0}, {**result(21, "7"), "rank": 1}], TWO_JOBS)
    assert evaluate.run(hub, "x", job="03000000") == 0
    assert hub.asked[-1][1]["ids"] == ["s30", "s31"]
    told = capsys.readouterr()
    assert told.out == "ranks 0,1  7\n" and told.err == ""


def test_ranks_of_two_jobs_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{**result(number, "7"), "rank": rank} for number, rank in ((0, 0), (1, 1), (20, 0), (21, 1))]
    assert evaluate.run(hub_with(answers, TWO_JOBS), "x") == 0
    assert "2 jobs; choose with --job: 02000000, 03000000" in " ".join(capsys.readouterr().err.split())


def test_a_job_narrows_what_continues() -> None:
    hub = FakeHub(ps=ps_document(stops=TWO_JOBS), continue_={"continued": ["s30", "s31"], "failed": {}})
    assert continue_.run(hub, everything=True, job="03000000") == 0
    assert hub.asked[-1] == ("continue", {"ids": ["s30", "s31"]})


def test_a_job_without_a_stop_says_which_have_one() -> None:
    with pytest.raises(UsageError, match="nothing is stopped in job 09000000") as caught:
        evaluate.run(hub_with([], TWO_JOBS), "x", job="09000000")
    assert caught.value.hint == "stopped: 02000000, 03000000"


def test_stops_of_a_job_that_has_ended_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    # given a stop of an actor that has outlived its job, beside two of a job that goes on
    stops = [*STOPS[:2], stop(30, 0, job_id="01000000")]
    results = [result(0, "1"), result(1, "1"), {**result(20, "7"), "rank": 0}]
    hub = hub_with(results, stops)
    hub.answers["ends"] = {"ends": {"01000000": 0}, "over": ["01000000"]}
    assert evaluate.run(hub, "step") == 0
    out, err = capsys.readouterr()
    assert "7" not in out and "odd" not in out and "ranks of 2 jobs" not in err
    assert "1 stop of a job that has ended left out; --job means it: 01000000" in err
    assert evaluate.run(hub, "step", job="01000000") == 0
    assert "7" in capsys.readouterr().out
    hub.answers["ps"] = ps_document(stops=stops[2:])
    with pytest.raises(DevkitError, match="nothing is stopped but of a job that has ended: 01000000"):
        evaluate.run(hub, "step")
