"""Processes of environments: what a file has begun while it was loaded, and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pace import stretched
from tests.trainer.conversations import Scripted, conversations, prompts_of
from tests.trainer.test_agent_loop import LIMITS, is_alive, played, texts
from trainer.agent import contract
from trainer.agent.contract import Observed
from trainer.agent.homes import Apart, Broken, Home, Houses, again_and_again, answered
from trainer.agent.source import Source
from trainer.errors import ConfigError
from trainer.records import Rollout, Scores
from trainer.samples import sample

Made = Callable[..., Houses]

ENDS = """
    def step(self, action):
        self.at += 1
        return self.answer(action), 0.5, self.at == 2, False, {}
"""
PLAIN = f"""
class Env:
    seen = []
    def reset(self, *, seed):
        self.at = 0
        self.seen.append(seed)
        return f"{{len(self.seen)}}", {{}}
    def answer(self, action): return f"<{{action}}>"
{ENDS}
"""
THREAD = f"""
import queue, threading
asked, told = queue.Queue(), queue.Queue()
def serve():
    while True: told.put(asked.get().upper())
threading.Thread(target=serve, name="speaker", daemon=True).start()
{PLAIN}
class Loud(Env):
    def answer(self, action):
        asked.put(action)
        return told.get()
"""
PRODUCT = f"""
import torch
if THREADS: torch.set_num_threads(THREADS)
weights = torch.ones(600, 600) @ torch.ones(600, 600)
{PLAIN}
class Loud(Env):
    def answer(self, action): return str(float((torch.ones(600, 600) @ weights)[0, 0]))
"""


class Kept(Houses):
    """Whose homes end with it."""

    def __init__(self, source: Source, **options: Any) -> None:
        self.homes = list[Home]()
        super().__init__(source, **options)

    def home(self) -> Home:
        self.homes.append(super().home())
        return self.homes[-1]

    def close(self) -> None:
        super().close()
        for home in self.homes:
            home.end()


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[Made]:
    """`houses(text)`: environments of a file in processes of their own."""
    made: list[Houses] = []

    def make(text: str, name: str = "Env", limit_s: float = stretched(60.0), **kwargs: Any) -> Houses:
        path = tmp_path / "mine.py"
        path.write_text(text)
        made.append(Kept(Source(f"{path}:{name}", text, kwargs), isolate=True, limit_s=limit_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def asked(home: Home, what: str, *arguments: object) -> Observed:
    home.ask(what, *arguments)
    assert answered([home], stretched(60.0)), f"{what} gave no answer"
    return home.take()


def said(home: Home) -> list[str]:
    """What an episode of two steps shows."""
    return [asked(home, "reset", 1).text, *(asked(home, "step", "a").text for _ in range(2))]


def test_a_thread_of_the_files_own_runs_in_every_environment(houses: Made) -> None:
    """A fork would wait for it without end: so each process loads the file, and has classes of its own, as forks do."""
    house = houses(THREAD, "Loud")
    assert house.missed == "a thread of its own (speaker)"
    first, second = house.home(), house.home()
    assert isinstance(first, Apart) and isinstance(second, Apart) and first._pid != second._pid
    assert said(second) == said(first) == ["1", "A", "A"]
    assert "begun in the constructor, it would cost less" in again_and_again(house)
    house.close()
    for home in (first, second):
        deadline = time.monotonic() + stretched(5.0)
        while is_alive(home._pid):
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.01)


@pytest.mark.parametrize(("count", "missed"), [("None", ""), ("2", "torch's threads")])
def test_what_multiplies_while_it_is_loaded_multiplies_in_a_step(
    houses: Made, monkeypatch: pytest.MonkeyPatch, count: str, missed: str
) -> None:
    """Where torch may have one thread it begins no pool; where the file insists on two, none is forked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the rank's own
    house = houses(PRODUCT.replace("THREADS", count), "Loud")
    assert house.missed == missed
    assert said(house.home()) == ["1", "360000.0", "360000.0"]


def test_a_file_that_begins_nothing_is_loaded_once(houses: Made, tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'loads')!r}, 'a').write('.')\n{PLAIN}"
    house = houses(text)
    assert [said(house.home())[0] for _ in range(3)] == ["1"] * 3
    assert (tmp_path / "loads").read_text() == "." and not house.missed


def test_one_that_does_not_load_again_is_an_environment_that_raised(houses: Made, tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'lock')!r}, 'x')\n{THREAD}"
    home = houses(text).home()
    with pytest.raises(Broken, match=r"mine.py raised while it was loaded: FileExistsError") as caught:
        asked(home, "reset", 1)
    assert caught.value.kind == "raised"


def test_the_time_to_load_is_none_of_an_answer(houses: Made) -> None:
    turn_s = stretched(1.0)
    house = houses(f"import time; time.sleep({turn_s + 0.5})\n{THREAD}", "Loud")
    limits = replace(LIMITS, turn_s=turn_s, first_s=house.waits_s)

    def play() -> Rollout:
        return played(prompts_of([[]] * 2), Scripted(lambda *_: "a"), limits=limits, home=house.home)

    assert texts(play()) == ["[a|]A[a|]"] * 2


BEGINS = f"""
import _thread, threading
began = threading.Event()
def run():
    began.set()
    threading.Event().wait()
BEGIN
began.wait()
{PLAIN}
"""
DEBUGGERS = """
names = {"__name__": "devkit.debug.inworker.later", "run": run}
exec("def own(): run()", names)
_thread.start_new_thread(names["own"], ())
"""


