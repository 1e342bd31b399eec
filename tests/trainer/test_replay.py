"""Real runs leave capsules; each stage of a step is done again from them, and whatever has changed is named."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from tests.trainer.conftest import Words
from trainer import capsules, config, ppo, replay
from trainer.capsules import Capsule
from trainer.data.reading import read_data
from trainer.errors import CapsuleError, DriftError
from trainer.findings import STAGES, Finding, table
from trainer.interfaces import StepOutcome
from trainer.learner.fsdp import Model, Trained
from trainer.local import LocalPool
from trainer.records import Metrics, Rollout
from trainer.run import train
from trainer.tracking import Tracker

pytestmark = pytest.mark.trainer

STEPS = 3
RUN = (
    f"trainer.total_training_steps={STEPS}",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.shuffle=True",
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.kl_coef=0.1",
    "algorithm.rollout_correction.rollout_is=token",
)


class Log:
    """A tracker's back-end that remembers."""

    def __init__(self) -> None:
        self.lines: list[Metrics] = []

    def log(self, step: int, metrics: Metrics) -> None:
        self.lines.append(dict(metrics))

    def close(self) -> None: ...


def run(words: Words, *changes: str) -> list[Metrics]:
    """A run in this process; the metrics of its steps."""
    settings, log = config.load(words(*changes)).config, Log()
    with closing(LocalPool()) as pool:
        train(settings, pool, read_data(settings), Tracker([log]))
    return log.lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("capsules")


@pytest.fixture(scope="module")
def recorded(words: Words, folder: Path) -> Path:
    """The capsule of the third step of a run with everything in it."""
    (folder / "reward.py").write_text(
        "def compute_score(solution_str, **row):\n"
        "    return {'score': len(set(solution_str)) / 7, 'length': float(len(solution_str))}\n"
    )
    reward = f"custom_reward_function.path={folder / 'reward.py'}"
    lines = run(words, *RUN, reward, f"trainer.capsule_dir={folder / 'all'}")
    assert all("timing_s/capsule" in line for line in lines)
    (folder / "reward.py").unlink()  # it is in the capsule
    return folder / "all" / f"step_{STEPS}.capsule"


def findings(path: Path, *stages: str, **options: Any) -> list[Finding]:
    return list(replay.replay(path, stages, **options))


def off(found: Sequence[Finding]) -> set[str]:
    return {each.stage for each in found if each.verdict == "OFF"}


def test_every_stage_of_a_step_comes_out_the_same(recorded: Path) -> None:
    found = findings(recorded)
    assert [stage for stage in STAGES if stage not in {each.stage for each in found}] == []
    assert {each.verdict for each in found} == {"same"}, "\n".join(table(found))
    # the same machine and one rank on both sides: to the bit
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))


def test_each_step_has_its_file_and_nothing_else_is_left(recorded: Path) -> None:
    assert sorted(path.name for path in recorded.parent.iterdir()) == [f"step_{n}.capsule" for n in (1, 2, 3)]


def test_there_is_no_pickle_in_it(recorded: Path) -> None:
    with zipfile.ZipFile(recorded) as file:
        assert {name.rpartition(".")[2] for name in file.namelist()} <= {"json", "safetensors", "jinja", "txt"}
        kept = {name.partition("/")[0] for name in file.namelist()}
        stored = {info.compress_type for info in file.infolist()}
    assert kept == {"capsule.json", "batch.safetensors", "weights", "optimizer", "identity"}
    assert stored == {zipfile.ZIP_STORED}


def test_adapters_are_in_it_and_the_reference_is_the_actor_without_them(words: Words, tmp_path: Path) -> None:
    models = ("actor_rollout_ref.model", "critic.model")
    adapters = [f"{model}.{word}" for model in models for word in ("lora_rank=2", "lora_alpha=3")]
    run(words, *RUN, *adapters, f"trainer.capsule_dir={tmp_path}")
    path = tmp_path / f"step_{STEPS}.capsule"
    with closing(Capsule(path)) as capsule:
        assert capsule.seen.held.models.keys() == {"actor", "critic"}
        names = {name for name, _ in capsule.tensors("weights/actor")}
        trained = {name.rpartition(":")[0] for name, _ in capsule.tensors("optimizer/actor")}
        still = {name for name, norm in capsule.seen.moved["actor"].items() if norm == 0}
    assert trained == {name for name in names if ".lora_" in name} == names - still
    found = findings(path)
    assert {each.verdict for each in found} == {"same"}, "\n".join(table(found))
    assert "ref" in {each.stage for each in found}
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))


