"""Retrievers of a run: one on each node that plays, named where they fail, and gone with it."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.trainer.conftest import Words
from tests.trainer.encoders import tiny
from tests.trainer.runs import DEADLINE_S, assert_one_error, complete, main_ppo, running

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(3 * DEADLINE_S)]

CORPUS = [
    {"id": "0", "contents": '"Goethe"\nWrote Faust, a tragedy.'},
    {"id": "1", "contents": '"Munro"\nWrote short stories.'},
]
ASKS = """
import psutil
from trainer.retrieval import here


class Asks:
    def __init__(self, kills=False):
        self.kills = kills

    def reset(self, *, seed):
        self.at = 0
        return "Who wrote Faust?", {}

    def step(self, action):
        self.at += 1
        retriever = here()
        port = int(retriever.url.split(":")[2].partition("/")[0])
        if self.kills and self.at == 2:
            for each in psutil.net_connections("tcp"):
                if each.status == "LISTEN" and each.laddr.port == port and each.pid:
                    psutil.Process(each.pid).kill()
        [[found, *others]] = retriever.search(["Who wrote Faust?"])
        said = f"{found.title} {found.text}"
        return said, float(not others), self.at == 2, False, {"metrics": {"port": port}}

    def close(self):
        pass
"""
CLUSTER = """
import signal
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
print("nodes", cluster.address, *(node.node_id for node in nodes), flush=True)
signal.pause()
"""


@pytest.fixture
def command(words: Words, tmp_path: Path) -> Words:
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CORPUS))

    def given(*changes: str, without: tuple[str, ...] = ()) -> list[str]:
        return words(
            *("agent.env=asks.py:Asks", "agent.episodes=16", "agent.val_episodes=0", "agent.max_turns=3"),
            *("agent.max_turn_tokens=6", "data.train_batch_size=4", "data.max_response_length=96"),
            *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "retriever.topk=1"),
            *changes,
            without=("data.train_files", "data.val_files", *without),
        )

    return given


def test_each_node_has_its_own_and_a_dead_one_is_named(command: Words, tmp_path: Path) -> None:
    """Given two nodes with a rank each, then environments find what their node's server holds."""
    serve = command("trainer.nnodes=2", "retriever.serve=corpus.jsonl", "trainer.rollout_data_dir=samples")
    dead = command("trainer.nnodes=2", "retriever.url=http://127.0.0.1:9/retrieve", "retriever.timeout=20")
    with running([sys.executable, "-c", CLUSTER], tmp_path) as cluster:
        address, *nodes = cluster.wait_for_line("nodes ").split()[1:]
        with running(main_ppo(serve), tmp_path, RAY_ADDRESS=address) as run:
            assert run.wait() == 0, run.text
            assert "retriever: 2 passages, digest " in run.text and ", on 2 nodes each" in run.text, run.text
        with running(main_ppo(dead), tmp_path, RAY_ADDRESS=address) as run:
            assert run.wait() == 1, run.text
            said = assert_one_error(run, "no retriever answers at http://127.0.0.1:9/retrieve", "connection refused")
            assert any(f"(node {node[:8]})" in said for node in nodes), said
    samples = [json.loads(line) for line in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and all(
        '"Goethe" Wrote Faust' in json.dumps(each["turns"]).replace("\\", "") for each in samples
    )
    assert len({each["port"] for each in samples}) == 2
    assert all(turn["reward"] == 1 for each in samples for turn in each["turns"])


@pytest.mark.skipif(find_spec("faiss") is None, reason="no faiss here: pip install 'ray-devkit[dense]'")
def test_a_run_whose_passages_an_encoder_finds(command: Words, tmp_path: Path) -> None:
    """The second run has the embeddings of the first."""
    tiny(tmp_path / "e5-tiny")
    words = command("retriever.serve=corpus.jsonl", "retriever.encoder=e5-tiny")
    written = []
    for _ in range(2):
        with running(main_ppo(words), tmp_path) as run:
            assert run.wait() == 0, run.text
            assert re.search(r"retriever: 2 passages, digest \w{16}, encoder \w{16}, at http://", run.text), run.text
            assert f"indexing {tmp_path}/corpus.jsonl by {tmp_path}/e5-tiny on 1 node" in run.text
        [kept] = tmp_path.glob("corpus.jsonl.*.safetensors")
        written.append(kept.stat().st_mtime_ns)
    assert written[0] == written[1]


def test_a_row_that_is_no_passage_ends_the_run_before_its_first_step(command: Words, tmp_path: Path) -> None:
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write('{"id": "1", "contents": "the same id"}\n')
    code, run = complete(command("retriever.serve=corpus.jsonl"), tmp_path)
    assert code == 2
    assert_one_error(run, "the retriever of node ", "corpus.jsonl, row 3: its id 1 is that of row 2")


def test_one_that_dies_on_the_way_is_named_and_nothing_is_left(command: Words, tmp_path: Path) -> None:
    code, run = complete(command("retriever.serve=corpus.jsonl", "agent.env_kwargs={kills:True}"), tmp_path)
    assert code == 1
    assert_one_error(run, "0 of 8 trajectories can be used", "8 raised", "RetrieverDown", "http://127.0.0.1:")