@pytest.mark.parametrize(
    ("begin", "missed"),
    [
        ("threading.Thread(target=run, name='tqdm_monitor', daemon=True).start()", ""),
        ("threading.Thread(target=run, name='fsspecIO', daemon=True).start()", ""),
        (DEBUGGERS, ""),
        ("_thread.start_new_thread(run, ())", "a thread of its own (nameless)"),
    ],
)
def test_threads_that_nobody_misses_are_passed_over(houses: Made, begin: str, missed: str) -> None:
    """A file that loads a data set leaves some, and it should not load it for each environment."""
    assert houses(BEGINS.replace("BEGIN", begin)).missed == missed


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("os._exit(3)", "left by itself, with exit code 3"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("signal.alarm(1); signal.pause()", "was ended by SIGALRM"),
        ("subprocess.Popen(['sleep', '1000'], close_fds=False); os._exit(0)", "left by itself, with exit code 0"),
        ("os.fork() or time.sleep(1000); os._exit(4)", "left by itself, with exit code 4"),
    ],
)
def test_how_a_process_ended_is_told(houses: Made, call: str, told: str) -> None:
    """Though a child of it lives on, with its line."""
    home = houses(f"import os, signal, subprocess, time\n{PLAIN.replace('self.at += 1', call)}").home()
    asked(home, "reset", 1)
    with pytest.raises(Broken, match=f"its process {told}") as caught:
        asked(home, "step", "a")
    assert caught.value.kind == "died"


def test_one_that_its_file_buries_has_died_all_the_same(houses: Made) -> None:
    """Who is first at its grave knows how it ended, and the other one that it did."""
    reaps = """
import os, threading, time
def reap():
    while True:
        try: os.waitpid(-1, 0)
        except ChildProcessError: time.sleep(0.01)
threading.Thread(target=reap, daemon=True).start()
"""
    home = houses(f"{reaps}{PLAIN.replace('self.at += 1', 'os._exit(3)')}").home()
    asked(home, "reset", 1)
    with pytest.raises(Broken, match="its process") as caught:
        asked(home, "step", "a")
    assert caught.value.kind == "died"


def test_of_a_step_that_comes_back_twice_one_answer_counts(houses: Made) -> None:
    """A child that it has forked comes back from it, too."""
    text = f"import os\n{PLAIN.replace('self.at += 1', 'self.at += 1; os.fork()')}".replace("<{action}>", "{self.at}")
    home = houses(text).home()
    assert said(home) == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("text", "kwargs", "told"),
    [
        (
            "def __init__(self, size): ...",
            {},
            r"its constructor raised TypeError: .*'size'; agent.env_kwargs has nothing",
        ),
        (
            "def __init__(self): ...",
            {"sise": 3},
            r"constructor raised TypeError: .*'sise'; agent.env_kwargs has sise",
        ),
        ("def __init__(self): 1 / 0", {}, r"its constructor raised ZeroDivisionError: .* in __init__$"),
        ("def reset(self): ...", {}, r"reset raised TypeError: Env.reset\(\) got an unexpected .* 'seed'$"),
        ("def reset(self, *, seed): breakpoint()", {}, "agent.isolate=False lets breakpoint"),
    ],
)
def test_whose_call_it_was_is_told_and_no_line_of_the_trainers(
    houses: Made, text: str, kwargs: dict[str, Any], told: str
) -> None:
    file = f"{PLAIN}\n    {text}\n"
    home = houses(file, **kwargs).home()
    with pytest.raises(Broken, match=told) as caught:
        asked(home, "reset", 1)
    assert caught.value.kind == "raised" and "/trainer/agent/" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "limit_s", "told", "hint"),
    [
        ("import time; time.sleep(1000)", 0.5, "took over 0.5 s", "raise agent.turn_timeout above that"),
        ("import os; os._exit(7)", 60.0, "left by itself, with exit code 7", "it must load on its own"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60.0, "was ended by SIGSEGV", "on its own"),
        ("raise SystemExit(2)", 60.0, "raised while it was loaded: SystemExit: 2 at", "it must load on its own"),
    ],
)
def test_what_comes_of_a_file_that_does_not_load(houses: Made, text: str, limit_s: float, told: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        houses(text, limit_s=limit_s)
    assert told in caught.value.message and hint in caught.value.hint


def test_sys_exit_in_the_ranks_process_ends_no_rank(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = PLAIN.replace("self.at += 1", "raise SystemExit(3)")
    home = Houses(Source(f"{path}:Env", text), isolate=False).home()
    asked(home, "reset", 1)
    with pytest.raises(Broken, match="step raised SystemExit: 3"):
        asked(home, "step", "a")


TRUE = torch.tensor(True)


class Flags:
    """Ends as it is asked to."""

    def __init__(self, flag: object) -> None:
        self.flag = flag

    def step(self, action: str) -> tuple[str, object, object, object, dict[str, Any]]:
        return "go", torch.tensor(0.5), self.flag, False, {}


@pytest.mark.parametrize("flag", [True, TRUE, TRUE.numpy(), TRUE.numpy()[()]])
def test_a_flag_may_be_a_librarys(flag: object) -> None:
    assert contract.step(Flags(flag), "a").terminated is True


@pytest.mark.parametrize("flag", [1, None, "yes", torch.tensor([True]), torch.tensor(1)])
def test_what_is_no_flag_is_refused(flag: object) -> None:
    with pytest.raises(contract.Unfit, match="terminated of step is neither True nor False"):
        contract.step(Flags(flag), "a")


def test_the_metrics_that_an_environment_may_not_name_are_all_of_a_sample() -> None:
    """What a sample is written with: a metric of that name took its place."""
    rollout = conversations([([70], [([71, 72], [], 0.5)])])
    fields = sample(rollout, Scores(torch.tensor([0.5]), {}), 0, lambda ids: "")
    assert {*fields, "step", "reward", "environment", "asked"} <= contract.RESERVED
