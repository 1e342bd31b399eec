"""What a run wrote of its validations, beside the files that it was to validate on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.smoke import validations
from devkit.smoke.checks import validated
from devkit.smoke.checks.validated import Answered, Wanted
from devkit.smoke.problems import write_parquet
from devkit.smoke.tiny import END, START, make_tokenizer
from trainer import validation
from trainer.config import load

WANTED = Wanted(2, {("b.parquet", 0): "one", ("b.parquet", 1): "two"}, True)
GOOD = (
    Answered(("b.parquet", 0), "gsm8k", "one", 1.0, 1.0),
    Answered(("b.parquet", 1), "gsm8k", "two", 0.0),
)
LOGGED = {"val/test_score/gsm8k": 0.5}


def test_as_configured() -> None:
    found = validated.as_configured(5, GOOD, WANTED, LOGGED)
    assert (found.ok, found.detail) == (True, "2 rows of data.val_files, each once; logged as 0.5 for gsm8k")


@pytest.mark.parametrize(
    ("answered", "logged", "said"),
    [
        ([replace(GOOD[0], row=("a.parquet", 7)), GOOD[1]], LOGGED, "row 7 of a.parquet, which is not in"),
        ([GOOD[0], GOOD[0]], LOGGED, "of 1 rows in 2 responses, of 2 rows"),
        (GOOD[:1], LOGGED, "of 1 rows in 1 responses, of 2 rows"),
        (GOOD[::-1], LOGGED, "in another order"),
        ([GOOD[0], replace(GOOD[1], prompt="three")], LOGGED, "another prompt for row 1 of b.parquet"),
        ([replace(GOOD[0], score=0.5), GOOD[1]], LOGGED, "row 0 of b.parquet 0.5, a direct call 1"),
        (GOOD, {"val/test_score/gsm8k": 0.25}, "logs val/test_score/gsm8k as 0.25, and its scores have a mean of 0.5"),
        (GOOD, {}, "as None"),
    ],
)
def test_what_is_wrong_is_named(answered: list[Answered], logged: dict[str, float], said: str) -> None:
    found = validated.as_configured(5, answered, WANTED, logged)
    assert found.ok is False and said in found.detail and ": look at trainer/" in found.detail, found.detail
    assert found.detail.startswith("the validation at step 5 ")


def test_means_as_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert validated.means_as_counted(1).ok is None
    whole = validation.validation_metrics
    monkeypatch.setattr(validation, "validation_metrics", lambda rollouts, scores: whole(rollouts[:1], scores[:1]))
    found = validated.means_as_counted(1)
    assert found.ok is False and "a validation logs val/test_score/source 0 as " in found.detail


def test_a_part_that_is_drawn_may_be_any() -> None:
    assert validated.as_configured(0, GOOD[::-1], replace(WANTED, in_order=False), LOGGED).ok is True
    found = validated.as_configured(0, GOOD[:1], Wanted(None, WANTED.prompts, False), {"val/test_score/gsm8k": 1.0})
    assert found.ok is True


def test_from_the_files_of_a_run(tmp_path: Path) -> None:
    train, test = write_parquet(tmp_path, 32, seed=1)
    words = [f"data.train_files={train}", f"data.val_files={test}", "data.max_prompt_length=30"]
    words += ["data.truncation=left", "actor_rollout_ref.model.path=none", "data.val_max_samples=-1"]
    config = load(words).config
    tokenizer = make_tokenizer(["How many apples are left?"])
    wanted = validations.wanted_of(config, tokenizer, set())
    assert (wanted.count, wanted.in_order, len(wanted.prompts)) == (4, True, 4)
    folder = tmp_path / "validations"
    folder.mkdir()
    lines = [
        {
            "row": f"row {index} of {file}",
            "data_source": "openai/gsm8k",
            "prompt": text,
            "score": 0.25,
            "response": START + "7" + END,
        }
        for (file, index), text in wanted.prompts.items()
    ]
    (folder / "3.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 2}\n{"step": 3, "val/test_score/openai/gsm8k": 0.25}\n')
    asked: list[tuple[str, int, str]] = []

    def score(*call: object) -> float:
        asked.append(call)  # type: ignore[arg-type]
        return 0.25

    [found] = validations.findings(folder, log, config, tokenizer, score)
    assert found.ok is True, found.detail
    assert asked == [(test, index, "7") for index in range(4)]
    part = replace(config, data=replace(config.data, val_max_samples=2))
    wanted = validations.wanted_of(part, tokenizer, {(test, 3), (test, 1), (test, 9), (train, 0)})
    assert (wanted.count, wanted.in_order, list(wanted.prompts)) == (2, False, [(test, 1), (test, 3)])
    [found] = validations.findings(
        folder, log, replace(config, data=replace(config.data, val_files=[test, test])), tokenizer, score
    )
    assert found.ok is None and "given twice" in found.detail
