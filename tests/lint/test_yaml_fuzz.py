"""dstack's files: whatever stands in any of their fields is read, or told."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devkit.lint.read import Wish
from devkit.lint.run import lint
from devkit.lint.source import Source

FIELDS = ("type", "nodes", "commands", "env", "resources", "gpu", "memory", "name", "image", "python", "init")
KNOWN = st.sampled_from(
    ["task", "2", "80GB:8", "H100:2", "A=1", "python -m verl.trainer.main_ppo trainer.nnodes=2", "$A"]
)
PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.binary(max_size=3)
)
VALUES = st.recursive(
    PLAIN | KNOWN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | PLAIN, inner, max_size=4),
    max_leaves=10,
)
FILES = st.dictionaries(st.sampled_from(FIELDS), VALUES).map(lambda file: {"type": "task", "commands": ["x"], **file})


@settings(max_examples=150, deadline=None)
@given(FILES, st.sampled_from([None, "", "|", ">", '"']), st.booleans())
@example({"type": "task", "nodes": "\u0661", "commands": [["x"]], "resources": {"gpu": {"name": [1]}}}, None, True)
def test_any_file_of_dstacks_form(file: dict[str, Any], style: str | None, flow: bool) -> None:
    text = yaml.safe_dump(file, default_style=style, default_flow_style=flow, allow_unicode=True)
    for name in ("a.yml", ".dstack.yml"):
        lint([Source(name, text.encode())], Wish())
