"""Hydra's grammar: parsed and formatted, each undoing the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.overrides import Override, format_override, format_value, parse

KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}(\.[a-z_][a-z0-9_]{0,8}){0,3}", fullmatch=True)
TEXTS = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), max_size=20) | st.sampled_from(
    [
        "null",
        "True",
        "1e-6",
        "+",
        "nan",
        "inf",
        "1_000",
        "a,b",
        "it's",
        "\\",
        "\\'",
        "a\\",
        "/x/y.parquet",
        "http://h:1/p",
    ]
)
NUMBERS = st.integers() | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS.filter(lambda text: "${" not in text)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(operator=st.sampled_from(["", "+", "++"]), key=KEYS, value=VALUES)
def test_what_is_formatted_is_read_back(operator: str, key: str, value: object) -> None:
    override = Override(operator, key, value)  # type: ignore[arg-type]
    (read,), problems = parse([format_override(override)])
    assert problems == []
    assert read == override
    assert repr(read.value) == repr(value)  # 1, 1.0 and True are equal, and not the same


@given(key=KEYS, value=VALUES)
def test_what_is_read_is_formatted_the_same_again(key: str, value: object) -> None:
    text = format_override(Override("", key, value))
    assert format_override(parse([text])[0][0]) == text


@given(st.text(max_size=30))
def test_any_text_is_an_override_or_a_problem(text: str) -> None:
    overrides, problems = parse([text])
    assert len(overrides) + len(problems) == 1


def test_a_deletion_has_no_value() -> None:
    assert parse(["~trainer.logger"]) == ([Override("~", "trainer.logger", None)], [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=['/a b/c.parquet', '/d.parquet']", ["/a b/c.parquet", "/d.parquet"]),
        ("k=--search-r1-ppo", "--search-r1-ppo"),
        ("k=http://127.0.0.1:8000/retrieve", "http://127.0.0.1:8000/retrieve"),
        ("k=1e-6", 1e-6),
        ("k=true", True),
        ("k='true'", "true"),
        ("k=", ""),
    ],
)
def test_values_as_the_seeds_write_them(text: str, value: object) -> None:
    assert parse([text])[0][0].value == value


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("data.seed=1,2", "a sweep", "data.seed=[...]"),
        ("data.seed=choice(1,2)", "a sweep", "data.seed=[...]"),
        ("data.seed", "data.seed is not an override", "data.seed=VALUE"),
        ("--config-name=x", "is not an option", "section.key=value"),
        ("data.train_files=~/x.parquet", "cannot be read", "data.train_files='~/x.parquet'"),
        ("hydra/job_logging=none", "config groups", "section.key=value"),
        ("=3", "no key", "section.key=value"),
    ],
)
def test_a_text_that_is_no_override_says_why(text: str, said: str, hint: str) -> None:
    overrides, (problem,) = parse([text])
    assert overrides == []
    assert said in problem.message and hint in problem.hint
    assert "\n" not in problem.message + problem.hint


def test_quotes_come_only_where_they_must() -> None:
    assert format_value(["console", "a b", "7", "/x/y.parquet"]) == "[console,'a b','7',/x/y.parquet]"
