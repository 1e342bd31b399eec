"""What is told of a user's own reward function and data, and what is not: a legitimate one never fails."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from devkit.errors import DevkitError
from devkit.records import CheckResult
from devkit.smoke import made_up_responses as made_up
from devkit.smoke import probing, users
from devkit.smoke.checks import users_answers, users_data, users_own, users_settings
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.checks.users_data import Sampled
from devkit.smoke.checks.users_own import Placed
from devkit.smoke.direct_process import Answer, Call, DirectProcess, Loaded
from devkit.smoke.made_up_responses import Said
from devkit.smoke.probing import Probed, probe
from devkit.smoke.problems import write_parquet
from devkit.smoke.results import Results
from devkit.smoke.row_reader import RowReader
from devkit.smoke.shrink import make_plan
from devkit.smoke.tiny import TinySpec, build, make_tokenizer
from devkit.smoke.users import UsersOwn
from tests.smoke.calls import DEADLINE_S, smoke
from trainer import roles, shaping
from trainer.config import resolve
from trainer.config.schema import Config, DataConfig
from trainer.data.dataset import load_prompts
from trainer.data.loader import PromptLoader
from trainer.data.parquet import Part
from trainer.records import Experience, Rollout, Row, Scores
from trainer.rewards import build_scorer, read_source, score_all

CHECKS: dict[str, Callable[[Probed], Outcome]] = {
    "calls": lambda probed: users_own.reward_calls(probed, step_rows=1024, ranks=8),
    "repeats": lambda probed: users_own.reward_repeats(probed),
    "truth": lambda probed: users_own.reward_truth(probed),
    "answer": lambda probed: users_answers.reward_answer(probed),
    "text": lambda probed: users_own.reward_text(probed),
}
HEAD = """
import random, re, time
from difflib import SequenceMatcher

state = {"calls": 0, "last": None, "seen": {}}
draws = random.Random(0)

def boxed(text):
    return next(iter(re.findall(r"<answer>(.*?)</answer>", text)[-1:]), "")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_parquet(tmp_path_factory.mktemp("data"), 32, seed=0)[0]


@contextmanager
def called(folder: Path, source: str | None, *, head: str = HEAD) -> Iterator[tuple[DirectProcess, str]]:
    """A process that calls `compute_score`, whose body is `source`; None: the trainer's own scorer."""
    text = written(folder, source, head)
    process = started(folder, source)
    try:
        yield process, text
    finally:
        process.close()


def written(folder: Path, source: str | None, head: str = HEAD) -> str:
    """The text of the user's file, which is written where there is one."""
    if source is None:
        return ""
    lines = "\n".join(f"    {line}" for line in source.splitlines())
    text = f"{head}\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n{lines}\n"
    (folder / "reward.py").write_text(text)
    return text


def started(folder: Path, source: str | None) -> DirectProcess:
    path = None if source is None else str(folder / "reward.py")
    own = SimpleNamespace(path=path, name="compute_score")
    keys = SimpleNamespace(prompt_key="prompt", reward_fn_key="data_source")
    config = cast(Any, SimpleNamespace(custom_reward_function=own, data=keys))
    return DirectProcess(config, folder / "reward.log")


# To start takes a process longer than most tests: for the trainer's own scorer there is one, and one for all files of
# users, each of which it loads as it loads a file anew.
_running: dict[str, DirectProcess] = {}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    yield
    while _running:
        _running.popitem()[1].close()


