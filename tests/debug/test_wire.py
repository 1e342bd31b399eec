"""What comes over the hub's port before anybody is known: any line is read, or is no devkit's."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from devkit.debug import hub_file
from devkit.debug.inworker import wire
from devkit.errors import DevkitError

KEY = b"k" * 32
NAMES = ("devkit", "nonce", "mac", "kind", "hub_id", "host", "port", "node_id", "signature", "x")
TEXTS = st.text(st.characters(codec=None))  # with lone surrogates, which JSON can carry
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.just(wire.PROTOCOL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES)
LINES = st.binary() | DOCUMENTS.map(lambda document: json.dumps(document).encode())


@given(LINES)
def test_any_line_is_a_document_or_refused(line: bytes) -> None:
    with suppress(wire.WireError):
        assert isinstance(wire.decode(line), dict)


@given(DOCUMENTS)
@example({"devkit": wire.PROTOCOL, "nonce": "\ud800"})
def test_any_greeting_is_answered_or_refused(greeting: dict[str, Any]) -> None:
    with suppress(wire.WireError):
        wire.encode(wire.answer(greeting, KEY, "client")[0])


@given(DOCUMENTS)
@example({"nonce": "\ud800", "mac": "é"})
@example({"nonce": "", "mac": "\ud800"})
def test_no_reply_without_the_key_is_taken(reply: dict[str, Any]) -> None:
    assert wire.verify(reply, KEY, "first") is None


@given(LINES)
def test_any_file_of_a_hub_is_read_or_refused(text: bytes) -> None:
    with suppress(DevkitError):
        assert hub_file.parse(text).hub_id
