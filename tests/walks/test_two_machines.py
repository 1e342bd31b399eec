"""What the pages and the founding documents say of several machines, typed on two: Search-R1's guide and ROLL's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from devkit.smoke.tiny import TinySpec, build
from tests.config.conftest import SEED_SCRIPTS
from tests.hosts import hosts
from tests.hosts.hosts import REPOSITORY
from tests.walks import pages, searching
from tests.walks.terminals import HOME, Terminal
from tests.walks.typist import FOLDER, walk
from trainer.data.recipes import RECIPES
from trainer.retrieval.meeting import CANARIES

pytestmark = [pytest.mark.walks, pytest.mark.timeout(900)]
PROJECT = f"{HOME}/{FOLDER}"
SCRIPT = "tests/config/seeds/003_search_r1.sh"
RUNTIME_ENV = """\
working_dir: ./
excludes: ["/.git/"]
env_vars:
  TORCH_NCCL_AVOID_RECORD_STREAMS: "1"
  WANDB_MODE: offline
"""
SMALL = {  # the sizes of the command that are for sixteen GPUs; all its other words stay
    "data.train_batch_size": ("512", "8"),
    "data.val_batch_size": ("256", "4"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": ("256", "4"),
    "actor_rollout_ref.actor.ppo_micro_batch_size": ("64", "4"),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": ("128", "4"),
    "actor_rollout_ref.ref.log_prob_micro_batch_size": ("128", "4"),
    "critic.ppo_micro_batch_size": ("16", "4"),
    "actor_rollout_ref.rollout.name": ("vllm", "hf"),
    "trainer.n_gpus_per_node": ("8", "1"),
    "trainer.save_freq": ("100", "2"),
    "trainer.test_freq": ("100", "2"),
    "trainer.total_training_steps": ("1005", "2"),
}
ROLL = REPOSITORY / "tests/config/roll"
ROLLS_FILE = "agent_val_frozen_lake_multi_nodes_demo.yaml"
ROLLS_SIZES = {  # over seed 004's own list, which is for four V100s
    "pretrain": f"{PROJECT}/chat-model",
    "actor_train.training_args.gradient_accumulation_steps": 1,
    "actor_infer.strategy_args.strategy_name": "hf_infer",
    "rollout_batch_size": 8,
    "val_batch_size": 4,
    "max_steps": 2,
    "eval_steps": 2,
    "rollout_dump_dir": f"{PROJECT}/samples",
}


def rolls_file(shared: Path) -> dict[str, object]:
    return {"defaults": ["004_v100@_here_"], **ROLLS_SIZES, "checkpoint_config.output_dir": f"{shared}/models"}


PATHS = {"BASE_MODEL='Qwen/Qwen2.5-7B'": f"BASE_MODEL='{PROJECT}/model'"}


def changed(text: str, changes: dict[str, str]) -> str:
    """Each of which has to be there once."""
    for old, new in changes.items():
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    return text


def small_seed(shared: Path) -> str:
    """Search-R1's command as it stands, but for paths and sizes. `shared`: a folder of both machines."""
    [script] = [each for each in SEED_SCRIPTS if each.stem == "003_search_r1"]
    sizes = {f" {key}={old} ": f" {key}={new} " for key, (old, new) in SMALL.items()}
    key = "trainer.default_local_dir="
    return changed(script.read_text(), {**sizes, **PATHS, f"{key}verl_checkpoints": f"{key}{shared}/verl_checkpoints"})


def section(page: str, title: str) -> list[pages.Saved | pages.Typed]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {title}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {title}"
    return pages.steps(found[0])


@dataclass(frozen=True)
class Pair:
    """A terminal on each of two machines that nobody has used yet."""

    here: Terminal
    there: Terminal

    def __iter__(self) -> Iterator[Terminal]:
        return iter((self.here, self.there))

    def write(self, path: str, text: str) -> None:
        for terminal in self:
            terminal.host.write(f"{PROJECT}/{path}", text, "644")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searching")
    searching.write(folder)
    chat = TinySpec(str(folder / "chat-model"), None, (RECIPES["nq"].instruction,), 1, searching.POSITIONS)
    build(chat)
    return folder


@pytest.fixture
def pair(files: Path) -> Iterator[Pair]:
    with hosts.up(2, share=[files]) as lan:
        found = Pair(*(Terminal(host) for host in lan))
        for terminal in found:
            terminal.host.run("sh", "-c", f"mkdir -p {PROJECT} && cp -r {files}/. {PROJECT}")
        found.write("verl/trainer/runtime_env.yaml", RUNTIME_ENV)
        found.write(SCRIPT, small_seed(files))
        yield found


