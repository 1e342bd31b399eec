"""Every port of a training, a retriever and the doctor: each has an owner, and what is said to it harms nobody."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from devkit.doctor.onnode.links import KEY_LENGTH, Listener
from tests.debug.conftest import eventually, short_folder
from tests.security.probes import PROBES
from tests.security.test_ports import RAYS
from tests.security.users import MALLORY, needs_users, program
from tests.trainer.conftest import Words, models, parquet, shared, tiny_model, words
from tests.trainer.runs import DEADLINE_S, Run, main_ppo, marked, running
from trainer.retrieval import Retriever

__all__ = ["models", "parquet", "shared", "tiny_model", "words"]  # fixtures
pytestmark = needs_users
LOOPBACK = "127.0.0.1"
RANKS = 2
PASSAGE = "Wrote Faust, a tragedy."
CORPUS = [{"id": "0", "contents": f'"Goethe"\n{PASSAGE}'}, {"id": "1", "contents": '"Munro"\nWrote short stories.'}]
# It plays until the test has seen enough.
WAITS = """
import os, time


class Waits:
    def reset(self, *, seed):
        return "Who wrote Faust?", {}

    def step(self, action):
        open("playing", "w").close()
        while not os.path.exists("enough"):
            time.sleep(0.1)
        return "Goethe", 1.0, True, False, {}

    def close(self):
        pass
"""
# Beside those of Ray: a part of the name that a process has, what it listens with, and how many ports that may be.
OURS = {
    "trainer.main_ppo": ("the driver: Ray's gRPC", 1),
    "ray::": ("a process of the run: Ray's gRPC, a rendezvous, a retriever, gloo's for each group of ranks", 12),
}
OWNERS = {**RAYS, **OURS}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    return file


def listening(pids: list[int]) -> dict[tuple[int, str], set[tuple[str, int]]]:
    """By process and its name, the addresses at which it listens."""
    found: dict[tuple[int, str], set[tuple[str, int]]] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            name = " ".join(process.cmdline())
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    found.setdefault((pid, name), set()).add((str(each.laddr.ip), int(each.laddr.port)))
    return found


@pytest.mark.ray
@pytest.mark.timeout(3 * DEADLINE_S)
def test_every_port_of_a_training_has_an_owner(words: Words, corpus: Path, tmp_path: Path) -> None:
    """An unknown one is a port that nobody has thought of: put it into a table, and into docs/security.md."""
    (tmp_path / "waits.py").write_text(WAITS)
    command = words(
        *("agent.env=waits.py:Waits", "agent.episodes=16", "agent.val_episodes=0", "agent.max_turns=2"),
        *("agent.turn_timeout=null", "agent.max_turn_tokens=6", "data.train_batch_size=4"),
        *("data.max_response_length=96", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        *(f"trainer.n_gpus_per_node={RANKS}", "retriever.serve=corpus.jsonl"),
        without=("data.train_files", "data.val_files"),
    )
    with short_folder() as folder, running(main_ppo(command), tmp_path, RAY_TMPDIR=str(folder)) as run:
        eventually((tmp_path / "playing").exists, lambda: run.text, DEADLINE_S)
        known = listening(marked(run.mark))
        retriever = retrievers_place(run)
        # it serves this machine alone, and a port of devkit's there is none: nobody debugs
        assert [place for places in known.values() for place in places if place[1] == retriever] == [
            (LOOPBACK, retriever)
        ]
        probe_all(retriever)
        assert search(retriever) == PASSAGE
        (tmp_path / "enough").touch()
        assert run.wait() == 0, run.text
    for (pid, name), places in sorted(known.items()):
        print(pid, name[:80], sorted(places))
        owner, most = next((each for part, each in OWNERS.items() if part in name), ("nobody", 0))
        assert len({port for _, port in places}) <= most, (owner, name, places)
    assert any("trainer.main_ppo" in name for _, name in known)


def retrievers_place(run: Run) -> int:
    """Where the run says that its retriever listens."""
    line = next(line for line in run.text.splitlines() if "retriever: " in line and "http://" in line)
    return int(line.split("http://")[1].split(":")[1].split("/")[0])


def said(port: int, words: Sequence[bytes]) -> list[bytes]:
    """What is answered to each of these words of another user."""
    with program("stranger.py", MALLORY) as stranger:
        place = [("tcp", LOOPBACK, port)]
        return [bytes.fromhex(stranger.ask(places=place, words=each.hex())[0]) for each in words]


def probe_all(port: int) -> None:
    said(port, list(PROBES.values()))


def search(port: int) -> str:
    [[found, *_]] = Retriever(f"http://{LOOPBACK}:{port}/retrieve", topk=1, timeout=30.0).search(["Who wrote Faust?"])
    return found.text


def test_a_retriever_of_its_own_has_one_port_and_outlives_what_strangers_say(corpus: Path, tmp_path: Path) -> None:
    with running([sys.executable, "-m", "trainer.retrieval", "--corpus", str(corpus)], tmp_path) as server:
        url = server.wait_for_line("http://")
        port = int(url.split("http://")[1].split(":")[1].split("/")[0])
        places = set().union(*listening(marked(server.mark)).values())
        assert places == {(LOOPBACK, port)}
        probe_all(port)
        assert search(port) == PASSAGE


@pytest.fixture
def listener() -> Iterator[tuple[Listener, bytes]]:
    key = secrets.token_bytes(KEY_LENGTH)
    with closing(Listener(key)) as made:
        yield made, key


def test_the_doctors_listener_has_one_port_and_no_word_for_strangers(listener: tuple[Listener, bytes]) -> None:
    made, key = listener
    mine = {port for places in listening([os.getpid()]).values() for _, port in places}
    assert made.port in mine
    before = {thread.name for thread in threading.enumerate()}
    guess = secrets.token_bytes(KEY_LENGTH) + b"e" + b"hello"
    *nothing, echo = said(made.port, [*PROBES.values(), guess, key + b"e" + b"hello"])
    assert set(nothing) == {b""} and echo == b"hello", "and who knows the key is echoed"
    eventually(lambda: gone("devkit-doctor", before), "the connections' threads have ended")


def gone(name: str, before: set[str]) -> bool:
    return name not in {thread.name for thread in threading.enumerate()} - before
