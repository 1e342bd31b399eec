"""What goes wrong from outside: one `error:` line, one `hint:` line, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config

from tests.pace import stretched
from tests.trainer.conftest import Words, rows
from tests.trainer.runs import DEADLINE_S, assert_one_error, complete, main_ppo, metrics_of, running, wait_until_gone
from trainer import launch, requirements, runlock
from trainer.config import check_command, load
from trainer.errors import NodeLost, TrainerError, WorkerDied
from trainer.main_ppo import main

pytestmark = pytest.mark.trainer

# ----------------------------------------------------------------------------------------- known before anything starts


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`refused(words)`: the two lines of a command that never gets as far as Ray."""

    def no_ray(_config: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(launch, "start_ray", no_ray)

    def call(words: list[str]) -> str:
        code = main(words)
        said = capsys.readouterr()
        assert code == 2
        assert said.out == ""
        kinds = [line.split(":")[0] for line in said.err.splitlines() if not line.startswith("note:")]
        assert kinds == ["error", "hint"], said.err
        return said.err

    return call


def table(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], count: int = 8) -> Path:
    pq.write_table(pa.Table.from_pylist([change(row) for row in rows(count, 0)]), path)
    return path


def test_missing_parquet(words: Words, refused: Callable[..., str]) -> None:
    said = refused(words("data.train_files=/nowhere/train.parquet"))
    assert "/nowhere/train.parquet" in said and "data.train_files" in said


