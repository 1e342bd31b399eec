"""`devkit smoke --tiny` as its users call it: what it writes, how it ends, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devkit.smoke.problems import word_problems
from devkit.smoke.watch import UPDATE_CHECKS
from tests import documents
from tests.pace import stretched
from tests.smoke.calls import CHECKS, DEADLINE_S, OF_FILES, Done, calling, smoke
from trainer.data.prepare import prepare

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(2 * DEADLINE_S)]


def assert_one_error(done: Done, code: int, *parts: str) -> None:
    """One `error:` line, one `hint:` line, no traceback, and that exit code."""
    lines = done.err.splitlines()
    [error] = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    [hint] = [i for i, line in enumerate(lines) if line.startswith("hint: ")]
    assert hint == error + 1, done.err
    assert "Traceback" not in done.err
    for part in parts:
        assert part in "\n".join(lines[error : hint + 1])
    assert done.code == code, done.err


# ---------------------------------------------------------------------------------------------- what it writes


def test_record_junit_and_report_of_one_run(whole: Whole) -> None:
    done, report, junit = whole.done, whole.folder / "report", whole.folder / "smoke.xml"
    record = done.record
    assert (done.code, record["verdict"]) == (0, "pass"), done.err
    documents.check_output(["smoke"], record)
    assert {check["name"] for check in record["checks"]} == CHECKS
    assert sum(record["phases"].values()) <= record["seconds"]
    assert [step["step"] for step in record["steps"]] == list(range(1, len(record["steps"]) + 1))
    assert record["steps"][-1]["reward_mean"] > record["steps"][0]["reward_mean"]
    assert record["kept"]["trainer.nnodes"] == 2

    suite = ElementTree.parse(junit).getroot()
    assert {case.get("name") for case in suite.iter("testcase")} == CHECKS
    assert suite.get("failures") == "0"

    page = (report / "index.html").read_text()
    assert "learning" in page and "data.max_prompt_length" in page
    assert ElementTree.parse(report / "reward.svg").getroot().tag.endswith("svg")
    lines = [json.loads(line) for line in (report / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == len(record["steps"])
    assert json.loads((report / "smoke.json").read_text())["verdict"] == "pass"
    assert {path.name for path in (report / "logs").iterdir()} >= {
        "warm.log",
        "gate-metrics.jsonl",
        "pipeline-metrics.jsonl",
    }
    for path in record["artifacts"].values():
        assert Path(path).exists()

    assert "raylet" not in done.err + done.out, "Ray's own words on the rank that was killed on purpose"
    assert len([line for line in done.err.splitlines() if line.startswith(("kept:", "reduced:"))]) <= 3


@pytest.mark.parametrize(
    "changes",
    [
        ("tensor_model_parallel_size=1",),
        ("tensor_model_parallel_size=2",),
        ("pipeline_model_parallel_size=2", "override_transformer_config.recompute_granularity=selective"),
    ],
    ids=["data", "tensor", "pipeline"],
)
def test_megatron_passes_every_check(changes: tuple[str, ...]) -> None:
    """Learning, a killed rank, resuming to the bit, export: on megatron-core over two ranks."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'ray-devkit[megatron]'")
    actor = "actor_rollout_ref.actor"
    sizes = (f"{actor}.megatron.{change}" for change in changes)
    done = smoke("--json", f"{actor}.strategy=megatron", "critic.strategy=megatron", *sizes)
    record = done.record
    assert (done.code, record["verdict"]) == (0, "pass"), done.err
    unlike = dict.fromkeys({*UPDATE_CHECKS, *OF_FILES}, "skip")  # its optimizer's state is in another form
    wanted = dict.fromkeys(CHECKS, "pass") | unlike
    assert {check["name"]: check["status"] for check in record["checks"]} == wanted
    assert record["kept"][f"{actor}.strategy"] == record["kept"]["critic.strategy"] == "megatron"


