"""The filter of too long prompts stays where it leaves rows enough to train on, which the tiny tokenizer decides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.smoke.problems import write_parquet
from devkit.smoke.results import Results
from devkit.smoke.shrink import make_plan
from devkit.smoke.stages import FILTER, Stages, prompt_texts
from devkit.smoke.tiny import make_tokenizer


@pytest.mark.parametrize(
    ("limit", "kept", "said"),
    [
        (80, True, "kept: data.filter_overlong_prompts=True after all"),  # rows have about 53 tokens
        (20, False, "reduced: data.filter_overlong_prompts True -> False: it leaves only 0 steps of rows"),
    ],
)
def test_where_enough_prompts_are_short(tmp_path: Path, limit: int, kept: bool, said: str) -> None:
    notes: list[str] = []
    outside: Any = SimpleNamespace(note=notes.append)  # cluster, warm process and clock are not asked for anything
    plan = make_plan([f"{FILTER}=True", f"data.max_prompt_length={limit}"], None)
    stages = Stages(plan, Results(), outside, tmp_path, outside, outside, outside, seed=0)
    (tmp_path / "problems").mkdir()
    stages.problems = write_parquet(tmp_path / "problems", 128, 0)
    stages.config = stages._pipeline_config()
    assert not stages.config.data.filter_overlong_prompts
    make_tokenizer(prompt_texts(stages.config)).save_pretrained(stages.model)
    stages._keep_filter()
    assert stages.config.data.filter_overlong_prompts is kept and notes[0].startswith(said)
    assert (FILTER in stages.plan.kept, FILTER in {cut.key for cut in stages.plan.cut}) == (kept, not kept)