def test_a_value_head_beside_adapters_keeps_its_digits(words: Words, tmp_path: Path) -> None:
    """It trains in float32 where the weights are in bf16, which a model's folder is read in."""
    critic = ("critic.model.lora_rank=2", "critic.model.fsdp_config.model_dtype=bf16")
    run(words, *RUN, *critic, f"trainer.capsule_dir={tmp_path}")
    path = tmp_path / f"step_{STEPS}.capsule"
    with closing(Capsule(path)) as capsule:
        kept = dict(capsule.tensors("weights/critic"))
    head, weights = kept["value_head.weight"], kept["backbone.layers.0.self_attn.q_proj.weight"]
    assert (head.dtype, weights.dtype) == (torch.float32, torch.bfloat16)
    assert not torch.equal(head, head.bfloat16().float())
    found = findings(path)
    assert {each.verdict for each in found} == {"same"}, "\n".join(table(found))
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))


# -------------------------------------------------------------------------------------------- what has changed is named


def rewritten(recorded: Path, to: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> Path:
    """The capsule with something else in it."""
    with zipfile.ZipFile(recorded) as old, zipfile.ZipFile(to, "w") as new:
        data, tensors = json.loads(old.read("capsule.json")), load(old.read("batch.safetensors"))
        change(data, tensors)
        for name in old.namelist():
            if name not in ("capsule.json", "batch.safetensors"):
                new.writestr(name, old.read(name))
        new.writestr("capsule.json", json.dumps(data))
        new.writestr("batch.safetensors", save(tensors))
    return to


def nudge(name: str, by: float = 0.5) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], None]:
    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][0, 0] += by

    return change


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("batch.experience.old_logp_BT", {"old_log_prob", "adv", "actor_loss"}),
        ("batch.experience.ref_logp_BT", {"ref", "adv"}),
        ("batch.experience.values_BT", {"values", "adv"}),
        ("batch.rewards_BT", {"adv"}),
        ("batch.returns_BT", {"adv", "critic_loss"}),
    ],
)
def test_a_corrupted_value(recorded: Path, tmp_path: Path, name: str, stages: set[str]) -> None:
    changed = rewritten(recorded, tmp_path / "changed.capsule", nudge(name))
    found = off(findings(changed, "old_log_prob", "ref", "values", "adv", "critic_loss", "actor_loss"))
    assert stages <= found <= stages | {"critic_loss", "actor_loss"}


def test_a_changed_response(recorded: Path, tmp_path: Path) -> None:
    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors["batch.experience.rollout.response_BT"][0, 0] += 1

    found = off(findings(rewritten(recorded, tmp_path / "c.capsule", change), "rollout", "reward", "old_log_prob"))
    assert "rollout" in found and "old_log_prob" in found


