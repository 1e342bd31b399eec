"""`python -m trainer.demo`: what it makes and says, and the whole of it as a newcomer runs it."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import sys
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from devkit.debug.inworker import specs
from tests.trainer.runs import Run, metrics_of, running, running_on_a_terminal, wait_until_gone
from trainer import roles
from trainer.config import check_command
from trainer.demo import __main__ as demo
from trainer.demo import task, tiny

LEARNED = 0.25  # the reward of the last three steps over that of the first three; it is about 0.45
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DEADLINE_S = 400.0  # of half a minute on two idle cores


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, task.Files]:
    """With a model that is hardly taught: what it has learned is seen by the tests that train it."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "TEACHING_STEPS", 2)
        return folder, task.write(folder, demo.SEED)


def test_every_sum_is_asked_for_and_its_answer_is_right(made: tuple[Path, task.Files]) -> None:
    rows = pq.read_table(made[1].validation).to_pylist()
    assert len(rows) == 100
    for row in rows:
        first, second = row["prompt"][0]["content"].removesuffix("=").split("+")
        assert row["reward_model"]["ground_truth"] == str(int(first) + int(second))


def test_the_reward_is_one_for_the_right_sum_alone(made: tuple[Path, task.Files]) -> None:
    space: dict[str, Any] = {}
    exec(made[1].reward.read_text(), space)
    score = space["compute_score"]
    assert score("sums", "15", "15") == 1.0
    assert [score("sums", answer, "15") for answer in ("5", "16", "015", "", "7+8=15")] == [0.0] * 5


def test_longest_prompt_and_response_fit(made: tuple[Path, task.Files]) -> None:
    tokenizer = task.make_tokenizer()
    prompts = [tokenizer(task.question(a, b))["input_ids"] for a, b in task.PAIRS]
    assert {len(tokens) for tokens in prompts} == {task.PROMPT_TOKENS}
    assert len(tokenizer("18" + task.END)["input_ids"]) == task.RESPONSE_TOKENS


def test_its_command_is_one_of_the_trainers_without_a_problem_or_a_note(made: tuple[Path, task.Files]) -> None:
    folder, files = made
    report = check_command(demo.overrides(files, folder))
    assert (report.problems, report.notes) == ((), ())


def test_the_written_command_is_what_was_run(tmp_path: Path) -> None:
    words = ["a.b=[x,y]", "c=it's", "d=e f"]
    path = tmp_path / "run.sh"
    path.write_text(demo.script(words).replace("python -m trainer.main_ppo", "printf '%s\\n'"))
    told = subprocess.run(["bash", str(path), "more=1"], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [*words, "more=1"]


def test_the_summary_draws_the_curve_and_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "global_step_30").mkdir()
    rewards = [(float(step), step / 30) for step in range(1, 31)]
    lines = demo.summary(tmp_path, rewards, [(0.0, 0.14), (30.0, 0.84)], plain=False)
    assert max(map(len, lines[:16])) <= 80
    assert "Of all 100 sums, the model got 14 right before and gets 84 right now." in lines
    assert any("█" in line for line in lines)
    assert not any("█" in line for line in demo.summary(tmp_path, rewards, [], plain=True))


def test_the_breakpoint_that_is_proposed_is_a_place_that_every_rank_comes_to() -> None:
    assert specs.parse(demo.STOP)
    module, _, name = demo.STOP.partition(":")
    assert inspect.isfunction(getattr(import_module(module), name))
    nodes = ast.walk(ast.parse(inspect.getsource(roles)))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    assert name in {call.id for call in calls if isinstance(call, ast.Name)}


def test_a_folder_that_is_not_new_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert demo.main(["--output", str(tmp_path)]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {tmp_path} is not a new folder" and hint.startswith("hint: ")


# -- the whole of it, on a Ray of its own


COMMAND = ["env", "--unset=RAY_AUTH_MODE", sys.executable, "-m", "trainer.demo"]


def made_home(path: Path) -> Path:
    """An empty one. No variable is set, but for where Ray's files go: other Rays run on this machine."""
    path.mkdir()
    return path


def started(home: Path) -> AbstractContextManager[Run]:
    return running(COMMAND, made_home(home), HOME=str(home), LANG="C.UTF-8")


@pytest.mark.trainer
def test_a_newcomer_sees_a_model_learn_and_finds_everything(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with started(home) as run:
        run.wait_for_line("making the model")
        for phase in ("starting Ray", "placing 2 workers", "loading models", "first step"):
            run.wait_for_line(phase, DEADLINE_S)
        assert run.wait(DEADLINE_S) == 0, run.text
        assert wait_until_gone(run.mark) == [], run.text
    (folder,) = (home / "checkpoints").iterdir()
    metrics = metrics_of(folder)
    rewards = [metrics[step]["critic/score/mean"] for step in range(1, demo.STEPS + 1)]
    assert sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3 > LEARNED, rewards
    before, after = metrics[0][demo.VALIDATION], metrics[demo.STEPS][demo.VALIDATION]
    assert after - before > LEARNED and f"gets {round(100 * after)} right now" in run.text
    ElementTree.fromstring((folder / demo.CURVE_FILE).read_text())
    assert "".join(run.lines).count("█") > 20 and "Traceback" not in run.text
    assert (folder / f"global_step_{demo.STEPS}").is_dir() and (folder / demo.COMMAND_FILE).is_file()
    _export_as_told(run, home)


def _export_as_told(run: Run, home: Path) -> None:
    """What stands at the end is typed, and the model is one of transformers'."""
    (line,) = [line for line in run.lines if "trainer.export" in line]
    subprocess.run(["bash", "-c", line.strip()], cwd=home, check=True, timeout=DEADLINE_S)
    exported = home / shlex.split(line)[-1]
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(exported).config.num_hidden_layers == tiny.LAYERS


@pytest.mark.trainer
def test_ctrl_c_says_one_word_gives_the_terminal_back_and_leaves_nothing_running(tmp_path: Path) -> None:
    home = made_home(tmp_path / "home")
    with running_on_a_terminal(COMMAND, home, HOME=str(home), LANG="C.UTF-8") as run:
        run.wait_for_line("step 2: ", DEADLINE_S)
        run.press("\x03")
        assert run.wait(DEADLINE_S) == 130, run.text
        assert wait_until_gone(run.mark) == [], run.text
        assert run.modes_are_kept
    assert "Traceback" not in run.text and "Writing model shards" not in run.text
    assert run.text.rfind(SHOW_CURSOR) > run.text.rfind(HIDE_CURSOR) >= 0
    drawn = COLOUR.sub("", run.text[run.text.rfind(SHOW_CURSOR) :]).splitlines()
    said = [
        line for line in drawn[1:] if line.strip() and "meanwhile is in" not in line and not line.startswith("\x1b")
    ]
    assert [line.split(":")[0] for line in said] == ["error", "hint"], drawn
    assert said[0] == "error: interrupted"
