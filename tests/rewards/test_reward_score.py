"""Choosing a scorer, loading the user's, scoring a batch, and naming what went wrong."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.pace import stretched
from trainer.config.schema import RewardFunctionConfig
from trainer.errors import ConfigError, RewardError
from trainer.records import Row
from trainer.rewards import (
    Scorer,
    build_scorer,
    known_data_sources,
    load_function,
    read_source,
    score_all,
    scorer_for,
)


def row(index: int = 0, source: str = "openai/gsm8k", truth: Any = "12", **extra: Any) -> Row:
    return Row(index=index, file="t.parquet", data_source=source, ground_truth=truth, extra_info=extra)


def custom(body: str, name: str = "compute_score", path: str = "mine.py") -> Scorer:
    return load_function(textwrap.dedent(body), path, name)


DEFAULT = build_scorer(RewardFunctionConfig(), None)


def test_a_batch_may_mix_data_sources() -> None:
    rows = [
        row(0),
        row(1, "DigitalLearningGmbH/MATH-lighteval", "5"),
        row(2, "lighteval/MATH", "5"),
        row(3, "searchR1_nq", {"target": ["Rome"]}),
        row(4, "nq", {"target": ["Rome"]}),
    ]
    responses = ["#### 12", r"\boxed{5}", r"\boxed{6}", "<answer>rome</answer>", "rome"]

    assert score_all(responses, rows, DEFAULT).scores == [1.0, 1.0, 0.0, 1.0, 0.0]


def test_every_known_data_source_has_a_scorer() -> None:
    assert {"openai/gsm8k", "HuggingFaceH4/MATH-500", "hotpotqa"} <= set(known_data_sources())
    assert all(callable(scorer_for(name)) for name in known_data_sources())


@pytest.mark.parametrize(
    ("name", "hint"), [("openai/gsm8", "did you mean openai/gsm8k?"), ("zzz", "known: openai/gsm8k")]
)
def test_unknown_data_source(name: str, hint: str) -> None:
    with pytest.raises(RewardError, match=f"row 3 of t.parquet: no reward function for data_source '{name}'") as caught:
        score_all(["x"], [row(3, name)], DEFAULT)

    assert hint in caught.value.hint
    assert "custom_reward_function.path" in caught.value.hint


def test_custom_function_is_called_by_keyword_with_all_of_the_row() -> None:
    scorer = custom(
        """
        def compute_score(extra_info, ground_truth, solution_str, data_source):
            return {"score": len(solution_str), "level": extra_info["level"], "is": data_source == "s"}
        """
    )

    scores = score_all(["ab", "abc"], [row(source="s", level=2), row(source="t", level=3)], scorer)

    assert scores.scores == [2.0, 3.0]
    assert scores.extras == {"level": [2.0, 3.0], "is": [1.0, 0.0]}


def test_extras_are_numbers_and_nan_where_missing() -> None:
    scorer = custom(
        """
        def compute_score(solution_str, **_):
            return {"score": 1, "text": "kept out", "none": None, **({"a": 5} if solution_str == "a" else {})}
        """
    )

    extras = score_all(["a", "b"], [row(), row()], scorer).extras

    assert list(extras) == ["a"]
    assert extras["a"][0] == 5.0
    assert math.isnan(extras["a"][1])


@pytest.mark.parametrize("value", [True, 1, np.float32(1), np.int64(1), np.bool_(True), torch.tensor(1.0)])
def test_any_kind_of_number_is_a_score(value: Any) -> None:
    assert score_all(["x"], [row()], lambda **_: value).scores == [1.0]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "NoneType None"),
        ("1.0", "str '1.0'"),
        (float("nan"), "float nan"),
        (float("inf"), "float inf"),
        ([1.0], "list"),
        ({"score": "x"}, "str 'x'"),
        ({"acc": 1.0}, 'without "score" (keys: acc)'),
    ],
)
def test_what_is_no_finite_number_names_the_row(value: Any, named: str) -> None:
    with pytest.raises(RewardError) as caught:
        score_all(["x", "y"], [row(7), row(8)], lambda **_: value)

    assert "row 7 of t.parquet" in caught.value.message
    assert named in caught.value.message


def test_a_raising_function_names_row_source_exception_and_line() -> None:
    scorer = custom(
        """
        import json
        def compute_score(solution_str, **_):
            return inner(solution_str)
        def inner(text):
            return json.loads(text)  # line 6; the standard library raises, but this line is the user's
        """,
        path="/nowhere/mine.py",
    )

    with pytest.raises(RewardError) as caught:
        score_all(["1", "{"], [row(0), row(5)], scorer)

    message = caught.value.message
    assert "row 5 of t.parquet (data_source 'openai/gsm8k') raised JSONDecodeError: " in message
    assert message.endswith("at /nowhere/mine.py:6 in inner")
    assert "\n" not in message
    assert isinstance(caught.value.__cause__, ValueError)
    shown = "".join(traceback.format_exception(caught.value))
    assert "line 6; the standard library raises" in shown  # the source is there though the file isn't


def test_a_long_message_of_many_lines_becomes_a_short_one_of_one() -> None:
    def scorer(**_: Any) -> float:
        raise ValueError("long\n" * 1000)

    with pytest.raises(RewardError) as caught:
        score_all(["x"], [row()], scorer)

    assert len(caught.value.message) < 1000
    assert "\n" not in caught.value.message


def test_a_wrong_ground_truth_of_our_own_scorer_names_the_row() -> None:
    with pytest.raises(RewardError, match=r"row 2 of t.parquet .*TypeError: ground_truth must be .*exact_match\.py"):
        score_all(["<answer>x</answer>"], [row(2, "nq", 5)], DEFAULT)


def test_the_error_survives_pickling() -> None:
    with pytest.raises(RewardError) as caught:
        score_all(["x"], [row(1)], lambda **_: None)  # type: ignore[arg-type]

    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.message, again.hint) == (caught.value.message, caught.value.hint)


def test_a_function_cannot_change_the_rows_extra_info() -> None:
    shared = row(level=1)

    score_all(["x"], [shared], custom("def compute_score(extra_info, **_):\n    extra_info.clear()\n    return 0"))

    assert shared.extra_info == {"level": 1}


def test_counts_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        score_all(["x"], [row(), row()], DEFAULT)


def test_read_source_and_build_scorer_go_together(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def half(solution_str, **_):\n    return 0.5\n")
    config = RewardFunctionConfig(path=str(file), name="half")

    source = read_source(config)
    file.unlink()  # the worker has no such file

    assert score_all(["x"], [row()], build_scorer(config, source)).scores == [0.5]


def test_no_path_no_source() -> None:
    assert read_source(RewardFunctionConfig()) is None


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"custom_reward_function.path=.*none.py: No such file") as caught:
        read_source(RewardFunctionConfig(path=str(tmp_path / "none.py")))
    assert caught.value.hint


def test_a_file_that_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "mine.pyc").write_bytes(b"\xa7\x0d\xff")
    with pytest.raises(ConfigError, match="not a UTF-8 text"):
        read_source(RewardFunctionConfig(path=str(tmp_path / "mine.pyc")))


def test_a_missing_name_lists_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match=r"mine.py has no function compute_score") as caught:
        custom("from json import loads\ndef score(**_): return 1\ndef reward(**_): return 2\nconstant = 3")
    assert caught.value.hint.endswith("one of: score, reward")


def test_a_name_that_is_no_function() -> None:
    with pytest.raises(ConfigError, match="no function constant") as caught:
        custom("constant = 3", name="constant")
    assert caught.value.hint == "define constant in it"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nimport no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here' (line 2)"),
        ("def f(:\n  pass", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("def f():\n    1 / 0\n\nf()", "ZeroDivisionError: division by zero (line 2)"),
    ],
)
def test_a_module_that_raises_names_the_line(source: str, message: str) -> None:
    with pytest.raises(RewardError) as caught:
        custom(source)
    assert caught.value.message == f"mine.py raised while it was loaded: {message}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def compute_score(text, truth): return 1", "compute_score(text, truth) in mine.py is not a reward function"),
        ("def compute_score(solution_str): return 1", "unexpected keyword argument"),
        ("async def compute_score(**_): return 1", "is async"),
    ],
)
def test_a_function_that_cannot_be_called_fails_when_it_is_loaded(source: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        custom(source)
    assert message in caught.value.message
    assert caught.value.hint.startswith("def compute_score(data_source, solution_str, ground_truth")


def test_a_module_may_define_dataclasses() -> None:
    scorer = custom(
        """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Verdict:
            value: float

        def compute_score(**_):
            return Verdict(0.25).value
        """
    )

    assert score_all(["x"], [row()], scorer).scores == [0.25]


def test_import_is_light() -> None:
    program = "import sys, trainer.rewards; print([m for m in ('torch', 'math_verify', 'sympy') if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=stretched(60), check=True
    )

    assert done.stdout.strip() == "[]"