def asked(folder: Path, file: str, source: str | None) -> Probed:
    kind = "the trainer's" if source is None else "a user's"
    if kind not in _running:
        text = written(folder, source)
        _running[kind] = started(folder, source)
    else:
        process = _running[kind]
        text = written(process.log.parent, source)
        process._loaded = None
        process._tell({"do": "load"})
    try:
        return probe(_running[kind], RowReader("prompt", "data_source"), file, text, longest=512)
    except BaseException:
        _running.pop(kind).close()
        raise


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as decide it."""
    monkeypatch.setattr(probing, "ROWS", (4, 2))


def said(outcome: Outcome, ok: bool | None, words: str) -> None:
    assert outcome.ok is ok, outcome.detail
    assert re.search(words, outcome.detail), outcome.detail


# ------------------------------------------------------------------------------------------- what nobody can mean so

MISTAKES = {
    "raises on nothing": ("return float(solution_str.split()[0] == ground_truth)", "calls", "IndexError.*reward.py:12"),
    "divides by nothing": ("return sum(map(str.isdigit, solution_str)) / len(solution_str)", "calls", "ZeroDivision"),
    "raises on odd digits": (
        "found = re.findall(r'#### (.)', solution_str)\n"
        "return float(bool(found) and found[-1].isdigit() and int(found[-1]) == int(ground_truth[0]))",
        "calls",
        "raises ValueError.*for a number in non-ASCII digits",
    ),
    "encodes as ASCII": ("return float(ground_truth.encode() in solution_str.encode('ascii'))", "calls", "non-ASCII"),
    "gives NaN": ("n = len(solution_str)\nreturn float('nan') if n == 0 else 1.0 / n", "calls", "gives nan"),
    "dots are no number": (
        "found = re.findall(r'#### ([.0-9]+)', solution_str)\n"
        "return float(bool(found) and float(found[-1]) == float(ground_truth))",
        "calls",
        "raises ValueError: could not convert.*for dots instead of a number",
    ),
    "is infinite": (
        "found = re.findall(r'#### (-?[0-9][.0-9e]*)', solution_str)\n"
        "return -abs(float(found[-1]) - float(ground_truth)) if found else -1e6",
        "calls",
        "gives -inf for an infinite number",
    ),
    "gives a text": ("return '1.0' if ground_truth in solution_str else '0.0'", "calls", "gives a str"),
    "gives None": ("if ground_truth in solution_str:\n    return 1.0", "calls", "gives None"),
    "gives no score": ("return {'reward': 1.0}", "calls", 'a dict without "score"'),
    "ends the process": ("raise SystemExit(3)", "calls", "SystemExit: 3"),
    "never looks at the response": ("return 1.0 if ground_truth else 0.0", "truth", "never looks at the response"),
    "the other way round": ("return 0.0 if ground_truth in solution_str else 1.0", "truth", "earns less than a wrong"),
    "a distance": (
        "return 1 - SequenceMatcher(None, boxed(solution_str), ground_truth).ratio()",
        "truth",
        "earns less than a wrong",
    ),
    "of two types": (
        "found = re.findall(r'#### ([0-9]{1,9})', solution_str)\n"
        "return 0.1 + 0.9 * (int(found[-1]) == ground_truth) if found else 0.0",
        "truth",
        "ignores the ground truth.*although it reads it",
    ),
    "the form alone, the truth elsewhere": (
        "found = re.findall(r'#### ([0-9]+)', solution_str)\n"
        "return {'score': float(bool(found)), 'acc': float(found[-1:] == [ground_truth])}",
        "truth",
        "ignores the ground truth.*although it reads it",
    ),
    "catches its own mistake": (
        "try:\n"
        "    answer = re.findall(r'[0-9]+', solution_str + ' 0')[-1]\n"
        "    return float(int(answer) == int(ground_truth['answer']))\n"
        "except Exception:\n"
        "    return 0.0",
        "truth",
        r"each call raises TypeError.* at .*reward.py:1\d, and catches it itself: it gave 0 to all",
    ),
    "looks beside the response": (
        "return float(str(extra_info['index']) in solution_str + str(extra_info))",
        "truth",
        "it gave 1 to all of .*, and nonsense, too",
    ),
    "the first number": (
        "found = re.findall(r'-?[0-9]+', solution_str)\nreturn float(found[:1] == [ground_truth])",
        "answer",
        "a number before a right answer is taken for it",
    ),
    "somewhere in it": (
        "return float(ground_truth in solution_str.replace(',', ''))",
        "answer",
        "a number that only contains the right one is right",
    ),
    "a pattern within one line": (
        "found = re.fullmatch(r'<think>.*</think>.*<answer>(.*)</answer>', solution_str.replace('>\\n<', '><'))\n"
        "return 0.2 + 0.8 * (found[1] == ground_truth) if found else 0.0",
        "answer",
        "line breaks before a right answer make it wrong",
    ),
    "a penalty that outweighs": (
        "found = re.findall(r'-?[0-9]+', solution_str)\n"
        "return float(found[-1:] == [ground_truth]) - 0.01 * max(0, len(solution_str) - 30)",
        "answer",
        "behind many words",
    ),
    "the beginning alone": (
        "found = re.findall(r'#### ([0-9]+)', solution_str[:300])\nreturn float(found[-1:] == [ground_truth])",
        "answer",
        "behind many words is wrong: it does not look so far",
    ),
    "a letter of a word": (
        "found = re.findall(r'[A-D]|[0-9]+', solution_str.upper())\nreturn float(found[:1] == [ground_truth])",
        "answer",
        "words before a right answer make it wrong",
    ),
    "a cache by the response alone": (
        "if solution_str not in state['seen']:\n"
        "    state['seen'][solution_str] = float(boxed(solution_str) == ground_truth)\n"
        "return state['seen'][solution_str]",
        "repeats",
        "by what was scored before it",
    ),
    "the first row's ground truth": (
        "state['last'] = state['last'] or ground_truth\nreturn float(boxed(solution_str) == state['last'])",
        "repeats",
        "by what was scored before it",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails(name: str, tmp_path: Path, file: str) -> None:
    source, check, words = MISTAKES[name]
    outcome = CHECKS[check](asked(tmp_path, file, source))
    said(outcome, False, words)
    assert "reward.py:" in outcome.detail, "it leads to the function"


# ----------------------------------------------------------------------------------------------- what may be meant so

TOLD = {
    "never differs": ("return float('FINAL: ' + ground_truth in solution_str)", "truth", "gave 0 to all of"),
    "format-only": ("return float('</answer>' in solution_str)", "truth", "ignores the ground truth"),
    "random": ("return random.random()", "repeats", "random, calls a judge, or counts"),
    "random with a seed": ("return draws.random()", "repeats", "random, calls a judge, or counts"),
    "counts its calls": ("state['calls'] += 1\nreturn state['calls'] / 1e4", "repeats", "counts its calls"),
    "by the clock": ("return time.time() % 1e4", "repeats", "for the same response to the same row"),
    "repetition earns less": (
        "n = state['seen'][solution_str] = state['seen'].get(solution_str, 0) + 1\nreturn 1 / n",
        "repeats",
        "for the same response to the same row",
    ),
    "equal to the letter": ("return float(solution_str == ground_truth)", "text", "line break at its end"),
    "wants a special token": ("return float(solution_str.endswith('<|im_end|>'))", "text", "without special tokens"),
    "little is hit": (
        "return float(int(ground_truth) > 40 and boxed(solution_str) == ground_truth)",
        "truth",
        "no more than nonsense in any common format, in . of 4 rows",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told_and_fails_nowhere(name: str, tmp_path: Path, file: str) -> None:
    source, check, words = TOLD[name]
    probed = asked(tmp_path, file, source)
    said(CHECKS[check](probed), None, words)
    assert {each: look(probed).detail for each, look in CHECKS.items() if look(probed).ok is False} == {}


FINE = {
    "equal in tags": "return float(boxed(solution_str) == ground_truth)",
    "a bool": "return ground_truth == boxed(solution_str)",
    "the last number": "return float(re.findall(r'-?[0-9]+', solution_str + ' 0')[-2:-1] == [ground_truth])",
    "a dict": "return {'score': float(boxed(solution_str) == ground_truth), 'note': 'x'}",
    "as far as it is alike": "return SequenceMatcher(None, boxed(solution_str), ground_truth).ratio()",
    "none is right, -1": "return 1.0 if boxed(solution_str) == ground_truth else -1.0",
    "form and truth": "return 0.1 * ('</answer>' in solution_str) + (boxed(solution_str) == ground_truth)",
    "less for length": "return float(boxed(solution_str) == ground_truth) - len(solution_str) / 1e6",
    "a tag of its own": "return float(f'<FINAL>{ground_truth}</FINAL>' in solution_str)",
    "prints": "print('{}')\nreturn float(boxed(solution_str) == ground_truth)",
}


@pytest.mark.parametrize("name", FINE)
def test_a_reward_that_is_fine_passes(name: str, tmp_path: Path, file: str) -> None:
    probed = asked(tmp_path, file, FINE[name])
    assert {each: look(probed) for each, look in CHECKS.items() if not look(probed).ok} == {}


@pytest.mark.parametrize(
    "source", ["return 1 / (1 + len(solution_str))", "return hash((solution_str, ground_truth)) % 7"]
)
def test_a_reward_of_another_kind_fails_nowhere(
    source: str, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ROWS", (8, 4, 2))  # as a user's: of four, hashes may agree by chance
    probed = asked(tmp_path, file, source)
    assert {each: look(probed).detail for each, look in CHECKS.items() if look(probed).ok is False} == {}


def test_the_trainers_own_scorer(tmp_path: Path, file: str) -> None:
    """Its forms are known: it has no excuse."""
    probed = asked(tmp_path, file, None)
    assert {each: look(probed) for each, look in CHECKS.items() if not look(probed).ok} == {}
    probed = replace(probed, built_in="gsm8k.py:42")
    nothing = tuple(Answer(0.0) for _ in probed.own)
    deaf = replace(probed, own=nothing, other=nothing)
    said(users_own.reward_truth(deaf), False, "gave 0 to all of .*look at gsm8k.py:42")
    said(users_own.reward_truth(replace(probed, other=tuple(probed.own))), False, "ignores the ground truth")


# ------------------------------------------------------------------------------------------------------- slow, or gone


def test_a_slow_reward_is_asked_little_and_told_with_its_cost(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "BUDGET_S", 0.0)
    probed = asked(tmp_path, file, FINE["equal in tags"])
    assert (probed.rows, len(probed.own), len(probed.odd)) == (2, 6, 3)
    said(users_own.reward_calls(replace(probed, seconds=2.0), 1024, 8), None, "2 s a call: 256 s of each full step")
    said(users_own.reward_calls(replace(probed, seconds=2.0), 8, 8), True, "2e\\+03 ms a call")
    said(users_own.reward_repeats(probed), None, "not checked in another order: a call takes too long")
    said(users_own.reward_text(probed), None, "a call takes too long")
    said(users_own.reward_truth(probed), True, "as all usual forms at once earns 1, nonsense 0")
    assert not users_own.unsteady(probed)


def test_a_reward_that_takes_long_to_load_is_loaded_once(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "RELOAD_S", -1.0)
    probed = asked(tmp_path, file, FINE["equal in tags"])
    said(users_own.reward_repeats(probed), True, "not checked in another order: that takes too long")


def test_a_random_reward_that_differs_once_is_no_matter_of_order() -> None:
    same, once = ((0.0, 1.0), (0.0, 1.0)), ((0.0, 0.5), (0.0, 0.5))
    sweeps = probing.Sweeps(same, same[0], reverse=(once, same), forward=same)
    probed = Probed((), (), (), sweeps=sweeps)
    said(users_own.reward_repeats(probed), None, "from run to run")
    assert users_own.unsteady(probed)
    said(users_own.reward_repeats(replace(probed, sweeps=replace(sweeps, reverse=(once, once)))), False, "before it")


def test_a_process_that_ends_and_a_file_that_does_not_load(tmp_path: Path, file: str) -> None:
    with called(tmp_path, "import os\nos._exit(3)") as (process, _), pytest.raises(DevkitError, match="process ended"):
        process.call(Call(file, 0, ""))
    with (
        called(tmp_path, "return 0.0", head="import nothing_of_that_name") as (process, _),
        pytest.raises(DevkitError, match=r"ModuleNotFoundError.*reward\.py:1"),
    ):
        process.loaded()


def test_two_answers_in_one_piece(tmp_path: Path, file: str) -> None:
    """The first call is made at once, and its answer may have come with that of loading."""
    with called(tmp_path, "return 0.5") as (process, _):
        process._first = Call(file, 0, "")
        process._tell({"do": "call", **vars(process._first)})
        process._read = b'{"seconds": 0.0}\n{"score": 0.0}\n'
        assert process.loaded().seconds == 0.0
        process._answer(30), process._answer(30)  # those that really came
        assert process.call(Call(file, 1, "")).score == 0.5


def test_no_bytecode_is_left_beside_the_users_file(tmp_path: Path, file: str) -> None:
    with called(tmp_path, FINE["a bool"]) as (process, _):
        process.call(Call(file, 0, ""))
    assert {path.name for path in tmp_path.iterdir()} == {"reward.py", "reward.log"}


# ------------------------------------------------------------------------------------------- the scores of the ranks

LABELS = ("row 4", "row 9", "row 2")
GOOD = Placed(LABELS, (1.0, 0.0, 0.25), (0.0, 0.0, 0.0))
DIRECT = [Answer(1.0), Answer(0.0), Answer(0.25 + 1e-9)]


def scored(placed: Placed, again: Sequence[Answer] = (), **suspects: Sequence[Answer]) -> Outcome:
    named = {name.replace("_", " "): answers for name, answers in suspects.items()}
    return users_own.scores_of_rows(placed, DIRECT, again, named, "look at x.py:1")


def test_scores_of_rows() -> None:
    said(scored(GOOD), True, "3 scores")
    rolled = replace(GOOD, scores=(0.25, 1.0, 0.0))
    assert users_own.off(rolled, DIRECT) == [0, 1, 2]
    said(scored(rolled), False, r"^row 4 was scored 0\.25, .* gives 1 \(3 of 3 responses\): look at x.py:1")
    before = [DIRECT[2], *DIRECT[:2]]
    said(scored(rolled, the_one_before=before, twice=DIRECT), False, "^the one before: row 4 was scored 0.25")
    said(scored(replace(GOOD, elsewhere=(0.0, 0.5, 0.0))), False, "row 9 has a score at other tokens than its last")
    said(scored(replace(GOOD, scores=(float("nan"), 0.0, 0.25))), False, "row 4 was scored nan")


def test_scores_of_a_reward_that_changes_are_not_compared() -> None:
    off = replace(GOOD, scores=(0.5, 0.0, 0.25))
    said(scored(off, [Answer(1.0)] * 4), False, "row 4")
    said(scored(off, [Answer(1.0), Answer(1.0), Answer(0.5), Answer(1.0)]), None, "changes from call to call")
    broken = [Answer(None, "raises KeyError: 'HOME'")] * 3
    said(users_own.scores_of_rows(GOOD, broken, (), {}, ""), None, "a direct call raises KeyError")


def test_a_direct_call_takes_parts_of_other_rows(tmp_path: Path, file: str) -> None:
    source = "return int(ground_truth) + 1000 * extra_info['index'] + len(data_source) / 100"
    rows = RowReader("prompt", "data_source")
    truths = [int(rows(file, i).ground_truth) for i in range(4)]
    with called(tmp_path, source) as (process, _):
        assert process.call(Call(file, 2, "")).score == truths[2] + 2000.12
        assert process.call(Call(file, 2, "", truth_of=3)).score == truths[3] + 2000.12
        assert process.call(Call(file, 2, "", extra_of=1)).score == truths[2] + 1000.12
        assert process.call(Call(file, 2, "", source_of=1)).score == truths[2] + 2000.12


def test_the_form_that_tells_best() -> None:
    forms = ["#### {x}", "{x}"]
    responses = tuple(Said(0, form.format(x=7), form) for form in forms)
    probed = Probed(responses, (Answer(1.0), Answer(0.0)), (Answer(0.0), Answer(0.0)), loaded=Loaded())
    assert users_own.telling_form(probed) == "#### {x}"
    assert users_own.telling_form(replace(probed, own=(Answer(0.0), Answer(0.0)))) == made_up.ALL


# ------------------------------------------------------------------------------------------------------------ the data


def chat(text: str, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def row(number: int, prompt: Any = None, truth: Any = "7", tokens: int = 10, said_tokens: int = 1) -> Sampled:
    return Sampled(f"row {number}", prompt or chat(f"question {number}"), truth, tokens, said_tokens)


def test_data_rows() -> None:
    train, validation = [row(i) for i in range(4)], [row(i) for i in range(10, 12)]
    said(users_data.data_rows(train, validation), True, "4 rows for training and 2 for validation")
    said(users_data.data_rows([*train, row(7, chat(" \n"))], []), False, "the prompt of row 7 is empty")
    said(users_data.data_rows([*train, row(7, "  ")], []), False, "the prompt of row 7 is empty")
    nothing: list[Any] = ["", "  ", [], {"target": []}, {"target": [""]}]
    for truth in nothing:
        said(users_data.data_rows([*train, row(7, truth=truth)], []), None, "ground truth of row 7 is empty")
    something: list[Any] = [0, False, {"tests": [1]}]
    for truth in something:
        said(users_data.data_rows([*train, row(7, truth=truth)], []), True, "5 rows")
    said(users_data.data_rows([*train, row(7, chat("so", "assistant"))], []), None, "row 7 has neither a user's nor")
    said(users_data.data_rows([row(7, "as it is")], []), True, "1 rows")
    said(
        users_data.data_rows(train, train), None, r"prompt of row 0 \(4 of 4 rows\) is also among the training prompts"
    )


def published(number: int, *, by: int = 0, prompt: str = "how many?") -> Sampled:
    """Row `number` has the ground truth of the row `by` further on; its published answer is its own."""
    truths = [str(1000 + i + by) for i in (number - 1, number, number + 1)]
    known = replace(row(number, chat(f"{number}: {prompt}"), truths[1]), near=(truths[0], truths[2]))
    return replace(known, published=f"so many\n#### 1,{number:03}")


def test_ground_truths_of_the_next_rows_and_ground_truths_that_are_given_away() -> None:
    right = [published(i) for i in range(12)]
    said(users_data.data_rows(right, []), True, "12 rows")
    late, early = [published(i, by=1) for i in range(12)], [published(i, by=-1) for i in range(12)]
    said(users_data.data_rows(late, []), False, "row 0 has another row's ground truth: .* that of the row before it")
    said(users_data.data_rows(early, []), False, r"that of the row after it \(12 of 12 rows\)")
    said(users_data.data_rows(late[:7], []), True, "7 rows")  # too few
    said(users_data.data_rows([*right[:6], *late[:6]], []), True, "12 rows")
    given = [published(i, prompt=f"how many? It is {1000 + i}.") for i in range(12)]
    said(users_data.data_rows(given, []), None, r"the prompt of row 0 \(12 of 12 rows\) holds its ground truth")
    choices = [published(i, prompt=f"{999 + i}, {1000 + i} or {1001 + i}?") for i in range(12)]
    said(users_data.data_rows(choices, []), True, "12 rows")


def full_of(*words: str) -> Config:
    return make_plan(words, None).full


def test_a_group_of_one_and_a_warm_up_beyond_the_run() -> None:

    def look(full: Config, steps: int) -> Outcome:
        return users_settings.command_settings(full, steps)

    n, warm = "actor_rollout_ref.rollout.n", "optim.lr_warmup_steps"
    for estimator, ok in {"grpo": False, "rloo": False, "gae": True, "reinforce_plus_plus": True}.items():
        found = look(full_of(f"algorithm.adv_estimator={estimator}", f"{n}=1"), 100)
        assert found.ok is ok, found
    assert look(full_of("algorithm.adv_estimator=grpo", f"{n}=2"), 100).ok
    for section in ("actor_rollout_ref.actor", "critic"):
        long_ = full_of(f"{section}.{warm}=1000")
        said(look(long_, 100), False, rf"{section}\.{warm}=1000, and the run has 100 steps: .* never gets beyond 10%")
        assert look(long_, 0).ok and look(long_, 1001).ok


def test_responses_that_never_end_and_an_entropy_that_is_lowered() -> None:
    coeff, endless = "actor_rollout_ref.actor.entropy_coeff", "actor_rollout_ref.rollout.ignore_eos=True"
    found = users_settings.command_settings(full_of(endless, f"{coeff}=-1"), 100)
    said(found, False, r"^actor_rollout_ref\.rollout\.ignore_eos=True: no response .* ends before its limit.* to False")
    said(
        users_settings.command_settings(full_of(f"{coeff}=-0.05"), 100), None, f"^{coeff}=-0.05 is negative: it lowers"
    )
    for value in ("0", "0.05"):
        assert users_settings.command_settings(full_of(f"{coeff}={value}"), 100).ok


def test_data_limits() -> None:
    rows, data = [row(i) for i in range(40)], DataConfig(max_prompt_length=10, max_response_length=5)
    said(users_data.data_limits(rows, data), True, "40 prompts of up to 10 tokens, within data.max_prompt_length=10")
    long_ = [*rows, row(41, tokens=11)]
    said(
        users_data.data_limits(long_, data), False, r"^1 of 41 prompts .*\(the longest 11: row 41\): the full run ends"
    )
    filtering, cutting = replace(data, filter_overlong_prompts=True), replace(data, truncation="left")
    said(users_data.data_limits(long_, filtering), True, "1 longer ones are left out")
    said(users_data.data_limits(long_, cutting), True, r"1 longer ones are cut \(data.truncation=left\)")
    said(users_data.data_limits(long_[-4:], filtering), None, "1 of 4 prompts .*: they are left out")
    said(users_data.data_limits(long_[-1:], filtering), False, "drops all of them")
    said(users_data.data_limits(long_[-1:], cutting), None, "they are cut")
    said(
        users_data.data_limits([row(3, said_tokens=6)], data),
        None,
        "truth of row 3 has 6 tokens, more than data.max_resp",
    )


def test_row_reader(tmp_path: Path) -> None:
    """Whatever the row groups are, and without extra_info."""
    path = tmp_path / "rows.parquet"
    table = pa.table(
        {
            "prompt": [f"p{i}" for i in range(10)],
            "data_source": ["a"] * 10,
            "reward_model": [{"style": "rule", "ground_truth": str(i)} for i in range(10)],
        }
    )
    pq.write_table(table, path, row_group_size=3)
    rows = RowReader("prompt", "data_source")
    assert [rows(str(path), i).ground_truth for i in (9, 0, 3, 2)] == ["9", "0", "3", "2"]
    assert (rows.count(str(path)), rows(str(path), 1).extra_info) == (10, {})
    assert [index for index, _ in rows.sample(str(path), 5)] == [0, 2, 4, 6, 8]
    with pytest.raises(IndexError):
        rows(str(path), 10)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.floats(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_any_ground_truth_is_a_text_or_none(truth: Any) -> None:
    text = made_up.truth_text(truth)
    assert text is None or (text and text == text.strip())


# ----------------------------------------------------------------------------------------- a batch, without its cluster

BY_ALL = (Path(__file__).parents[1] / "mutants" / "own_reward.py").read_text()


class Ranks:
    """Scores as the ranks do, in this process."""

    def __init__(self, config: Config, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        own = config.custom_reward_function
        self.scorer = build_scorer(own, read_source(own))

    def score(self, rollout: Rollout) -> Scores:
        return roles.score_responses(rollout, self.tokenizer, self.scorer)


def looked(folder: Path, file: str, reward: str | None = BY_ALL) -> dict[str, CheckResult]:
    """What is found in a batch of 16 prompts with random responses, by the trainer's own code."""
    words = [f"data.train_files={file}", "data.max_prompt_length=64", "data.truncation=left"]
    if reward is not None:
        (folder / "reward.py").write_text(reward)
        words.append(f"custom_reward_function.path={folder / 'reward.py'}")
    config, results = resolve(words, None).config, Results()
    texts = [str(RowReader("prompt", "data_source")(file, i).prompt) for i in range(32)]
    tokenizer = make_tokenizer(texts)
    data = load_prompts([file], config.data, tokenizer)
    prompts = next(iter(PromptLoader(data, 16, pad_id=0, shuffle=True, seed=0, drop_last=True)))
    response = torch.randint(3, len(tokenizer), (16, 8), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(8) <= torch.arange(16)[:, None] % 8).long()
    response[torch.arange(16), mask.sum(-1) - 1] = tokenizer.eos_token_id
    rollout = Rollout(prompts, response * mask, mask, torch.zeros(16, 8))
    ranks = Ranks(config, tokenizer)
    zeros = torch.zeros(16, 8)
    seen = Experience(rollout, shaping.place_scores(ranks.score(rollout), mask), zeros, None, None)
    with closing(UsersOwn(config, config, tokenizer, results, folder / "reward.log")) as own:
        for _ in range(2):
            own.look(cast(Any, ranks), seen)
    return {each.name: each for each in results.all}


