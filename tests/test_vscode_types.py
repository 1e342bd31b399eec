"""The extension's types: up to date, and true of what devkit prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from scripts import generate_vscode_types
from tests import documents


def test_the_committed_types_are_up_to_date() -> None:
    made = generate_vscode_types.render()
    assert generate_vscode_types.FILE.read_text() == made, "make docs writes them anew"


class Inner(TypedDict):
    """What is inside.

    And more.
    """

    name: str  # of the thing
    size: NotRequired[int | None]


@dataclass(frozen=True)
class Outer:
    """What is outside."""

    kind: Literal["a", "b"]
    inner: tuple[Inner, ...]
    both: Annotated[dict[str, Any], Inner, dict[str, float]]
    more: dict[str, Any]


def test_a_class_becomes_an_interface() -> None:
    known: dict[str, str] = {}
    generate_vscode_types.typescript(Outer, known)
    assert known["Outer"] == (
        "/** What is outside. */\n"
        "export interface Outer {\n"
        '  readonly kind: "a" | "b";\n'
        "  readonly inner: readonly Inner[];\n"
        "  readonly both: Inner & { readonly [name: string]: number };\n"
        "  readonly more: { readonly [name: string]: Json };\n"
        "}\n"
    )
    assert known["Inner"] == (
        "/** What is inside. */\n"
        "export interface Inner {\n"
        "  /** of the thing */\n"
        "  readonly name: string;\n"
        "  readonly size?: number | null;\n"
        "}\n"
    )


def test_what_is_no_json_has_no_type() -> None:
    with pytest.raises(TypeError, match="set"):
        generate_vscode_types.typescript(set[int], {})


FINE = {"kind": "a", "inner": [{"name": "x"}], "both": {"name": "x", "loss": 1}, "more": {"y": [None]}}


def test_a_document_of_the_type_passes() -> None:
    documents.check(FINE, Outer)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "c"}, ".kind: 'c' is not one of"),
        ({"inner": [{}]}, r".inner\[0\].name is missing"),
        ({"inner": [{"name": "x", "size": "1"}]}, ".size: '1' is none of"),
        ({"inner": [{"name": True}]}, "True is not a"),
        ({"inner": {}}, "is not a list"),
        ({"both": {"name": "x", "loss": "1"}}, ".both.loss: '1'"),
        ({"more": None}, "is not an object"),
        ({"new": 1}, ".new is in no type"),
    ],
)
def test_a_document_of_another_type_does_not(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        documents.check({**FINE, **changes}, Outer)
