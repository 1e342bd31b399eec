"""Published records to parquet: what is written, and what is said of a bad record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from tests.pace import stretched
from trainer.config.schema import DataConfig, RewardFunctionConfig
from trainer.data.dataset import load_prompts
from trainer.data.prepare import main, prepare
from trainer.data.sources import split_of
from trainer.errors import ConfigError, DataError
from trainer.rewards import build_scorer, score_all, scorer_for

GSM8K = {"question": "Ann has 900 pens and buys 134. How many?", "answer": "900+134=<<900+134=1034>>1034\n#### 1,034"}
MATH = {
    "problem": "Halve $\\frac{2}{3}$.",
    "level": "Level 1",
    "type": "Algebra",
    "solution": "It is $\\boxed{\\frac{1}{3}}$.",
}
NQ = {"question": "who wrote the made up book", "answer": ["Ann Other", "A. Other"]}

Lines = Callable[..., Path]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """`lines(name, *records)`: a JSON-lines file; a record that is a string is written as it is."""

    def write(name: str, *records: Any) -> Path:
        path = tmp_path / "in" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n")
        return path

    return write


def test_gsm8k(lines: Lines, tmp_path: Path) -> None:
    [path] = prepare("gsm8k", [str(lines("train.jsonl", GSM8K))], tmp_path / "out")

    assert path == tmp_path / "out" / "train.parquet"
    [row] = pq.read_table(path).to_pylist()
    [message] = row.pop("prompt")
    assert message["role"] == "user"
    assert message["content"].startswith(GSM8K["question"] + " ")
    assert '"#### "' in message["content"]
    assert row == {
        "data_source": "openai/gsm8k",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1034"},
        "extra_info": {"split": "train", "index": 0, **GSM8K},
    }


def test_math(lines: Lines, tmp_path: Path) -> None:
    [path] = prepare("math", [str(lines("test.jsonl", MATH))], tmp_path / "out")

    [row] = pq.read_table(path).to_pylist()
    assert path.name == "test.parquet"
    assert row["data_source"] == "DigitalLearningGmbH/MATH-lighteval"
    assert row["reward_model"]["ground_truth"] == "\\frac{1}{3}"
    assert row["prompt"][0]["content"].endswith("\\boxed{}.")
    assert row["extra_info"] == {
        "split": "test",
        "index": 0,
        "question": MATH["problem"],
        "answer": MATH["solution"],
    }


@pytest.mark.parametrize("key", ["answer", "golden_answers"])
def test_nq(lines: Lines, tmp_path: Path, key: str) -> None:
    record = {"question": NQ["question"], key: NQ["answer"]}

    [path] = prepare("nq", [str(lines("NQ-open.dev.jsonl", record))], tmp_path / "out")

    [row] = pq.read_table(path).to_pylist()
    assert path.name == "test.parquet"
    assert row["data_source"] == "nq"
    assert row["reward_model"]["ground_truth"] == {"target": NQ["answer"]}
    assert "<answer> and </answer>" in row["prompt"][0]["content"]
    assert NQ["question"] in row["prompt"][0]["content"]


@pytest.mark.parametrize(
    ("task", "record", "response"),
    [("gsm8k", GSM8K, GSM8K["answer"]), ("math", MATH, MATH["solution"]), ("nq", NQ, "<answer>a other</answer>")],
)
def test_what_prepare_writes_is_loaded_and_scored(
    lines: Lines, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, task: str, record: Any, response: str
) -> None:
    [path] = prepare(task, [str(lines("train.jsonl", record, record))], tmp_path / "out")

    dataset = load_prompts([str(path)], DataConfig(), tokenizer)

    rows = [dataset[i].row for i in range(len(dataset))]
    assert [scorer_for(name) for name in dataset.data_sources]
    assert score_all([response, "nothing"], rows, build_scorer(RewardFunctionConfig(), None)).scores == [1.0, 0.0]


def test_a_question_with_braces_is_text(lines: Lines, tmp_path: Path) -> None:
    record = {**MATH, "problem": "Let $S = \\{x\\}$ and {question}."}

    [path] = prepare("math", [str(lines("train.jsonl", record))], tmp_path / "out")

    assert pq.read_table(path).to_pylist()[0]["prompt"][0]["content"].startswith(record["problem"])


def test_a_folder_gives_both_splits(lines: Lines, tmp_path: Path) -> None:
    lines("train.jsonl", GSM8K, "", GSM8K)  # an empty line is none
    folder = lines("test.jsonl", GSM8K).parent

    written = prepare("gsm8k", [str(folder)], tmp_path / "out")

    assert [path.name for path in written] == ["train.parquet", "test.parquet"]
    assert [pq.read_table(path).num_rows for path in written] == [2, 1]


def test_a_pipe_in_a_folder_is_not_waited_for(lines: Lines, tmp_path: Path) -> None:
    folder = lines("train.jsonl", GSM8K).parent
    os.mkfifo(folder / "test.jsonl")
    assert [path.name for path in prepare("gsm8k", [str(folder)], tmp_path / "out")] == ["train.parquet"]


def test_split_chooses_from_a_folder(lines: Lines, tmp_path: Path) -> None:
    lines("train.jsonl", GSM8K)
    folder = lines("test.jsonl", GSM8K).parent

    assert [path.name for path in prepare("gsm8k", [str(folder)], tmp_path / "out", split="test")] == ["test.parquet"]


def test_several_inputs_are_numbered_through_and_limited(lines: Lines, tmp_path: Path) -> None:
    files = [str(lines(f"part{i}.jsonl", GSM8K, GSM8K)) for i in range(3)]

    [path] = prepare("gsm8k", files, tmp_path / "out", split="train", limit=5)

    assert [row["extra_info"]["index"] for row in pq.read_table(path).to_pylist()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("gsm8k_train-v2.jsonl", "train"),
        ("NQ-open.dev.jsonl", "test"),
        ("validation.jsonl", "test"),
        ("my_test_file.jsonl", "test"),
        ("trainer.jsonl", None),
        ("latest.jsonl", None),
        ("data.jsonl", None),
    ],
)
def test_split_of(name: str, split: str | None) -> None:
    assert split_of(name) == split


@pytest.mark.parametrize(
    ("task", "record", "message"),
    [
        ("gsm8k", "{nonsense", "not JSON"),
        ("gsm8k", "[1]", "not a JSON object"),
        ("gsm8k", "{}", "no text under 'question' (keys: none)"),
        ("gsm8k", {"question": "q", "answer": "12"}, "no number after ####"),
        ("gsm8k", {"question": "q", "answer": "#### none"}, "no number after ####"),
        ("gsm8k", {"question": 3, "answer": "#### 1"}, "no text under 'question'"),
        ("math", {"problem": "p", "solution": "5"}, "no complete \\boxed{}"),
        ("math", {"problem": "p", "solution": "\\boxed{5"}, "no complete \\boxed{}"),
        ("math", GSM8K, "no text under 'problem' (keys: question, answer)"),
        ("nq", {"question": "q", "answer": "text"}, "no list of texts"),
        ("nq", {"question": "q", "answer": []}, "no list of texts"),
    ],
)
def test_a_bad_line_is_named(lines: Lines, tmp_path: Path, task: str, record: Any, message: str) -> None:
    good = {"gsm8k": GSM8K, "math": MATH, "nq": NQ}[task]
    file = lines("train.jsonl", good, record, good)

    with pytest.raises(DataError) as caught:
        prepare(task, [str(file)], tmp_path / "out")

    assert f"{file} line 2: " in caught.value.message
    assert message in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_text_are_named(lines: Lines, tmp_path: Path) -> None:
    file = lines("train.jsonl", GSM8K)
    file.write_bytes(file.read_bytes() + b'{"question": "\xff"}\n')

    with pytest.raises(DataError, match="line 2: not JSON"):
        prepare("gsm8k", [str(file)], tmp_path / "out")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lines("train.jsonl", GSM8K)
    [path] = prepare("gsm8k", [str(file)], tmp_path / "out")
    before = path.read_bytes()

    def fail(table: Any, where: BinaryIO) -> None:
        where.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.data.prepare.pq.write_table", fail)
    with pytest.raises(DataError, match=r"train.parquet can't be written: No space left on device"):
        prepare("gsm8k", [str(file)], tmp_path / "out")

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda lines: "none.jsonl", DataError, "none.jsonl: no such file or folder"),
        (lambda lines: str(lines("data.jsonl", GSM8K)), ConfigError, "doesn't say which split"),
        (lambda lines: str(lines("train.jsonl")), DataError, "no records in"),
        (lambda lines: str(lines("x.txt", GSM8K).parent), DataError, "no *.jsonl file"),
    ],
)
def test_inputs_that_cannot_be_used(
    lines: Lines, tmp_path: Path, make: Callable[[Lines], str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        prepare("gsm8k", [make(lines)], tmp_path / "out")
    assert message in str(caught.value)


def test_the_hub_needs_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.sources.importlib.util.find_spec", lambda name: None)

    with pytest.raises(DataError, match="needs the datasets library") as caught:
        prepare("gsm8k", ["openai/gsm8k"], tmp_path)
    assert caught.value.hint.startswith("pip install datasets")


def _fake_hub(monkeypatch: pytest.MonkeyPatch, load_dataset: Callable[..., Any]) -> None:
    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.setattr("trainer.data.sources.importlib.util.find_spec", lambda name: object())


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any) -> dict[str, list[dict[str, str]]]:
        asked.append(args)
        return {"train": [GSM8K, GSM8K], "test": [GSM8K]}

    _fake_hub(monkeypatch, load_dataset)

    written = prepare("gsm8k", ["openai/gsm8k"], tmp_path)

    assert asked == [("openai/gsm8k", "main")]
    assert [pq.read_table(path).num_rows for path in written] == [2, 1]


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any) -> None:
        raise ConnectionError("no\nnetwork")

    _fake_hub(monkeypatch, load_dataset)

    with pytest.raises(DataError, match="openai/gsm8k: no network"):
        prepare("gsm8k", ["openai/gsm8k"], tmp_path)


def test_the_command_says_what_it_wrote(lines: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["gsm8k", "--input", str(lines("train.jsonl", GSM8K, GSM8K)), "--output", str(tmp_path), "--limit", "1"]

    assert main(argv) == 0

    out, err = capsys.readouterr()
    first, sample = out.splitlines()
    assert first == f"{tmp_path / 'train.parquet'}: 1 rows, such as"
    assert json.loads(sample)["reward_model"] == {"style": "rule", "ground_truth": "1034"}
    assert err == ""


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["gsm9k", "--output", "x"],
        ["gsm8k", "--input", "none.jsonl", "--output", "x"],
        ["gsm8k", "--input", "none.jsonl"],
        ["gsm8k", "--output", "x", "--limit", "0"],
        ["gsm8k", "--output", "x", "--split", "dev"],
    ],
)
def test_an_error_is_two_lines_and_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2

    out, err = capsys.readouterr()
    error, hint = err.splitlines()
    assert out == ""
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")


def test_the_command_needs_neither_torch_nor_transformers(lines: Lines, tmp_path: Path) -> None:
    program = (
        "import sys; from trainer.data.prepare import main; code = main(sys.argv[1:]);"
        "print([m for m in ('torch', 'transformers', 'math_verify') if m in sys.modules]); sys.exit(code)"
    )
    argv = ["math", "--input", str(lines("train.jsonl", MATH)), "--output", str(tmp_path)]

    done = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=stretched(60), check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_question_to_search_for_has_search_r1s_prompt(lines: Lines, tmp_path: Path) -> None:
    path = lines("nq.train.jsonl", NQ, {**NQ, "question": " who? "})
    [written] = prepare("nq", [str(path)], tmp_path, search=True)
    prompts = [row["prompt"][0]["content"] for row in pq.read_table(written).to_pylist()]
    assert [len(row["prompt"]) for row in pq.read_table(written).to_pylist()] == [1, 1]
    assert prompts[0].startswith(
        "Answer the given question. You must conduct reasoning inside <think> and </think> first "
    )
    assert " call a search engine by <search> query </search> and it will return the top searched " in prompts[0]
    assert "You can search as many times as your want. " in prompts[0]  # theirs
    assert prompts[0].endswith(f"For example, <answer> Beijing </answer>. Question: {NQ['question']}?\n")
    assert prompts[1].endswith("Question: who?\n")
    row = pq.read_table(written).to_pylist()[0]
    assert (row["data_source"], row["ability"], row["extra_info"]["index"]) == ("nq", "fact-reasoning", 0)
    assert row["reward_model"] == {"style": "rule", "ground_truth": {"target": NQ["answer"]}}


@pytest.mark.parametrize("record", [{"question": "q", "answer": "a"}, {"question": "q", "golden_answers": ["a"]}])
def test_hotpotqa_as_it_is_published_and_as_flashrag_has_it(
    lines: Lines, tmp_path: Path, record: dict[str, object]
) -> None:
    [written] = prepare("hotpotqa", [str(lines("train.jsonl", record))], tmp_path, search=True)
    assert pq.read_table(written).to_pylist()[0]["data_source"] == "hotpotqa"
    assert pq.read_table(written).to_pylist()[0]["reward_model"]["ground_truth"] == {"target": ["a"]}


def test_only_questions_can_be_searched_for(lines: Lines, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to search for in gsm8k") as caught:
        prepare("gsm8k", [str(lines("train.jsonl", GSM8K))], tmp_path, search=True)
    assert "hotpotqa" in caught.value.hint
