"""Corpora: what a row may be, and the row that an error names."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.errors import DataError
from trainer.retrieval import corpus
from trainer.retrieval.corpus import BadRow, passage

FAUST = b'{"id": "0", "contents": "\\"Goethe\\"\\nWrote Faust."}\n'


def read(folder: Path, data: bytes) -> corpus.Corpus:
    (folder / "corpus.jsonl").write_bytes(data)
    return corpus.read(str(folder / "corpus.jsonl"))


def test_both_forms_and_a_digest_of_all_bytes(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + FAUST + b'\n{"id": 7, "title": "Two\\nlines", "text": "a\\nb", "more": 1}\r\n'
    found = read(tmp_path, data)
    assert (found.ids, found.contents) == (["0", "7"], ['"Goethe"\nWrote Faust.', '"Two lines"\na\nb'])
    assert found.digest == hashlib.sha256(data).hexdigest()[:16] and found.name == "corpus.jsonl" and len(found) == 2
    assert found.document(1) == {"id": "7", "contents": '"Two lines"\na\nb'}
    corpus.look(str(tmp_path / "corpus.jsonl"))


def test_without_ids_they_are_row_numbers(tmp_path: Path) -> None:
    assert read(tmp_path, b'{"contents": "a"}\n{"contents": "b", "id": null}').ids == ["0", "1"]


ROWS: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"Goethe wrote Faust", "it is no JSON (Expecting value at character 1): Goethe wrote Faust"),
    "half a row": (FAUST[:30], "it is no JSON ("),
    "no UTF-8": (b'{"contents": "M\xfcller"}', "byte 16 of it is not UTF-8"),
    "a list": (b'["a"]', 'it is no object: ["a"]'),
    "a number of too many digits": (b"9" * 5000, "it is no JSON that can be read: 999"),
    "brackets within brackets": (b"[" * 100_000, "it is no JSON that can be read: [[["),
    "another key": (b'{"id": "1", "content": "a"}', "there is neither contents nor title and text in {"),
    "a title alone": (b'{"title": "a"}', "there is neither contents nor title and text in {"),
    "no text": (b'{"title": "a", "text": 3}', "text is no text: 3"),
    "contents of another type": (b'{"contents": ["a"]}', 'contents is no text: ["a"]'),
    "nothing in it": (b'{"contents": " \\n "}', "contents is empty"),
    "an id that is none": (b'{"id": 1.5, "contents": "a"}', "id is neither text nor a whole number: 1.5"),
    "an id that is a truth": (b'{"id": true, "contents": "a"}', "id is neither text nor a whole number: true"),
    "an id twice": (b'{"id": 0, "contents": "a"}', "its id 0 is that of row 1, too"),
}


@pytest.mark.parametrize(("row", "said"), ROWS.values(), ids=ROWS)
def test_a_row_that_is_no_passage_is_named(tmp_path: Path, row: bytes, said: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, FAUST + b"\n" + row + b"\n" + FAUST)
    assert f"corpus.jsonl, row 3: {said}" in caught.value.message and caught.value.hint
    assert "\n" not in caught.value.message and len(caught.value.message) < 300
    if said.startswith("its id"):
        return
    (tmp_path / "first.jsonl").write_bytes(row)
    with pytest.raises(DataError, match="row 1: "):
        corpus.look(str(tmp_path / "first.jsonl"))


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_no_passages(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="holds no passages"):
        read(tmp_path, data)
    with pytest.raises(DataError, match="holds no passages"):
        corpus.look(str(tmp_path / "corpus.jsonl"))


@pytest.mark.parametrize("name", ["gone.jsonl", ".", "a\0b"])
def test_what_cannot_be_read(tmp_path: Path, name: str) -> None:
    for look in (corpus.read, corpus.look):
        with pytest.raises(DataError, match="cannot be read"):
            look(f"{tmp_path}/{name}")


@given(st.binary(max_size=100))
def test_any_line_is_a_passage_or_a_bad_row(line: bytes) -> None:
    with contextlib.suppress(BadRow):
        _, contents = passage(line)
        assert contents.strip() and contents.encode()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["id", "contents", "title", "text", "x"]), VALUES))
def test_any_object_is_a_passage_or_a_bad_row(row: dict[str, Any]) -> None:
    try:
        name, contents = passage(json.dumps(row).encode())
    except BadRow:
        texts = [row.get("contents")] if row.get("contents") is not None else [row.get("title"), row.get("text")]
        whole = all(isinstance(text, str) for text in texts) and "".join(texts).strip()
        bare = isinstance(row.get("id"), (str, int, type(None))) and not isinstance(row.get("id"), bool)
        assert not (whole and bare)
        return
    assert contents.encode().strip() and (name is None or name.encode() is not None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1, max_size=5)
)
def test_what_is_written_is_read(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"id": f"p{i}", "contents": text} for i, text in enumerate(texts)]
    for ascii_alone in (True, False):
        found = read(tmp_path, "\n".join(json.dumps(row, ensure_ascii=ascii_alone) for row in rows).encode())
        assert [found.document(row) for row in range(len(found))] == rows