@pytest.mark.parametrize("reward", [BY_ALL, None], ids=["own", "built-in"])
def test_a_batch_as_it_should_be(reward: str | None, tmp_path: Path, file: str) -> None:
    found = looked(tmp_path, file, reward)
    assert found.keys() == {"pipeline-rewards", *users.CHECKS}
    assert {name: each.detail for name, each in found.items() if each.status == "fail"} == {}
    assert found["pipeline-rewards"].detail.startswith("48 scores match direct calls")


def test_rewards_that_nothing_can_be_compared_with(tmp_path: Path, file: str) -> None:
    """One that is random, and one that only the ranks can call."""
    head = "import os, random\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info):\n"
    found = looked(tmp_path, file, f"{head}    return random.random()\n")
    assert found["pipeline-rewards"].status == "skip" and "see reward-repeats" in found["pipeline-rewards"].detail
    found = looked(tmp_path, file, f"{head}    assert os.getpid() == {os.getpid()}\n    return 0.5\n")
    assert {each.status for name, each in found.items() if name != "pipeline-rewards"} == {"skip"}
    assert "called directly, the reward function raises AssertionError" in found["reward-calls"].detail
    assert found["pipeline-rewards"].status != "fail"


def test_made_up_responses_never_end_the_run(tmp_path: Path, file: str) -> None:
    """The ranks would raise what a direct call raises."""
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
    found = looked(tmp_path, file, f"{head}    return {{}}['no'] if '####' in solution_str else 0.5\n")
    assert {name for name, each in found.items() if each.status == "fail"} == {"reward-calls", "reward-truth"}
    assert "raises KeyError: 'no'" in found["reward-calls"].detail