def test_another_order_of_rows(recorded: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        data["order"]["actor"][0].reverse()

    assert off(findings(rewritten(recorded, tmp_path / "c.capsule", change), "mini_batches")) == {"mini_batches"}


def test_a_row_that_no_loss_was_computed_of(recorded: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        data["actor"]["trained"][0][0].pop()

    found = findings(rewritten(recorded, tmp_path / "c.capsule", change), "mini_batches")
    assert [each.compared for each in found if each.verdict == "OFF"] == ["actor: rows that losses had"]


def test_other_weights(recorded: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        data["held"]["models"]["actor"]["checksums"]["lm_head.weight"] = "0" * 16

    [actor, *others] = findings(rewritten(recorded, tmp_path / "c.capsule", change), "weights")
    assert actor.verdict == "OFF" and "lm_head.weight" in actor.note
    assert {each.verdict for each in others} == {"same"} and len(others) == 2


def test_another_reward(recorded: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        data["reward_source"] = data["reward_source"].replace("/ 7", "/ 7.01")

    score, length = findings(rewritten(recorded, tmp_path / "c.capsule", change), "reward")
    assert (score.verdict, length.verdict) == ("OFF", "same")


def test_another_clip_of_the_loss(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ppo.policy_loss

    def narrower(*args: Any) -> Any:
        return real(*args[:4], 0.05, 0.05, *args[6:])

    monkeypatch.setattr(ppo, "policy_loss", narrower)
    found = off(findings(recorded))
    assert "actor_loss" in found and found <= {"actor_loss", "actor_gradients", "actor_step"}


def test_another_discount(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ppo.gae
    monkeypatch.setattr(ppo, "gae", lambda r, v, m, gamma, lam, masked: real(r, v, m, gamma * 0.99, lam, masked))
    found = findings(recorded, "reward", "values", "adv", "mini_batches")
    assert {each.compared for each in found if each.verdict == "OFF"} == {"advantages", "returns"}


def test_other_importance_weights(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ppo.importance_weights
    monkeypatch.setattr(ppo, "importance_weights", lambda *args: 1.001 * real(*args))  # type: ignore[operator]
    assert [each.compared for each in findings(recorded, "adv") if each.verdict == "OFF"] == ["weights"]


def test_a_temperature_of_one_side(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Model.__init__

    def hotter(self: Model, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        self.temperature = 1.01

    monkeypatch.setattr(Model, "__init__", hotter)
    assert off(findings(recorded, "rollout", "old_log_prob", "ref", "values")) == {"old_log_prob", "ref"}


def test_a_gradient_that_is_counted_twice(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the limit of the clipping: the loss before it and the first Adam step would not show it."""
    real = Trained.backward
    monkeypatch.setattr(Trained, "backward", lambda self, loss: real(self, 2 * loss))
    found = findings(recorded, "actor_loss", "actor_gradients", "critic_gradients")
    assert {"actor_gradients", "critic_gradients"} <= off(found)


def test_an_optimizer_that_does_not_decay(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trained.optimizer_step

    def plain(self: Trained) -> StepOutcome:
        for group in self.optimizer.param_groups:
            group["betas"] = (0.8, 0.999)
        return real(self)

    monkeypatch.setattr(Trained, "optimizer_step", plain)
    assert "actor_step" in off(findings(recorded, "actor_step", "critic_step"))


# ----------------------------------------------------------------------------------------------- where the weights are


def test_without_optimizer_state_the_first_optimizer_step_is_compared(words: Words, tmp_path: Path) -> None:
    run(words, *RUN, f"trainer.capsule_dir={tmp_path}", "trainer.capsule_weights=model", "trainer.capsule_freq=2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_2.capsule", "step_3.capsule"]  # the last, too
    found = findings(tmp_path / "step_3.capsule")
    verdicts = {each.stage: each.verdict for each in found}
    assert not off(found) and verdicts["actor_step"] == verdicts["critic_step"] == "skipped"
    notes = {each.note for each in found if each.stage in ("actor_loss", "actor_gradients")}
    assert notes == {"only the first of 2 steps: no optimizer state"}


def test_weights_of_a_checkpoint(words: Words, tmp_path: Path) -> None:
    saved = ("trainer.capsule_weights=checkpoint", "trainer.save_freq=1", f"trainer.default_local_dir={tmp_path}/run")
    run(words, *RUN, *saved, f"trainer.capsule_dir={tmp_path}", "trainer.capsule_freq=2")
    path = tmp_path / "step_2.capsule"
    assert path.stat().st_size < 200_000
    found = findings(path)
    assert not off(found), table(found)
    assert {each.stage for each in found if each.verdict == "skipped"} == {"actor_step", "critic_step"}
    wrong = findings(path, "weights", "old_log_prob", checkpoint=tmp_path / "run/global_step_2")
    assert off(wrong) == {"weights", "old_log_prob"}


def test_without_weights_what_needs_none_is_compared(words: Words, tmp_path: Path) -> None:
    run(words, *RUN, f"trainer.capsule_dir={tmp_path}", "trainer.capsule_weights=none")
    first, second = (findings(tmp_path / f"step_{n}.capsule") for n in (1, 2))
    assert not off(first) and {each.stage for each in first if each.verdict == "skipped"} == {
        "actor_step",
        "critic_step",
    }
    same = {each.stage for each in second if each.verdict == "same"}
    assert same == {"reward", "adv", "mini_batches"} and not off(second)
    assert replay.main([str(tmp_path / "step_2.capsule"), "--stage", "reward"]) == 0
    assert replay.main([str(tmp_path / "step_2.capsule"), "--stage", "values"]) == 1  # nothing was compared


# ----------------------------------------------------------------------------------------------- the file, the command


@pytest.fixture
def cut(recorded: Path, tmp_path: Path) -> Path:
    path = tmp_path / "cut.capsule"
    path.write_bytes(recorded.read_bytes()[:-1000])
    return path


def test_what_is_no_capsule(cut: Path, recorded: Path, tmp_path: Path) -> None:
    for path, why in ((cut, "not a zip file"), (tmp_path / "none.capsule", "No such file")):
        with pytest.raises(CapsuleError, match=why) as caught:
            findings(path)
        assert str(path) in caught.value.message and caught.value.hint


def test_a_flipped_bit_is_found_in_reading(recorded: Path, tmp_path: Path) -> None:
    raw = bytearray(recorded.read_bytes())
    with zipfile.ZipFile(recorded) as file:
        entry = file.getinfo("batch.safetensors")
    raw[entry.header_offset + entry.file_size // 2] ^= 1
    (tmp_path / "flipped.capsule").write_bytes(raw)
    with pytest.raises(CapsuleError, match=r"batch\.safetensors"):
        Capsule(tmp_path / "flipped.capsule")


def test_another_format_or_field(recorded: Path, tmp_path: Path) -> None:
    newer = rewritten(recorded, tmp_path / "a.capsule", lambda data, _: data.update(format=capsules.FORMAT + 1))
    with pytest.raises(CapsuleError, match="another format"):
        Capsule(newer)
    strange = rewritten(recorded, tmp_path / "b.capsule", lambda data, _: data["config"]["trainer"].update(warp=9))
    with pytest.raises(CapsuleError, match=r"config\.trainer\.warp is not known"):
        Capsule(strange)


def test_the_command(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(recorded), "--stage", "reward", "--stage", "adv"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["stage", "compared", "with", "the", "run's", "max", "difference", "limit", "verdict"]
    assert [line.split()[0] for line in lines[1:]] == ["reward"] * 2 + ["adv"] * 6 and not shown.err

    changed = rewritten(recorded, tmp_path / "c.capsule", nudge("batch.rewards_BT"))
    assert replay.main([str(changed), "--stage", "adv", "--json"]) == 1
    shown = capsys.readouterr()
    told = json.loads(shown.out)["findings"]
    assert [each["verdict"] for each in told if each["compared"] == "rewards"] == ["OFF"]
    assert shown.err.startswith("error: the replay differs from the run in adv\nhint: ")

    assert replay.main([str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("error: cannot read the capsule")


def test_help_loads_no_torch() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainer.replay", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--checkpoint" in said.stdout and "torch" not in said.stderr


# --------------------------------------------------------------------------------------------------------------- drift


def test_a_run_that_drifts_stops_before_its_checkpoint_and_leaves_its_capsule(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an engine that has lost its weights."""
    from trainer.rollout.hf import HfEngine

    real = HfEngine.generate

    def off_by_two(self: HfEngine, *args: Any) -> Rollout:
        rollout = real(self, *args)
        return dataclasses.replace(rollout, logp_BT=rollout.logp_BT - 2.0 * rollout.mask_BT)

    monkeypatch.setattr(HfEngine, "generate", off_by_two)
    kept = (f"trainer.capsule_dir={tmp_path}", f"trainer.default_local_dir={tmp_path}/run", "trainer.save_freq=1")
    with pytest.raises(DriftError, match=r"step 1: .* 2 nats per token"):
        run(words, *kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1.capsule"]

    [line] = run(words, *kept, "trainer.rollout_drift_action=warn")
    assert line["training/rollout_logp_diff_mean"] == pytest.approx(2.0, abs=1e-4)
    assert (tmp_path / "run/global_step_1").is_dir()
