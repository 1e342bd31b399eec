"""The order of the data, the prompts that came back and their tokens: each mistake in them has a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import strategies as st

from devkit.smoke import file_rows
from devkit.smoke.checks import prompts
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.file_rows import DataPlan, FileRows, RowId, cut_to
from devkit.smoke.tiny import make_tokenizer
from trainer.config.schema import DataConfig
from trainer.data import dataset
from trainer.data.dataset import load_prompts
from trainer.data.loader import PromptLoader
from trainer.records import Prompts
from trainer.rows import repeat, take

ROWS = [f"{'word ' * (3 * i % 11)}{i} and {i * i}" for i in range(48)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(ROWS)


def written(path: Path, texts: list[str], chat: bool = True) -> str:
    """Prompts as messages, or as they are."""
    column: list[Any] = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    columns = {
        "prompt": column,
        "data_source": ["made up"] * len(texts),
        "reward_model": [{"style": "rule", "ground_truth": text} for text in texts],
    }
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    files = [written(tmp_path / "a.parquet", ROWS[:40]), written(tmp_path / "b.parquet", ROWS[40:], chat=False)]
    return DataConfig(train_files=files, train_batch_size=8, max_prompt_length=20, truncation="left")


def loaded(data: DataConfig, tokenizer: Any) -> PromptLoader:
    rows = load_prompts(data.train_files, data, tokenizer, max_samples=data.train_max_samples, seed=1)
    return PromptLoader(rows, data.train_batch_size, pad_id=0, shuffle=data.shuffle, seed=1, drop_last=True)


def batches(data: DataConfig, tokenizer: Any, count: int) -> Iterator[Prompts]:
    """Of as many steps, as the trainer gives them to a rollout with two samples each."""
    loader = loaded(data, tokenizer)
    while True:
        for given in loader:
            if not count:
                return
            count -= 1
            yield repeat(given, 2)


def order(given: Prompts) -> list[RowId]:
    return [(row.file, row.index) for row in given.rows][::2]


def looked_at(data: DataConfig, tokenizer: Any, count: int = 14) -> list[Outcome]:
    """All three checks after each step; the findings that are no pass, or the last three."""
    files, steps, found = FileRows(data, tokenizer), dict[int, list[RowId]](), list[Outcome]()
    for step, given in enumerate(batches(data, tokenizer, count), 1):
        steps[step] = order(given)
        found = [
            prompts.in_order(steps, files.plan),
            prompts.came_back(given.samples, step, files.plan, 2, [0, 1]),
            prompts.as_in_file(given, files),
        ]
        if not all(each.ok for each in found):
            return [each for each in found if not each.ok]
    return found


def fails(found: list[Outcome], words: str) -> None:
    assert [each.ok for each in found] == [False], found
    assert re.search(words + r".*: look at \S+\.py:\d+$", found[0].detail), found[0].detail


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
@pytest.mark.parametrize("most", [-1, 24, 47])
@pytest.mark.parametrize("shuffle", [False, True])
def test_right_data_pass(
    data: DataConfig, tokenizer: Any, shuffle: bool, most: int, truncation: str, filtered: bool
) -> None:
    data = replace(
        data, shuffle=shuffle, train_max_samples=most, truncation=truncation, filter_overlong_prompts=filtered
    )
    data = replace(data, max_prompt_length=24 if filtered else 20, train_batch_size=4 if filtered else 8)
    order_, back, tokens = looked_at(data, tokenizer)
    assert back.detail == f"{data.train_batch_size} prompts came back 2 times each, from 2 engines"
    assert re.search(
        rf"prompts match the files; {'0' if filtered else '[1-9]'} of them cut on the {truncation}", tokens.detail
    )
    known = not (filtered and shuffle and most > 0)
    assert ("each row once" in order_.detail) is known


def test_an_order_that_repeats(data: DataConfig, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = PromptLoader._order

    def repeats(self: PromptLoader) -> Any:
        epoch, self._epoch = self._epoch, 0
        found, self._epoch = right(self), epoch
        return found

    monkeypatch.setattr(PromptLoader, "_order", repeats)
    fails(looked_at(data, tokenizer), "epoch 2 has the order of epoch 1: the order of the data repeats")


def test_an_order_of_its_own(data: DataConfig, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = PromptLoader._order
    monkeypatch.setattr(PromptLoader, "_order", lambda self: sorted(right(self)))
    fails(looked_at(data, tokenizer), "data.shuffle is on, but the rows of epoch 1 are in the files' order")
    monkeypatch.setattr(PromptLoader, "_order", lambda self: list(right(self))[::-1])
    data = replace(data, shuffle=False)
    fails(
        looked_at(data, tokenizer), "data.shuffle is off, but step 1 has row 7 of b.parquet where the files have row 0"
    )


def test_the_same_batch(data: DataConfig, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptLoader, "_order", lambda self: list(range(8)) * 6)
    found = looked_at(replace(data, shuffle=False), tokenizer)
    fails(found, "step 2 has the batch of step 1 again")
    monkeypatch.setattr(PromptLoader, "_order", lambda self: [*range(9), *range(8, 47)])
    fails(
        looked_at(replace(data, shuffle=False), tokenizer),
        "row 8 of a.parquet comes twice in epoch 1: in steps 2 and 2",
    )


def test_shuffled_within_batches_alone(data: DataConfig) -> None:
    file = data.train_files[0]
    plan = DataPlan({file: 40}, None, 40, 20, shuffle=True)
    rows = [(file, (7 * i) % 40) for i in range(40)]
    steps = {1: rows[:20], 2: rows[20:], 3: rows[:20][::-1], 4: rows[20:][::-1]}
    assert prompts.in_order({step: steps[step] for step in (1, 2)}, plan).ok
    fails([prompts.in_order(steps, plan)], "epoch 2 has the batches of epoch 1")


def test_chance_is_no_finding() -> None:
    """Two rows have two orders: an epoch like the one before it says nothing."""
    plan = DataPlan({"a": 2}, (("a", 0), ("a", 1)), 2, 1, shuffle=True)
    assert prompts.in_order({1: [("a", 0)], 2: [("a", 1)], 3: [("a", 0)], 4: [("a", 1)]}, plan).ok
    one = DataPlan({"a": 1}, (("a", 0),), 1, 1, shuffle=False)
    assert prompts.in_order({1: [("a", 0)], 2: [("a", 0)]}, one).ok


def test_rows_that_are_not_to_be_trained_on(data: DataConfig) -> None:
    plan = DataPlan({"a": 40}, None, 16, 8, shuffle=True)
    steps = {step: [("a", 8 * step + i) for i in (3, 1, 2, 0, 4, 7, 6, 5)] for step in range(5)}
    first, second, third = ([("a", row) for _, row in steps[step]] for step in range(3))
    fails([prompts.in_order({1: [("a", 40), *first[1:]]}, plan)], "step 1 has row 40 of a, which should not be")
    fails([prompts.in_order({1: first[1:]}, plan)], "step 1 has 7 prompts, but data.train_batch_size is 8")
    fails([prompts.in_order({1: first, 2: second, 3: third}, plan)], "24 different rows were trained on in 2 epochs")
    assert prompts.in_order({1: first}, replace(plan, doubled=True)).ok is None


def test_a_resumed_run_goes_on() -> None:
    assert prompts.goes_on(3, [("a", 1)], [("a", 1)]).ok
    fails(
        [prompts.goes_on(3, [("a", 1)], [("a", 2)])],
        "after resuming, step 3 begins with row 2 of a, and began with row 1",
    )


PLAN = DataPlan({"a": 12}, None, 12, 4, shuffle=True)
FOURTH = [
    (uid, sample) for uid in range(12, 16) for sample in (0, 1)
]  # the samples of step 4, the second epoch's first


def test_prompts_came_back() -> None:
    assert prompts.came_back(FOURTH, 4, PLAN, 2, [0, 1]).ok
    assert prompts.came_back(FOURTH[::-1], 4, PLAN, 2, [0, 1]).ok
    fails([prompts.came_back(FOURTH, 3, PLAN, 2, [0, 1])], "8 of 8 requested samples did not come back: prompt uid 8")
    same = [prompts.came_back(FOURTH[:4] * 2, 4, PLAN, 2, [1, 3])]
    fails(same, "rank 3 generated for prompts of rank 1: prompt uid 12, sample 0 came back 2 times")
    alone = [(uid, 0) for uid, _ in FOURTH]
    fails([prompts.came_back(alone, 4, PLAN, 2, [0, 1])], "rank 0 generated twice: prompt uid 12, sample 0")
    fails([prompts.came_back(FOURTH[:-1], 4, PLAN, 2, [0])], "1 of 8 requested samples .*: prompt uid 15, sample 1")
    strange = [*FOURTH[:-1], (99, 0)]
    fails([prompts.came_back(strange, 4, PLAN, 2, [0])], "uid 15, sample 1; 1 were not requested")


def test_truncation_on_the_wrong_side(data: DataConfig, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = dataset.truncated
    for configured, done in (("left", "right"), ("right", "middle"), ("middle", "left")):
        monkeypatch.setattr(dataset, "truncated", lambda ids, limit, _, done=done: right(ids, limit, done))
        found = looked_at(replace(data, truncation=configured), tokenizer)
        fails(found, rf"^the prompt of row \d+ of [ab].parquet is cut on the {done}, and data.truncation={configured}")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda ids, limit, side: ids, "has [0-9]+ tokens, but data.max_prompt_length=20"),
        (lambda ids, limit, side: ids[:7], "has 7 tokens but should have 20"),
        (lambda ids, limit, side: [*ids[-limit:-1], 3], "differs from its row's at token 19"),
    ],
)
def test_other_tokens(
    data: DataConfig, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., Any], words: str
) -> None:
    monkeypatch.setattr(dataset, "truncated", spoil)
    fails(looked_at(data, tokenizer), words)


def test_prompts_of_other_rows(data: DataConfig, tokenizer: Any) -> None:
    [given] = batches(replace(data, shuffle=False), tokenizer, 1)
    files = FileRows(data, tokenizer)
    swapped = replace(given, rows=(*given.rows[2:], *given.rows[:2]))
    fails([prompts.as_in_file(swapped, files)], "^the prompt of row 1 of a.parquet is that of row 0 of a.parquet")
    beside = [replace(row, index=(row.index + 1) % 20) for row in given.rows]
    alone = prompts.as_in_file(take(replace(given, rows=tuple(beside)), torch.arange(1)), files)
    fails([alone], f"^the prompt of row {beside[0].index} of .*.parquet is that of row {given.rows[0].index} of ")


def test_a_filter_that_lets_through(data: DataConfig, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(data, filter_overlong_prompts=True)
    files = FileRows(asked, tokenizer)
    found = [prompts.as_in_file(given, files) for given in batches(data, tokenizer, 2)]
    fails(found[:1], r"has \d+ tokens: data.filter_overlong_prompts should drop it")


def test_what_is_read_is_what_is_tokenised(tmp_path: Path, tokenizer: Any) -> None:
    """With and without a chat template, messages of several roles."""
    said = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1 2"}]
    assert tokenizer.decode(file_rows.tokens_of(said, tokenizer)) == (
        "<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n1 2<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(file_rows.tokens_of("1 2", tokenizer)) == "1 2"
    plain = make_tokenizer(ROWS)
    plain.chat_template = None
    assert plain.decode(file_rows.tokens_of(said, plain)) == "Count.\n1 2"


@hypothesis.given(
    st.lists(st.integers(), max_size=12), st.integers(1, 12), st.sampled_from(["left", "right", "middle"])
)
def test_cut_to(ids: list[int], limit: int, side: str) -> None:
    """As the trainer cuts, by another way."""
    expected = dataset.truncated(ids, limit, side) if len(ids) > limit else ids
    assert cut_to(ids, limit, side) == expected