def row_of(**moved: int) -> Callable[[Part, int], Row]:
    """`Part.row` with fields of rows that are so far away."""

    def row(part: Part, index: int) -> Row:
        right = REAL_ROW(part, index)
        return replace(
            right, **{name: getattr(REAL_ROW(part, (index + by) % len(part)), name) for name, by in moved.items()}
        )

    return row


REAL_ROW = Part.row
WRONG_ROWS = {
    "scored with the ground truth of the row after it in the file": row_of(ground_truth=1),
    "scored with the ground truth of the row before it in the file": row_of(ground_truth=-1),
    "scored with the extra_info of the row after it in the file": row_of(extra_info=1),
    "scored with the data_source of the row before it in the file": row_of(data_source=-1),
}


@pytest.mark.parametrize("words", WRONG_ROWS)
def test_parts_of_another_row_are_named(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = write_parquet(tmp_path, 32, seed=0)
    table = pq.read_table(train)
    sources = pa.array([f"source {i}" for i in range(32)])
    pq.write_table(table.set_column(0, "data_source", sources), train)
    monkeypatch.setattr(Part, "row", WRONG_ROWS[words])
    found = looked(tmp_path, train)["pipeline-rewards"]
    said(Outcome(found.status == "pass", found.detail), False, f"^{words}: row .*look at trainer/rewards/score.py:")


def test_the_built_in_scorers_ground_truth_of_another_row(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All scores of the responses are 0; made-up ones show it."""
    monkeypatch.setattr(Part, "row", row_of(ground_truth=1))
    found = looked(tmp_path, file, None)["pipeline-rewards"]
    said(Outcome(found.status == "pass", found.detail), False, "^scored with the ground truth of the row after it")


def test_what_else_can_be_wrong_with_scores(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ranks.score

    def score(ranks: Ranks, rollout: Rollout, wrong: Callable[[Tensor], Tensor]) -> Scores:
        right = real(ranks, rollout)
        return replace(right, score_B=wrong(right.score_B))

    for wrong, words in {
        lambda score_B: 2 * score_B: "the score is doubled",
        lambda score_B: 0 * score_B: "the score is lost",
        lambda score_B: score_B.roll(1): "the score of the response before it",
        lambda score_B: score_B.roll(-1): "the score of the response after it",
    }.items():
        monkeypatch.setattr(Ranks, "score", lambda ranks, rollout, wrong=wrong: score(ranks, rollout, wrong))
        found = looked(tmp_path, file)["pipeline-rewards"]
        said(Outcome(found.status == "pass", found.detail), False, f"^{words}: row ")


def test_responses_that_are_decoded_otherwise(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(special: bool, padded: bool) -> Callable[..., Scores]:
        def score(rollout: Rollout, tokenizer: Any, scorer: Any) -> Scores:
            rows = zip(rollout.response_BT.tolist(), rollout.mask_BT.sum(-1).tolist(), strict=True)
            texts = [tokenizer.decode(ids if padded else ids[:n], skip_special_tokens=not special) for ids, n in rows]
            return Scores(torch.tensor(score_all(texts, rollout.prompts.rows, scorer).scores), {})

        return score

    for changes, words in (
        ((True, True), "decoded with its padding"),
        ((True, False), "decoded with its special tokens"),
    ):
        monkeypatch.setattr(roles, "score_responses", decoded(*changes))
        found = looked(tmp_path, file)["pipeline-rewards"]
        said(Outcome(found.status == "pass", found.detail), False, f"^{words}: row ")
    monkeypatch.setattr(roles, "score_responses", decoded(False, True))
    assert looked(tmp_path, file)["pipeline-rewards"].status == "pass", "padding is a special token"


# --------------------------------------------------------------------------------------------- through the real command


@pytest.mark.trainer
@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_users_mistakes_are_told_by_the_command(tmp_path: Path) -> None:
    """A reward that keeps scores by the response alone; prompts too long for the limit, one of them empty; and the
    training file for validation."""
    (tmp_path / "model").mkdir()
    train, _ = write_parquet(tmp_path, 64, seed=0)
    table = pq.read_table(train)
    rows = table.to_pylist()
    rows[3]["prompt"][0]["content"] = " "
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), train)
    texts = tuple(each["prompt"][0]["content"] for each in rows)
    build(TinySpec(str(tmp_path / "model"), like=None, texts=texts, seed=0, max_positions=512))
    reward = tmp_path / "reward.py"
    reward.write_text(
        "kept = {}\n\n\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert data_source == 'openai/gsm8k'\n"
        "    return kept.setdefault(solution_str, float(f'#### {ground_truth}' in solution_str))\n"
    )
    done = smoke(
        "--json",
        f"actor_rollout_ref.model.path={tmp_path / 'model'}",
        f"custom_reward_function.path={reward}",
        f"data.train_files={train}",
        f"data.val_files={train}",
        "data.max_prompt_length=40",
    )
    failed = done.checks("fail")
    assert failed.keys() == {"reward-repeats", "data-rows", "data-limits"}, done.err
    said(Outcome(False, failed["reward-repeats"]), False, r"by what was scored before it.*look at .*reward\.py:4")
    said(Outcome(False, failed["data-rows"]), False, f"the prompt of row 3 of {train} .* is empty")
    said(Outcome(False, failed["data-limits"]), False, "of 128 prompts have more than data.max_prompt_length=40 tokens")
    assert "not deterministic" in done.checks("skip")["pipeline-rewards"]
    assert done.code == 1