def test_search_r1s_guide_goes_as_its_page_says(pair: Pair, files: Path) -> None:
    reader = walk(pair.here, section("docs/search.md", "On several nodes"), {2: pair.there, 4: pair.there})
    asked = re.search(r'"queries": (\d+)', reader.shells[2].printed)
    assert asked and int(asked[1]) > len(CANARIES), "the second node's rank has searched, beyond its first look"
    assert [*files.glob("verl_checkpoints/*/global_step_2")], "the checkpoint of the last step"


@dataclass(frozen=True)
class Seed:
    """Seed 003's command, submitted from the first machine."""

    pair: Pair
    script: str

    def said(self, changes: dict[str, str] | None = None, state: str = "FAILED") -> str:
        """What the job printed, once it has come to its end."""
        self.pair.here.host.write(f"{PROJECT}/multinode.sh", changed(self.script, changes or {}), "644")
        go = f"cd {FOLDER} && export train_data=nq test_data=nq && bash multinode.sh"
        found = re.search(r"'(raysubmit_\w+)'", self.pair.here.run(go))
        assert found  # of `logs` the exit code is another's in each Ray
        said = self.pair.here.try_(f"ray job logs --follow {found[1]} 2>&1").stdout
        assert state in self.pair.here.try_(f"ray job status {found[1]} 2>&1").stdout.upper(), said
        return said


@pytest.fixture
def seed(pair: Pair, files: Path) -> Seed:
    """On two nodes, with data."""
    pair.here.run("ray start --head --dashboard-host=0.0.0.0")
    pair.there.run(f"ray start --address={pair.here.host.ip}:6379")
    inputs = "--input NQ-open.train.jsonl --input NQ-open.dev.jsonl"
    pair.here.run(f"cd {FOLDER} && python -m trainer.data.prepare nq --search {inputs} --output data/nq_search")
    filled = {"<address>": f"http://{pair.here.host.ip}", "verl.trainer.main_ppo": "trainer.main_ppo"}
    return Seed(pair, changed(small_seed(files), filled))


def test_a_node_whose_retriever_is_missing_or_another_is_named_before_the_first_step(seed: Seed) -> None:
    here, there = seed.pair
    retriever = "python -m trainer.retrieval --corpus project/{}.jsonl"
    url = "http://127.0.0.1:8000/retrieve"
    with here.running(retriever.format("corpus")) as one:
        one.says("retriever at ")
        said = seed.said()
        assert f"error: node {there.host.ip}: no retriever answers at {url}: connection refused" in said
        with there.running(retriever.format("other")) as other:
            other.says("retriever at ")
            said = seed.said()
            assert "error: the retrievers of two nodes hold different passages: node " in said
            for host, passages in ((here.host, "3 passages"), (there.host, "2 passages")):
                assert re.search(rf"node {host.ip} has {passages}, digest \w+, at {url}", said), said
    assert "step 1" not in said


def test_the_run_serves_every_node_itself(seed: Seed) -> None:
    """`retriever.serve` in place of `retriever.url`, and nothing is started by hand."""
    own = {
        'retriever.url="http://127.0.0.1:8000/retrieve"': f"retriever.serve={PROJECT}/corpus.jsonl",
        "trainer.logger=['wandb']": f"trainer.logger=['file'] trainer.rollout_data_dir={PROJECT}/samples",
    }
    said = seed.said(own, state="SUCCEEDED")
    assert "retriever: 3 passages, digest " in said and ", on 2 nodes each; a search from node" in said
    lines = seed.pair.here.run(f"cat {FOLDER}/samples/2.jsonl").splitlines()
    turns = [turn for line in lines for turn in json.loads(line)["turns"]]
    assert len(lines) == 8 and any('Doc 1(Title: "Faust")' in turn["answered"] for turn in turns)
    seed.pair.there.run(f"rm {FOLDER}/corpus.jsonl")
    said = seed.said(own)
    assert re.search(rf"error: the retriever of node {seed.pair.there.host.ip}: .*corpus\.jsonl", said), said


def test_rolls_guide_goes_as_its_page_says(pair: Pair, files: Path) -> None:
    """Seed 004: the same variables and the same script on each machine, its list of changes for V100s, two steps."""
    for path in ROLL.rglob("*.yaml"):
        pair.write(f"examples/{path.relative_to(ROLL)}", path.read_text())
    pair.write(f"examples/agentic_demo/{ROLLS_FILE}", yaml.safe_dump(rolls_file(files)))
    reader = walk(pair.here, section("docs/roll.md", "On several machines"), {2: pair.there})
    assert "exit code 0" in reader.shells[1].said, reader.shells[1].said
    samples = [json.loads(line) for line in pair.here.run(f"cat {FOLDER}/samples/2.jsonl").splitlines()]
    assert len(samples) == 8 and {sample["data_source"] for sample in samples} == {"FrozenLake"}
    assert all(len(sample["turns"]) >= 1 for sample in samples)
    assert [*files.glob("models/**/events.*")]
    for terminal in pair:
        assert "ray" not in "".join(terminal.host.processes().values())