def test_roles_on_ranks_of_their_own_pass_every_check() -> None:
    """Three teams: the actor's weights travel, a killed rank of another team is named, and a run resumes to the bit."""
    mapping = {"actor": [0, 1, 2, 3], "rollout": [4, 5], "critic": [6, 7]}
    done = smoke(
        "--json",
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=1",
        *(f"trainer.device_mapping.{role}={ranks}" for role, ranks in mapping.items()),
    )
    record = done.record
    assert (done.code, record["verdict"]) == (0, "pass"), done.err
    wanted = dict.fromkeys(CHECKS, "pass") | dict.fromkeys(OF_FILES, "skip")
    assert {check["name"]: check["status"] for check in record["checks"]} == wanted
    cut = {each["key"]: each["tiny"] for each in record["cut"]}
    assert [cut[f"trainer.device_mapping.{role}"] for role in mapping] == [[0], [1], [2]]


# ------------------------------------------------------------------------------------------- a user's own command


@pytest.fixture
def own_files(tmp_path: Path) -> dict[str, str]:
    """GSM8K's format through `prepare`, a reward function, and a folder with a large Llama's configuration."""
    for split, count in (("train", 64), ("test", 8)):
        records = word_problems(count, seed=count)
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    prepare("gsm8k", [str(tmp_path / "train.jsonl"), str(tmp_path / "test.jsonl")], tmp_path)
    (tmp_path / "reward.py").write_text(
        "def brevity(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert data_source == 'openai/gsm8k'\n"  # one that reads the ground truth has to use it
        "    return {'score': 1 / (1 + len(solution_str)), 'length': len(solution_str)}\n"
    )
    model = tmp_path / "llama"
    model.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
    config |= {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    (model / "config.json").write_text(json.dumps(config))
    names = {"train": "train.parquet", "test": "test.parquet", "reward": "reward.py", "model": "llama"}
    return {name: str(tmp_path / file) for name, file in names.items()}


def test_a_users_grpo_command_on_three_nodes(own_files: dict[str, str]) -> None:
    done = smoke(
        "--json",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={own_files['train']}",
        f"data.val_files={own_files['test']}",
        "data.train_batch_size=96",
        "data.max_prompt_length=1024",
        "data.max_response_length=2048",
        f"actor_rollout_ref.model.path={own_files['model']}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=48",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.name=sglang",
        f"custom_reward_function.path={own_files['reward']}",
        "custom_reward_function.name=brevity",
        "trainer.nnodes=3",
        "trainer.n_gpus_per_node=8",
    )
    record = done.record
    assert (done.code, done.checks("fail")) == (0, {}), done.err
    told = {"reward-truth": "ignores the ground truth", "reward-answer": "no form", "data-limits": "tokenizer"}
    assert done.checks("skip").keys() == {"critic-update", "kl-in-reward", *told}
    assert {name for name, words in told.items() if words not in done.checks("skip")[name]} == set()
    assert "3 ranks" in done.checks("pass")["ranks-equal"]
    assert record["kept"]["algorithm.adv_estimator"] == "grpo"
    assert record["kept"]["actor_rollout_ref.rollout.n"] == 4
    cut = {cut["key"]: cut["tiny"] for cut in record["cut"]}
    assert cut["trainer.n_gpus_per_node"] == 1
    assert cut["actor_rollout_ref.rollout.name"] == "hf"
    assert f"model: the architecture of {own_files['model']}" in done.err


# ------------------------------------------------------------------------------------------------ how it ends


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "reduced:"),
        (signal.SIGTERM, "phase  set-up"),
        (signal.SIGHUP, "reduced:"),
    ],
)
def test_a_signal_ends_it_and_nothing_stays(number: signal.Signals, moment: str) -> None:
    """While Ray starts, and while it trains."""
    with calling("--json") as call:
        call.wait_for(moment)
        os.kill(call.process.pid, number)
        done = call.wait()
        call.assert_nothing_left()
    assert_one_error(done, 130, "interrupted")
    assert done.record["exit_code"] == 130


def test_ctrl_c_on_a_terminal_reaches_the_whole_group() -> None:
    with calling() as call:
        call.wait_for("step   1")
        os.killpg(call.process.pid, signal.SIGINT)
        done = call.wait()
        call.assert_nothing_left()
    assert_one_error(done, 130, "interrupted")


def test_nothing_lives_on_when_it_is_killed() -> None:
    """Its files stay: there is nobody to remove them."""
    with calling() as call:
        call.wait_for("step   1")
        assert len(call.processes()) > 5
        call.process.kill()
        call.process.wait()
        call.assert_nothing_left(90, folders=False)


