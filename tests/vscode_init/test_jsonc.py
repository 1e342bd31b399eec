"""JSON with comments: what is read, and that an edit changes nothing but what it is for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.vscode.jsonc import Edit, JsoncError, Node, append, apply, comments, parse, replace, set_member

MADE = settings(max_examples=40)  # a text around a value takes 20 ms to make
CASES = {
    # an array, and what it becomes with another element
    "[]": '[\n    {\n        "a": 1\n    }\n]',
    "[ ]": '[\n    {\n        "a": 1\n    }\n]',
    "[0]": '[0,\n    {\n        "a": 1\n    }\n]',
    "[0, ]": '[0,\n    {\n        "a": 1\n    },\n]',
    "[\n  0\n]": '[\n  0,\n  {\n      "a": 1\n  }\n]',
    "[\n\t0, // zero\n\t// none\n]": '[\n\t0, // zero\n\t// none\n\t{\n\t    "a": 1\n\t},\n]',
    "[\n  0 // zero\n]": '[\n  0, // zero\n  {\n      "a": 1\n  }\n]',
    "[ // none\n]": '[ // none\n    {\n        "a": 1\n    }\n]',
    "[\r\n  0\r\n]": '[\r\n  0,\r\n  {\r\n      "a": 1\r\n  }\r\n]',
    "[0 /* , */ ]": '[0, /* , */\n    {\n        "a": 1\n    }\n]',
}


def node(text: str) -> Node:
    found = parse(text)
    assert found is not None
    return found


@pytest.mark.parametrize("text", CASES)
def test_append(text: str) -> None:
    assert apply(text, append(text, node(text), {"a": 1})) == CASES[text]


def test_the_steps_of_indentation_are_those_of_the_file() -> None:
    text = '{\n\t"version": "0.2.0",\n\t"configurations": []\n}\n'
    array = node(text).members["configurations"]
    new = apply(text, append(text, array, {"name": "x"}))
    assert new == '{\n\t"version": "0.2.0",\n\t"configurations": [\n\t\t{\n\t\t\t"name": "x"\n\t\t}\n\t]\n}\n'


def test_a_member_is_added_or_changed() -> None:
    text = '{ // mine\n  "a": 1 // one\n}'
    added = apply(text, set_member(text, node(text), "b", []))
    assert added == '{ // mine\n  "a": 1, // one\n  "b": []\n}'
    assert apply(added, set_member(added, node(added), "a", 2)) == '{ // mine\n  "a": 2, // one\n  "b": []\n}'


def test_the_last_of_two_members_of_one_name_counts() -> None:
    text = '{"a": 1, "a": 2}'
    assert node(text).value == {"a": 2}
    assert apply(text, set_member(text, node(text), "a", 3)) == '{"a": 1, "a": 3}'


def test_comments_are_told_from_texts() -> None:
    assert comments('{"a": 1 /* "one" */} // two "') == ['/* "one" */', '// two "']
    assert comments('{"a": "https://b"}') == []


@pytest.mark.parametrize("text", ["", "  \n", "// nothing\n", "/* nothing */", "\ufeff"])
def test_a_text_may_hold_no_value(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1, column 2: a string in double quotes is missing"),
        ('{"a" 1}', "column 6: a colon is missing"),
        ('{"a": 1\n "b": 2}', "line 2, column 2: a comma or the end is missing: `}`"),
        ("[1, 2", "the end is missing: `]`"),
        ("[1,, 2]", "column 4: a value is missing"),
        ("[01]", "not a value: 01"),
        ("[tru]", "not a value: tru"),
        ("[NaN]", "not a value: NaN"),
        ("{'a': 1}", "a string in double quotes is missing"),
        ('{"a": "b\n"}', "a string in double quotes is missing or unterminated"),
        ('["\\x"]', "an escape that JSON does not allow"),
        ("[1] [2]", "column 5: there is text after the end"),
        ("[1 /* ]", "column 4: unterminated comment"),
        ("<<<<<<< HEAD\n{}", "not a value|a value is missing"),
    ],
)
def test_what_is_broken_is_named_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(JsoncError, match=problem):
        parse(text)


# ---- any text and any value

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
trivia = st.lists(
    st.sampled_from([" ", "\n", "\t", "\r\n", "// line, ] }\n", "/* block \n ] } , \" */", "//\n"]), max_size=3
).map("".join)  # fmt: skip


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """The value with comments, white space and trailing commas in all places."""
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}{draw(trivia)}:{draw(written(each))}" for key, each in value.items()]
    elif isinstance(value, list):
        parts = [draw(written(each)) for each in value]
    else:
        return draw(trivia) + json.dumps(value, ensure_ascii=draw(st.booleans())) + draw(trivia)
    inner = ",".join(draw(trivia) + part for part in parts)
    comma = "," if parts and draw(st.booleans()) else ""
    braces = "{}" if isinstance(value, dict) else "[]"
    return f"{draw(trivia)}{braces[0]}{inner}{comma}{draw(trivia)}{braces[1]}{draw(trivia)}"


@st.composite
def texts(draw: st.DrawFn, kinds: st.SearchStrategy[Any]) -> tuple[Any, str]:
    value = draw(kinds)
    return value, draw(written(value))


def assert_only_adds(text: str, edits: list[Edit]) -> None:
    """Nothing goes but white space inside an empty container."""
    for edit in edits:
        assert not text[edit.start : edit.end].strip(), edit
    assert comments(apply(text, edits)) == comments(text)


@MADE
@given(texts(values))
def test_any_value_is_read(case: tuple[Any, str]) -> None:
    value, text = case
    assert node(text).value == value


@MADE
@given(texts(st.lists(values, max_size=4)), values)
def test_append_only_appends(case: tuple[Any, str], added: Any) -> None:
    value, text = case
    edits = append(text, node(text), added)
    assert node(apply(text, edits)).value == [*value, added]
    assert_only_adds(text, edits)


@MADE
@given(texts(st.dictionaries(st.text(max_size=6), values, max_size=4)), st.text(max_size=6), values)
def test_set_member_only_sets_it(case: tuple[Any, str], key: str, added: Any) -> None:
    value, text = case
    edits = set_member(text, node(text), key, added)
    assert node(apply(text, edits)).value == {**value, key: added}
    if key not in value:
        assert_only_adds(text, edits)


@MADE
@given(texts(st.lists(values, min_size=1, max_size=4)), st.data(), values)
def test_replace_leaves_the_rest(case: tuple[Any, str], data: st.DataObject, new: Any) -> None:
    value, text = case
    index = data.draw(st.integers(0, len(value) - 1))
    old = node(text).items[index]
    edit = replace(text, old, new)
    assert (edit.start, edit.end) == (old.start, old.end)
    after = apply(text, [edit])
    assert node(after).value == [*value[:index], new, *value[index + 1 :]]
    assert after.startswith(text[: old.start]) and after.endswith(text[old.end :])


@given(st.text(alphabet='{}[],:"/*\n a1\\', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except JsoncError as error:
        assert re.match(r"line \d+, column \d+: ", str(error))  # noqa: PT017 - most texts are refused, not all
    else:
        assert found is None or 0 <= found.start < found.end <= len(text)
