"""Whole runs on real Ray workers: trains, saves, is killed, resumes to the bit, re-shards, exports, joins a cluster."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.conftest import Words, locked
from tests.trainer.runs import (
    AGENTS,
    GONE_S,
    assert_one_error,
    complete,
    main_ppo,
    metrics_of,
    running,
    wait_until_gone,
)
from trainer import export, findings, ppo, replay
from trainer.config.schema import KlCtrlConfig
from trainer.precision import in_precision

pytestmark = pytest.mark.trainer

RUN = (
    "trainer.n_gpus_per_node=2",
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
    "trainer.val_before_train=True",
    "actor_rollout_ref.rollout.n=2",
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.kl_coef=0.1",
    "algorithm.kl_ctrl.horizon=100",
    "algorithm.kl_ctrl.target_kl=0.001",
)


@pytest.fixture(scope="module")
def whole(words: Words, shared: Path) -> Path:
    """The folder in which the long run went from its first step to its last, with every logger there is."""
    folder = shared / "trainer-whole-run"
    with locked(shared / "trainer-whole-run.lock"):
        if not folder.exists():
            folder.mkdir()
            run_whole(words, folder)
    assert (folder / "run/latest_checkpointed_iteration.txt").exists(), "the long run failed, see the first error"
    return folder


def run_whole(words: Words, folder: Path) -> None:
    changes = (
        "trainer.logger=[console,file,tensorboard,wandb]",
        "trainer.rollout_data_dir=samples",
        "trainer.capsule_dir=capsules",
        "trainer.capsule_freq=3",
        *("global_profiler.tool=torch", "global_profiler.steps=[2]", "global_profiler.all_ranks=True"),
        "global_profiler.save_path=profiles",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    )
    code, run = complete(words(*RUN, *changes), folder, WANDB_MODE="offline", WANDB_DIR=str(folder))
    assert code == 0, run.text


def test_trains_validates_and_saves(whole: Path) -> None:
    metrics = metrics_of(whole / "run")
    assert sorted(metrics) == [0, 1, 2, 3, 4]
    validated = [step for step, line in metrics.items() if "val-core/openai/gsm8k/reward/mean@1" in line]
    assert sorted(validated) == [0, 2, 4]
    assert all(metrics[step]["actor/grad_norm"] > 0 and metrics[step]["critic/grad_norm"] > 0 for step in range(1, 5))
    assert all(metrics[step]["actor/skipped_steps"] == 0 for step in range(1, 5))
    assert metrics[1]["training/rollout_probs_diff_max"] < 1e-5
    control = KlCtrlConfig(type="adaptive", kl_coef=0.1, horizon=100, target_kl=0.001)
    for step in (1, 2, 3):
        coef, kl = (metrics[step][f"actor/reward_kl_penalty{end}"] for end in ("_coeff", ""))
        assert metrics[step + 1]["actor/reward_kl_penalty_coeff"] == ppo.next_kl_coef(coef, kl, 16, control) != coef
    assert sorted(path.name for path in (whole / "run").glob("global_step_*")) == ["global_step_2", "global_step_4"]
    assert (whole / "run/latest_checkpointed_iteration.txt").read_text() == "4"


def test_samples_are_written(whole: Path) -> None:
    assert sorted(path.name for path in (whole / "samples").iterdir()) == [f"{i}.jsonl" for i in (1, 2, 3, 4)]
    samples = [json.loads(line) for line in (whole / "samples/1.jsonl").read_text().splitlines()]
    assert len(samples) == 16
    for first, second in zip(samples[::2], samples[1::2], strict=True):  # two answers to each prompt
        assert first["row"] == second["row"] and first["prompt"] == second["prompt"]
        assert "How many pens" in first["prompt"] and first["prompt"].endswith("assistant\n")
    # what is trained on is the score less the KL penalty, which is 0 before the first update
    assert all(line["reward"] == pytest.approx(line["score"], abs=1e-4) for line in samples)
    assert any(a["response"] != b["response"] for a, b in zip(samples[::2], samples[1::2], strict=True))


def test_what_two_ranks_saw_comes_out_the_same_in_one_process(whole: Path) -> None:
    assert sorted(path.name for path in (whole / "capsules").iterdir()) == ["step_3.capsule", "step_4.capsule"]
    found = list(replay.replay(whole / "capsules/step_3.capsule"))
    assert {each.verdict for each in found} == {"same"}, "\n".join(findings.table(found))
    assert {each.stage for each in found} == set(findings.STAGES)
    # two ranks sum in another order, so the comparison is one between numbers that differ
    assert any(each.difference for each in found if each.stage == "actor_gradients")


def test_each_rank_has_its_profile_with_the_phases_by_name(whole: Path) -> None:
    files = sorted((whole / "profiles").iterdir())
    assert [path.name for path in files] == [f"step_2.rank_{rank}.trace.json.gz" for rank in (0, 1)]
    for path in files:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        ranges = {event["name"] for event in events if event.get("cat") == "user_annotation"}
        phases = {"generate", "score", "log_probs", "ref_log_probs", "values", "update_critic", "update_actor"}
        assert phases <= ranges and "sync_weights" in ranges


def test_tensorboard_and_wandb_get_the_same_numbers(whole: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "run/tensorboard"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("critic/vf_loss")}
    expected = {step: line["critic/vf_loss"] for step, line in metrics_of(whole / "run").items() if step}
    assert logged == pytest.approx(expected, rel=1e-6)
    assert len(list((whole / "wandb").glob("offline-run-*/run-*.wandb"))) == 1


def test_killed_run_resumes_to_the_bit(words: Words, whole: Path, tmp_path: Path) -> None:
    """Given a run killed in step 4, when it is started again, it repeats step 3 and ends as if nothing had been."""
    with running(main_ppo(words(*RUN)), tmp_path) as run:
        run.wait_for_line("step:3 ")
        run.process.send_signal(signal.SIGKILL)
        assert run.process.wait(GONE_S) == -signal.SIGKILL
        assert wait_until_gone(run.mark, but=AGENTS) == []

    code, run = complete(words(*RUN, "trainer.val_before_train=False"), tmp_path)

    assert code == 0, run.text
    assert "resumed from run/global_step_2 at step 2" in run.text
    assert metrics_of(tmp_path / "run") == metrics_of(whole / "run")
    from trainer.learner.checkpoint import read_model

    for role in ("actor", "critic"):
        ours, theirs = (read_model(folder / "run/global_step_4" / role) for folder in (tmp_path, whole))
        assert ours.keys() == theirs.keys()
        assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_two_ranks_go_on_as_one(words: Words, whole: Path, tmp_path: Path) -> None:
    """Given a checkpoint of two ranks, when one rank resumes from it, step 3 is what it was for two."""
    changes = (
        "trainer.n_gpus_per_node=1",
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={whole / 'run/global_step_2'}",
        "trainer.val_before_train=False",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.total_training_steps=3",
    )
    code, run = complete(words(*RUN, *changes), tmp_path)

    assert code == 0, run.text
    two, one = metrics_of(whole / "run")[3], metrics_of(tmp_path / "run")[3]
    same = [name for name in one if not name.startswith("global_seqlen/")]  # tokens of each rank
    assert {name: one[name] for name in same} == pytest.approx({name: two[name] for name in same}, rel=2e-4, abs=2e-5)


def test_export_is_what_was_trained(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.learner.checkpoint import read_model

    folder = whole / "run/global_step_4"
    assert export.main([str(folder), "--output", str(tmp_path / "model")]) == 0
    assert "parameters" in capsys.readouterr().out

    loaded, beside = (
        AutoModelForCausalLM.from_pretrained(path, **in_precision(torch.float32)).state_dict()
        for path in (tmp_path / "model", folder / "actor/huggingface")
    )
    trained = read_model(folder / "actor")
    assert loaded.keys() == beside.keys() >= trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)
    assert all(torch.equal(loaded[name], beside[name]) for name in loaded)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "<|im_end|>"
    # and it was trained: some weights moved since step 2
    earlier = read_model(whole / "run/global_step_2/actor")
    assert any(not torch.equal(earlier[name], trained[name]) for name in trained)


@pytest.mark.parametrize("damaged", [".metadata", "__0_0.distcp"])
def test_export_of_a_damaged_checkpoint(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    folder = tmp_path / "global_step_4"
    shutil.copytree(whole / "run/global_step_4", folder)
    file = folder / "actor" / damaged
    file.write_bytes(file.read_bytes()[:1000])
    assert export.main([str(folder), "--output", str(tmp_path / "model")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"] and str(folder) in lines[0]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["CHECKPOINT/actor", "--output", "new"], "is not a checkpoint"), (["CHECKPOINT", "--output", "."], "not empty")],
)
def test_export_refuses(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:

    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    words = [word.replace("CHECKPOINT", str(whole / "run/global_step_4")) for word in arguments]
    assert export.main(words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"] and said in lines[0]


# --------------------------------------------------------------------------------------------------- somebody's cluster


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of one node with one CPU slot, which is not ours to end."""
    folder = tmp_path_factory.mktemp("cluster")
    ray = str(Path(sys.executable).with_name("ray"))
    ports = ("--port=0", "--dashboard-agent-listen-port=0")
    command = [ray, "start", "--head", "--block", "--num-cpus=1", "--include-dashboard=false", *ports]
    with running(command, folder) as run:
        run.wait_for_line("--block")
        found = re.search(r"--address='?([0-9.]+:\d+)", run.text)
        assert found, run.text
        yield found[1]
        assert run.process.poll() is None, run.text  # no run ended it


def test_runs_in_a_cluster_that_is_already_there(words: Words, cluster: str, tmp_path: Path) -> None:
    """Given a cluster with one slot, it takes two runs of one rank one after the other, and none of four ranks."""
    grpo = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.use_kl_loss=True")
    for estimator in ((), grpo):  # the second needs the slot that the first had
        changes = ("trainer.ray_wait_register_center_timeout=60", "trainer.resume_mode=disable", *estimator)
        code, run = complete(words(*changes), tmp_path, RAY_ADDRESS=cluster)
        assert code == 0, run.text
    assert sorted(metrics_of(tmp_path / "run")) == [1]

    changes = ("trainer.n_gpus_per_node=2", "trainer.nnodes=2", "trainer.ray_wait_register_center_timeout=3")
    sizes = ("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8")
    code, run = complete(words(*changes, *sizes), tmp_path, RAY_ADDRESS=cluster)
    assert code == 4, run.text
    assert_one_error(run, "2 of 2 node(s)", "2 free CPUs each", "1 of 1 CPUs free, 1 short", "within 3 s")