def test_a_deadline_says_where_it_was() -> None:
    done = smoke("--timeout", "3", "--json")
    assert_one_error(done, 4, "longer than 3 s", "it was in ")
    assert done.record["exit_code"] == 4


def test_keep_keeps_the_working_folder() -> None:
    with calling("--keep", "--timeout", "1") as call:
        call.wait()
        call.assert_nothing_left(folders=False)
        assert [path.name[:13] for path in call.temporary.iterdir()] == ["devkit-smoke-"]


# ------------------------------------------------------------------------------------------- another Ray beside it


THEIRS = """
import sys
import ray
from ray.cluster_utils import Cluster

one = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, temp_dir=sys.argv[1], include_dashboard=False))
print(one.address, flush=True)
ray.init(one.address, namespace="theirs", log_to_driver=False)
for _ in sys.stdin:
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    jobs = sorted(job["JobID"] for job in ray._private.state.jobs())
    print(nodes, jobs, flush=True)
ray.shutdown()
one.shutdown()
"""


class Theirs:
    """A Ray of somebody else, with ports, folder and token of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()

    def state(self) -> str:
        """Its nodes and its jobs."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        assert line, "the other Ray has ended"
        return line


@contextmanager
def theirs() -> Iterator[Theirs]:
    with tempfile.TemporaryDirectory(prefix="o", dir="/tmp", ignore_cleanup_errors=True) as folder:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # Ray notes the newest cluster there, and wants the folder to exist.
        Path(folder, "ray").mkdir()
        token["RAY_TMPDIR"] = folder
        process = subprocess.Popen(
            [sys.executable, "-c", THEIRS, folder],
            env={**os.environ, **token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        with process:  # closes its standard input, which ends it, and waits
            yield Theirs(process)


@dataclass(frozen=True)
class Whole:
    """A run from its start to its end, with all that it can write; and the other Ray before and after it."""

    done: Done
    folder: Path
    before: str
    after: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Beside somebody else's Ray, which is the one that its environment names."""
    folder = tmp_path_factory.mktemp("whole")
    written = ("--junit", str(folder / "smoke.xml"), "--report", str(folder / "report"))
    with theirs() as other:
        before = other.state()
        done = smoke("--json", "--fail-fast", *written, RAY_ADDRESS=other.address, RAY_NAMESPACE="theirs")
        return Whole(done, folder, before, other.state())


def test_a_ray_that_runs_already_is_left_alone(whole: Whole) -> None:
    assert (whole.done.code, whole.done.record["verdict"]) == (0, "pass"), whole.done.err
    assert whole.after == whole.before


# ------------------------------------------------------------------------------------------------------ bad input


def test_an_unknown_key_is_told_with_the_nearest_one() -> None:
    done = smoke("--json", "actor_rollout_ref.rolout.n=4", timeout_s=stretched(60))
    assert_one_error(done, 2, "actor_rollout_ref.rolout.n", "actor_rollout_ref.rollout.n")
    assert done.record.keys() == {"error", "hint", "exit_code"}
    assert done.record["exit_code"] == 2


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.parquet"
    wrong.write_text("question,answer\n")
    done = smoke(f"data.train_files={wrong}", f"data.val_files={wrong}", timeout_s=stretched(60))
    assert_one_error(done, 2, str(wrong))
    assert done.out == ""


def test_a_parquet_without_its_columns(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.parquet"
    pq.write_table(pa.table({"question": ["1+1?"], "answer": ["2"]}), wrong)
    done = smoke(f"data.train_files={wrong}", f"data.val_files={wrong}", timeout_s=stretched(60))
    assert_one_error(done, 2, str(wrong), "prompt")


def test_a_reward_function_that_raises_names_the_row(own_files: dict[str, str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return {}['x']\n")
    done = smoke(f"data.train_files={own_files['train']}", f"custom_reward_function.path={bad}", "--json")
    record = json.loads(done.out)
    [found] = [check["detail"] for check in record["checks"] if check["status"] == "fail"]
    assert (done.code, record["verdict"]) == (1, "fail")
    for part in ("row ", "train.parquet", "KeyError", "bad.py:2"):
        assert part in found