def test_corrupt_parquet(words: Words, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and then nothing of it")
    assert "bad.parquet" in refused(words(f"data.train_files={tmp_path / 'bad.parquet'}"))


def test_missing_column(words: Words, refused: Callable[..., str], tmp_path: Path) -> None:
    file = table(tmp_path / "short.parquet", lambda row: {k: v for k, v in row.items() if k != "prompt"})
    said = refused(words(f"data.train_files={file}"))
    assert "short.parquet" in said and "prompt" in said


def test_empty_data_set(words: Words, refused: Callable[..., str], tmp_path: Path) -> None:
    schema = pa.Table.from_pylist(rows(1, 0)).schema
    pq.write_table(pa.Table.from_pylist([], schema=schema), tmp_path / "empty.parquet")
    assert "empty.parquet" in refused(words(f"data.train_files={tmp_path / 'empty.parquet'}"))


def test_model_folder_without_tokenizer(
    words: Words, refused: Callable[..., str], models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(models / "qwen2" / name)
    said = refused(words(f"actor_rollout_ref.model.path={folder}"))
    assert str(folder) in said and "tokenizer" in said


def test_unknown_key_names_the_nearest(words: Words, refused: Callable[..., str]) -> None:
    said = refused(words("data.train_batchsize=8"))
    assert "data.train_batchsize" in said and "data.train_batch_size" in said


def test_batch_that_does_not_divide(words: Words, refused: Callable[..., str]) -> None:
    said = refused(words("data.train_batch_size=6"))
    assert "data.train_batch_size=6" in said and "ppo_mini_batch_size=4" in said


def test_engine_that_is_not_here(words: Words, refused: Callable[..., str]) -> None:
    name = "actor_rollout_ref.rollout.name"
    tp = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    for engine in ("sglang", "vllm"):
        if find_spec(engine) is None:
            assert f"{engine} is not installed here" in refused(words(f"{name}={engine}", f"{tp}=1"))
        assert f"{tp}=2 does not divide the 1 ranks" in refused(words(f"{name}={engine}"))


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
ENGINE_TP, MEGATRON_TP = f"{ROLLOUT}.tensor_model_parallel_size", f"{ACTOR}.megatron.tensor_model_parallel_size"
EIGHT_RANKS = ("trainer.n_gpus_per_node=8", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", "data.train_batch_size=8")
SPLITS = [
    # words; heads and key-value heads of the model; what is said, None: nothing
    ([f"{ROLLOUT}.name=vllm", f"{ENGINE_TP}=8"], (4, 2), f"{ENGINE_TP}=8 does not divide the model's 4 att"),
    ([f"{ROLLOUT}.name=sglang", f"{ENGINE_TP}=8"], (4, 4), "set it to one of 1, 2, 4"),
    ([f"{ROLLOUT}.name=sglang", f"{ENGINE_TP}=4"], (12, 6), "=4 does not divide the model's 6 key-value heads"),
    ([f"{ROLLOUT}.name=vllm", f"{ENGINE_TP}=4"], (4, 2), None),  # each key-value head on two ranks
    ([f"{ROLLOUT}.name=vllm", f"{ENGINE_TP}=2"], (4, 4), None),
    ([f"{ENGINE_TP}=8"], (4, 2), None),  # hf has an engine per rank
    ([f"{ACTOR}.strategy=megatron", f"{MEGATRON_TP}=8"], (4, 4), f"{MEGATRON_TP}=8 does not divide the model's 4 "),
    ([f"{ACTOR}.strategy=megatron", f"{MEGATRON_TP}=4"], (4, 2), "=4 does not divide the model's 2 key-value heads"),
    ([f"{ACTOR}.strategy=megatron", f"{MEGATRON_TP}=2"], (4, 2), None),
    (
        [f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.pipeline_model_parallel_size=2"],
        (4, 2),
        "pipeline_model_parallel_size=2 does not divide the model's 3 layers",
    ),
]


@pytest.mark.parametrize(("changes", "heads", "wanted"), SPLITS)
def test_a_model_with_too_few_heads(
    words: Words, models: Path, tmp_path: Path, changes: list[str], heads: tuple[int, int], wanted: str | None
) -> None:
    folder = tmp_path / "few"
    shutil.copytree(models / "qwen2", folder)
    numbers = json.loads((folder / "config.json").read_text())
    numbers |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(numbers))
    weights = load_file(folder / "model.safetensors")
    second = {name: tensor for name, tensor in weights.items() if ".layers.1." in name}
    third = {name.replace(".layers.1.", ".layers.2."): tensor.clone() for name, tensor in second.items()}
    save_file(weights | third, folder / "model.safetensors", metadata={"format": "pt"})
    changes = [f"{ACTOR}.ppo_mini_batch_size=8", "critic.ppo_micro_batch_size_per_gpu=1", *changes]
    report = check_command(words(*EIGHT_RANKS, *changes, f"actor_rollout_ref.model.path={folder}"))
    said = [f"{problem.message}\n{problem.hint}" for problem in report.problems]
    assert len(said) == (0 if wanted is None else 1), said
    assert wanted is None or wanted in said[0]


def test_a_model_with_too_few_heads_is_exit_code_2(words: Words, refused: Callable[..., str], models: Path) -> None:
    numbers = json.loads((models / "qwen2" / "config.json").read_text())
    size = 2 * numbers["num_attention_heads"]
    micro = [f"{name}.ppo_micro_batch_size_per_gpu=1" for name in (ACTOR, "critic")]
    batch = [f"data.train_batch_size={size}", f"{ACTOR}.ppo_mini_batch_size={size}", *micro]
    said = refused(words(f"trainer.n_gpus_per_node={size}", *batch, f"{ROLLOUT}.name=vllm", f"{ENGINE_TP}={size}"))
    assert "attention heads" in said


# ------------------------------------------------------------------------------- known once the data and model are read


@pytest.fixture
def failed_early(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., str]]:
    """`failed_early(words, code)`: the two lines of a run that ends before Ray is started."""

    def too_late(_config: object) -> None:
        raise AssertionError("Ray was started before the mistake was found")

    monkeypatch.setattr(launch, "start_ray", too_late)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(words: list[str], code: int) -> str:
        assert main(words) == code
        said = capsys.readouterr().err
        kinds = [line.split(":")[0] for line in said.splitlines() if not line.startswith("note:")]
        assert kinds == ["error", "hint"], said
        return said

    yield call
    signal.signal(signal.SIGTERM, before)


def test_prompt_too_long(words: Words, failed_early: Callable[..., str]) -> None:
    said = failed_early(words("data.max_prompt_length=16", "data.truncation=error"), 2)
    assert "row 0 of" in said and "train.parquet" in said and "filter_overlong_prompts" in said


def test_broken_tokenizer(words: Words, failed_early: Callable[..., str], models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (folder / name).symlink_to(models / "qwen2" / name)
    (folder / "tokenizer.json").write_text("{")
    assert str(folder) in failed_early(words(f"actor_rollout_ref.model.path={folder}"), 2)


def test_a_model_of_the_hub_with_too_few_heads(
    words: Words, failed_early: Callable[..., str], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.json is known once it has been fetched: before Ray is started."""
    monkeypatch.setattr(requirements, "AutoConfig", SimpleNamespace(from_pretrained=lambda *_, **__: Qwen2Config()))
    monkeypatch.setattr(launch, "require_engines", lambda _config: None)  # it is not here
    tokenizer = f"actor_rollout_ref.model.tokenizer_path={models / 'qwen2'}"
    model = "actor_rollout_ref.model.path=some/Model-7B"
    critic = f"critic.model.path={models / 'qwen2'}"
    micro = [f"{name}.ppo_micro_batch_size_per_gpu=1" for name in (ACTOR, "critic")]
    batch = ["data.train_batch_size=6", f"{ACTOR}.ppo_mini_batch_size=6", "trainer.n_gpus_per_node=6", *micro]
    said = failed_early(words(model, tokenizer, critic, *batch, f"{ROLLOUT}.name=vllm", f"{ENGINE_TP}=6"), 2)
    assert f"{ENGINE_TP}=6 does not divide the model's 32 attention heads" in said


def test_folder_that_cannot_be_written(words: Words, failed_early: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = failed_early(words(f"trainer.default_local_dir={tmp_path / 'file' / 'run'}"), 2)
    assert f"cannot be created: {tmp_path / 'file'} is a file" in said


def test_a_folder_that_another_run_writes_to(words: Words, failed_early: Callable[..., str], tmp_path: Path) -> None:
    folder = f"trainer.default_local_dir={tmp_path / 'taken'}"
    with runlock.held(load(words(folder)).config.trainer):
        said = failed_early(words(folder), 1)
    assert f"another run writes to {tmp_path / 'taken'}: process {os.getpid()} on" in said


@pytest.mark.parametrize("name", ["rollout_data_dir", "validation_data_dir", "capsule_dir"])
def test_a_folder_for_what_a_step_leaves_that_cannot_be_written(
    words: Words, failed_early: Callable[..., str], tmp_path: Path, name: str
) -> None:
    """It is known at the start, not after the first step."""
    (tmp_path / "file").touch()
    command = words(f"trainer.{name}={tmp_path / 'file' / 'kept'}")
    said = failed_early(command, 2)
    assert str(tmp_path / "file" / "kept") in said and f"trainer.{name}=" in said
    # and what only the attempt shows, as on a disk that is full
    with pytest.raises(TrainerError) as raised:
        requirements.require_folders(load(command).config)
    assert str(tmp_path / "file" / "kept") in raised.value.message
    assert f"write elsewhere: trainer.{name}" in raised.value.hint


def test_nobody_answers_at_ray_address(words: Words, tmp_path: Path, free_port: int) -> None:
    with running(main_ppo(words()), tmp_path, RAY_ADDRESS=f"127.0.0.1:{free_port}") as run:
        assert run.wait(timeout_s=stretched(40)) == 3
        assert_one_error(run, f"RAY_ADDRESS=127.0.0.1:{free_port}", "ray start --head")
        assert wait_until_gone(run.mark) == []


TOO_LATE = """
import sys
from trainer import main_ppo
from trainer.address import prepare_own_cluster
prepare_own_cluster()
from ray._private import services
def too_late(*args):
    raise Exception("The current node timed out during startup. This could happen because some of the raylet ...")
services.get_node = too_late
main_ppo.leave(main_ppo.main(sys.argv[1:]))
"""


def test_ray_that_comes_up_too_late(words: Words, tmp_path: Path) -> None:
    """Given a machine that is too busy for Ray's own limit, of which Ray has no setting."""
    with running([sys.executable, "-c", TOO_LATE, *words()], tmp_path) as run:
        assert run.wait() == 4
        assert_one_error(run, "Ray did not come up in time: The current node timed out during startup", "overloaded")
        assert wait_until_gone(run.mark) == []


def test_several_nodes_need_a_cluster(
    words: Words, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # another Ray of this machine is none of ours
    assert main(words("trainer.nnodes=2")) == 3
    assert "trainer.nnodes=2 needs a cluster" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- in the middle of a run

REWARD = """
import os, signal, time
import torch
import torch.distributed as dist

def raises(**row):
    raise KeyError("apples")

def waits(**row):
    with open(os.environ["TEST_FIFO"], "w") as fifo:
        fifo.write(str(os.getpid()))
    signal.pause()

def waits_in_step_2(**row):
    folder = os.path.dirname(os.environ["TEST_FIFO"])
    return waits() if os.path.exists(os.path.join(folder, "run/latest_checkpointed_iteration.txt")) else 0.0

told = []

def tells(**row):
    if not told:
        told.append(1)
        with open(os.environ["TEST_FIFO"], "w") as fifo:
            fifo.write(str(os.getpid()))
        with open(os.path.join(os.path.dirname(os.environ["TEST_FIFO"]), "go")) as go:
            go.read()
    return 0.0

def rank_1_dies_in_its_update(**row):
    def die(self, *args, **kwargs):
        with open(os.environ["TEST_FIFO"], "w") as fifo:
            fifo.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 1:
        torch.optim.AdamW.step = die
    return 0.0
"""


@pytest.fixture
def reward(tmp_path: Path) -> Callable[[str], list[str]]:
    (tmp_path / "reward.py").write_text(REWARD)
    for name in ("fifo", "go"):
        os.mkfifo(tmp_path / name)
    return lambda name: [f"custom_reward_function.path={tmp_path / 'reward.py'}", f"custom_reward_function.name={name}"]


def read_fifo(path: Path) -> str:
    """What a worker wrote into it, once it did."""
    done = subprocess.run(["cat", str(path)], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return done.stdout


def test_reward_function_that_raises(words: Words, reward: Callable[[str], list[str]], tmp_path: Path) -> None:
    code, run = complete(words(*reward("raises")), tmp_path)
    assert code == 1, run.text
    assert_one_error(run, "row ", "train.parquet", "KeyError", "reward.py:7")


def test_worker_killed_in_mid_step(words: Words, reward: Callable[[str], list[str]], tmp_path: Path) -> None:
    """Given two ranks in an update, when one is killed, the error names it and not the one that it left waiting."""
    changes = (*reward("rank_1_dies_in_its_update"), "trainer.n_gpus_per_node=2")
    with running(main_ppo(words(*changes)), tmp_path, TEST_FIFO=str(tmp_path / "fifo")) as run:
        pid = read_fifo(tmp_path / "fifo")
        assert run.wait() == 1
        nothing = "no checkpoint was written: trainer.save_freq=-1"
        said = assert_one_error(run, "rank 1", f"pid {pid}", "update_critic", nothing)
        assert "rank 0" not in said
        assert wait_until_gone(run.mark) == []


WORD_S = stretched(5.0)  # from a signal to the two lines
INTERRUPTIONS = {  # the signal, and to the group or the driver alone; where the reward function waits
    "SIGINT, group": (signal.SIGINT, True, "waits"),
    "SIGTERM, driver": (signal.SIGTERM, False, "waits"),
    "SIGTERM, group, with a checkpoint": (signal.SIGTERM, True, "waits_in_step_2"),
}
GOES_ON = {  # by where it waits: how often it saves, and what the hint says
    "waits": ("-1", "no checkpoint was written: trainer.save_freq=-1"),
    "waits_in_step_2": ("1", "trainer.resume_mode=auto continues from run/global_step_1"),
}


@pytest.mark.parametrize(("number", "group", "where"), INTERRUPTIONS.values(), ids=INTERRUPTIONS)
def test_interrupted(
    words: Words, reward: Callable[[str], list[str]], tmp_path: Path, number: signal.Signals, group: bool, where: str
) -> None:
    """Ctrl-C goes to the whole group, SIGTERM to the driver alone (`ray job stop`) or to all: Ray is dead first."""
    save_freq, hint = GOES_ON[where]
    command = main_ppo(words(*reward(where), f"trainer.save_freq={save_freq}", "trainer.total_training_steps=2"))
    with running(command, tmp_path, TEST_FIFO=str(tmp_path / "fifo")) as run:
        read_fifo(tmp_path / "fifo")
        run.signal_group(number) if group else run.process.send_signal(number)
        run.wait_for_line("hint:", WORD_S)  # below its error
        assert run.wait() == 130
        assert_one_error(run, "interrupted", hint)
        assert not re.search(r"\.cc:\d|received at time|Stack trace|GCS", run.text), run.text
        assert wait_until_gone(run.mark) == []


def test_sigterm_with_a_grace_period(words: Words, reward: Callable[[str], list[str]], tmp_path: Path) -> None:
    """Given a signal to the whole group in the midst of a step, the step is finished, saved, and gone on from."""
    changes = (*reward("tells"), "trainer.grace_period=100", "trainer.total_training_steps=3")
    with running(main_ppo(words(*changes)), tmp_path, TEST_FIFO=str(tmp_path / "fifo")) as run:
        read_fifo(tmp_path / "fifo")
        run.signal_group(signal.SIGTERM)
        run.wait_for_line("note: SIGTERM: finishing and saving the step in progress within 100 s")
        (tmp_path / "go").write_text("")
        assert run.wait() == 130
        assert_one_error(run, "interrupted", "trainer.resume_mode=auto continues from run/global_step_1")
        assert wait_until_gone(run.mark) == []
    assert sorted(metrics_of(tmp_path / "run")) == [1]
    assert (tmp_path / "run/latest_checkpointed_iteration.txt").read_text() == "1"


def test_interrupted_while_ray_is_half_up(words: Words, tmp_path: Path) -> None:
    with running(main_ppo(words()), tmp_path) as run:
        run.wait_for_line("Started a local Ray instance")
        run.signal_group(signal.SIGINT)
        assert run.wait() == 130
        assert_one_error(run, "interrupted")
        assert wait_until_gone(run.mark) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (WorkerDied("rank 1 died", hint="look"), 1), (NodeLost("gone", hint="look"), 1)],
)
@pytest.mark.parametrize("save_freq", ["-1", "3"])
def test_an_early_end_promises_no_checkpoint_that_is_not_there(
    words: Words,
    failed_early: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    save_freq: str,
) -> None:
    def end(_config: object) -> None:
        raise error

    monkeypatch.setattr(launch, "run_on_ray", end)
    said = failed_early(words(f"trainer.save_freq={save_freq}"), code)
    yet = {"-1": "", "3": " yet"}[save_freq]
    assert f"no checkpoint was written{yet}: trainer.save_freq={save_freq}" in said and "resume_mode" not in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB: enough for one checkpoint, not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if (
        os.geteuid() != 0
        or subprocess.run(command, capture_output=True, timeout=stretched(20), check=False).returncode != 0
    ):
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], timeout=stretched(20), check=True)


def test_full_disk_at_a_checkpoint(words: Words, small_disk: Path, tmp_path: Path) -> None:
    """Given a disk with room for one checkpoint, the second fails, and the first is whole and can be resumed from."""
    folder = small_disk / "run"
    base = (f"trainer.default_local_dir={folder}", "trainer.save_freq=1")

    code, run = complete(words(*base, "trainer.total_training_steps=2"), tmp_path)

    assert code == 1, run.text
    assert_one_error(run, str(folder / "global_step_2"), "No space left on device", "default_local_dir")
    assert sorted(path.name for path in folder.iterdir()) == [
        "global_step_1",
        "latest_checkpointed_iteration.txt",
        "metrics.jsonl",
    ]
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "1"

    code, run = complete(words(base[0], "trainer.total_training_steps=2"), tmp_path)
    assert code == 0, run.text
    assert "resumed from" in run.text and sorted(metrics_of(folder)) == [1, 2]
