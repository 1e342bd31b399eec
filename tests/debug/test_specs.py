"""What users write to name a breakpoint."""

from __future__ import annotations

import pickle
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug.inworker import specs
from devkit.debug.inworker.records import Identity
from devkit.debug.inworker.specs import Spec, SpecError, hit_matches, matches_target, parse, rank_in


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x.py:3", Spec(file="x.py", line=3)),
        (
            "trainer/ppo.py:88 @Worker[1,4:8] if step == 3",
            Spec(file="trainer/ppo.py", line=88, role="Worker", ranks="1,4:8", condition="step == 3"),
        ),
        ("pkg.mod:Class.method", Spec(module="pkg.mod", qualname="Class.method")),
        ("m:f @[::2]", Spec(module="m", qualname="f", ranks="::2")),
        ("m:f @W*", Spec(module="m", qualname="f", role="W*")),
        ("m:f @[ 1 , 4 : 8 ]", Spec(module="m", qualname="f", ranks="1,4:8")),
        (
            "/a b/what if/x.py:3 if d[1:3] == 'x @[0] if'",
            Spec(file="/a b/what if/x.py", line=3, condition="d[1:3] == 'x @[0] if'"),
        ),
        ("m:f if lambda:3", Spec(module="m", qualname="f", condition="lambda:3")),
        ("x.py:3 if(a)", Spec(file="x.py", line=3, condition="(a)")),
        ("x.py:3 if a @ b", Spec(file="x.py", line=3, condition="a @ b")),
        ("  x.py:3   @W   if   a  ", Spec(file="x.py", line=3, role="W", condition="a")),
        ("x.py:3 if a\n  == b", None),
        ("C:/x/y.py:3", Spec(file="C:/x/y.py", line=3)),
    ],
)
def test_parse_reads_what_users_write(text: str, spec: Spec | None) -> None:
    if spec is None:
        with pytest.raises(SpecError):
            parse(text)
    else:
        assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "not a valid breakpoint", "use the form"),
        ("x.py", "not a valid breakpoint", "use the form"),
        ("x.py:", "not a valid breakpoint", "use the form"),
        ("x.py:0", "no line 0", "counted from 1"),
        ("x.py:-3", "not a valid breakpoint", "use the form"),
        ("x.py:3 Worker", "not a valid breakpoint", "use the form"),
        ("x.py:3 @", "nothing follows @", "@Worker"),
        ("x.py:3 @[]", "nothing follows @", "@Worker"),
        ("x.py:3 @[-1]", "not a rank", "world size"),
        ("x.py:3 @[::-1]", "not a rank", "world size"),
        ("x.py:3 @[a]", "not a rank", "4:8"),
        ("x.py:3 @[1,]", "not a rank", "4:8"),
        ("x.py:3 @[1;2]", "not a rank", "4:8"),
        ("x.py:3 @[::0]", "step of 0", "at least 1"),
        ("x.py:3 if", "does not parse", "expression"),
        ("x.py:3 if step = 3", "does not parse", "expression"),
        ("x.py:3 if (", "does not parse", "expression"),
        ("x.py:3 if return 3", "does not parse", "expression"),
        ("x.py:3 if a\0", "does not parse", "expression"),
        ("x.py:3 if " + "(" * 500 + ")" * 500, "does not parse", "expression"),
        ("x.py:3 if await f()", "", ""),
        ("x.py:3 if (yield)", "", ""),
        ("x.py:3 if (n := 3)", "would change", ":="),
        ("x.py:3 if [y async for y in z]", "does not parse", "expression"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong_and_what_to_do(text: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert message in caught.value.message and hint in caught.value.hint
    assert caught.value.hint and "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "raise", "x.py:3 @"])
def test_the_example_of_a_hint_is_one_word_to_a_shell(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    [example] = [word.rstrip(",") for word in shlex.split(caught.value.hint) if " " in word]
    assert parse(example).role == "Worker"


def test_an_error_survives_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(SpecError("a", "b")))
    assert (error.message, error.hint, str(error)) == ("a", "b", "a")


_NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
_DOTTED = st.lists(_NAME, min_size=1, max_size=3).map(".".join)
_NUMBER = st.integers(0, 20)
_OPTIONAL = st.none() | _NUMBER


def _slice(start: int | None, stop: int | None, step: int | None) -> str:
    parts = ["" if part is None else str(part) for part in (start, stop)]
    return ":".join(parts if step is None else [*parts, str(step)])


_SLICE = st.builds(_slice, _OPTIONAL, _OPTIONAL, st.none() | st.integers(1, 5))
_RANKS = st.lists(_NUMBER.map(str) | _SLICE, min_size=1, max_size=3).map(",".join)
_PLACE = st.fixed_dictionaries({"module": _DOTTED, "qualname": _DOTTED}) | st.fixed_dictionaries(
    {
        "file": st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1), min_size=1).map(
            "/".join
        ),
        "line": st.integers(1, 10**6),
    }
)
_SPECS = st.builds(
    lambda place, **rest: Spec(**place, **rest),
    _PLACE,
    role=st.just("") | st.from_regex(r"[A-Za-z*?][\w*?.:-]{0,8}", fullmatch=True),
    ranks=st.just("") | _RANKS,
    condition=st.sampled_from(["", "a == b", "x[1:3] if y else z", "'a @[0]' in s", "(lambda: 3)()", "a\\\n+b"]),
)


@given(_SPECS)
def test_what_is_written_is_read_back(spec: Spec) -> None:
    assert parse(specs.format(spec)) == spec


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        spec = parse(text)
    except SpecError:
        return
    assert parse(specs.format(spec)) == spec


@given(st.lists(st.tuples(_OPTIONAL, _OPTIONAL, st.none() | st.integers(1, 5)), min_size=1, max_size=3))
def test_ranks_are_pythons_slices(slices: list[tuple[int | None, int | None, int | None]]) -> None:
    text = ",".join(_slice(*each) for each in slices)
    expected = {rank for each in slices for rank in range(30)[slice(*each)]}
    assert {rank for rank in range(30) if rank_in(text, rank)} == expected


def test_a_target_is_a_role_or_an_actor_and_a_rank() -> None:
    worker = Identity("1", "w", "n", "ip", "h", 3, role="Worker", actor="group_2", rank=2)
    driver = Identity("1", "w", "n", "ip", "h", 3, role="driver")
    assert matches_target("", "", driver) and matches_target("driver", "", driver)
    assert not matches_target("", "0", driver)  # it has no rank
    assert not matches_target("*x", "", driver)
    assert matches_target("Worker", "2", worker) and matches_target("group_*", ":3", worker)
    assert not matches_target("Worker", "3", worker) and not matches_target("worker", "2", worker)


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("3", [3]),
        (">=3", [3, 4, 5, 6]),
        (">3", [4, 5, 6]),
        ("%3", [3, 6]),
        (" >= 5 ", [5, 6]),
    ],
)
def test_hits_choose_among_them(hits: str, expected: list[int]) -> None:
    specs.check_hits(hits)
    assert [count for count in range(1, 7) if hit_matches(hits, count)] == expected


@pytest.mark.parametrize("hits", ["0", "%0", "-1", "=3", "x", "3.5", "<3"])
def test_a_wrong_hit_count_is_refused(hits: str) -> None:
    with pytest.raises(SpecError):
        specs.check_hits(hits)


def test_a_line_without_code_is_refused_before_anything_starts() -> None:
    source = "import os\n\n# words\ndef f(\n    a,\n):\n    return a\n"
    assert specs.check(source, "x.py", 4) == 7
    with pytest.raises(SpecError) as caught:
        specs.check(source, "x.py", 2)
    assert caught.value.message == "line 2 of x.py holds no code"
    assert caught.value.hint == "the nearest lines with code are 1 and 4"
    with pytest.raises(SpecError, match=r"has 8 lines"):
        specs.check(source, "x.py", 9)
    with pytest.raises(SpecError, match=r"does not parse"):
        specs.check("def", "x.py", 1)
