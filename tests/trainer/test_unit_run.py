"""The driver's loop over ranks that only pretend: when it validates, saves, resumes, and in which order it asks."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import Words
from trainer import checkpoints, main_ppo, phases, ppo
from trainer.config import load
from trainer.config.chosen import CPU, Choice, choose
from trainer.config.schema import Config, ModelConfig
from trainer.data import reading
from trainer.data.reading import read_data
from trainer.digests import Found, of_files
from trainer.errors import CheckpointError, DriftError, FolderInUse, NotFinite, WorkerDied
from trainer.group import WorkerGroup
from trainer.interfaces import Sampling
from trainer.leaving import Leaving
from trainer.memory import GIB, Memory
from trainer.records import LogProbs, Metrics, MiniBatch, Prompts, Rollout, Scores, UpdateReport
from trainer.roles import Roles
from trainer.run import Observer, train
from trainer.spec import RunSpec
from trainer.teams import Seat
from trainer.tokenizer import load_tokenizer
from trainer.tracking import Tracker


class Pretender:
    """One rank without models: every answer has three tokens, and a score that tells the prompt."""

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        shape = (len(prompts), 3)
        return Rollout(prompts, torch.full(shape, 5), torch.ones(shape, dtype=torch.int64), torch.full(shape, -1.0))

    def score(self, rollout: Rollout) -> Scores:
        return Scores((rollout.prompts.uid_B % 5).float(), {})

    def log_probs(self, rollout: Rollout, passes: tuple[torch.Tensor, ...]) -> LogProbs:
        return LogProbs(rollout.logp_BT, -rollout.logp_BT)

    def ref_log_probs(self, rollout: Rollout, passes: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return rollout.logp_BT - 0.5

    def values(self, rollout: Rollout, passes: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.zeros(rollout.mask_BT.shape)

    def update_actor(self, shares: Sequence[MiniBatch]) -> UpdateReport:
        return UpdateReport(tuple({"grad_norm": 1.0} for _ in shares), (), 0.1, 0)

    update_critic = update_actor

    def sync_weights(self) -> None: ...

    def save(self, folder: str) -> None:
        (Path(folder) / "actor").write_text("weights")

    def load(self, folder: str) -> None:
        assert (Path(folder) / "actor").read_text() == "weights"

    def digests(self, folder: str, names: Sequence[str]) -> Found:
        return of_files(Path(folder), names)


class Pool:
    """Ranks in this process; `phases` is what they were asked, in order."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self.ranks = ranks
        self.world_size = len(ranks)
        self.phases: list[str] = []
        self.specs: list[RunSpec] = []
        self._calls = 0

    def take_memory(self) -> Memory | None:
        """As many GiB as there were calls, over all phases so far."""
        taken, self._calls = self._calls, 0
        return Memory(len(self.phases) * GIB, 2 * len(self.phases) * GIB, 3 * GIB) if taken else None

    def build(self, spec: RunSpec) -> tuple[Choice, ...]:
        self.specs.append(spec)
        return choose(spec.config, {}, CPU)

    def all(self, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.phases.append(phase)
        self._calls += 1
        return [getattr(rank, phase)(*each) for rank, each in zip(self.ranks, args, strict=True)]


class Log:
    """A tracker's back-end that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, Metrics]] = []

    def log(self, step: int, metrics: Metrics) -> None:
        self.lines.append((step, dict(metrics)))

    def close(self) -> None: ...

    def with_metric(self, beginning: str) -> list[int]:
        return [step for step, metrics in self.lines if any(name.startswith(beginning) for name in metrics)]


@dataclasses.dataclass
class Ran:
    pool: Pool
    log: Log
    last: Metrics
    seen: list[tuple[str, Any]]

    @property
    def saved(self) -> list[str]:
        return [what.name for event, what in self.seen if event == "saved"]


class Watcher(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        self.seen.append(("started", progress.step))

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        self.seen.append(("stepped", result.batch.experience.rollout.prompts.uid_B.tolist()))

    def saved(self, folder: Path) -> None:
        self.seen.append(("saved", folder))


Go = Callable[..., Ran]


@lru_cache
def tokenizer_of(path: str) -> Any:
    return load_tokenizer(ModelConfig(path=path))


@pytest.fixture
def go(words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """`go("key=value", ...)`: a run over pretending ranks, in `tmp_path`. All runs have one tokenizer, read once."""
    monkeypatch.setattr(reading, "load_tokenizer", lambda model: tokenizer_of(model.tokenizer_path or model.path))

    def run(*changes: str, ranks: Sequence[Any] = (Pretender(), Pretender())) -> Ran:
        sizes = ("trainer.n_gpus_per_node=2", f"trainer.default_local_dir={tmp_path / 'run'}")
        config = load(words(*sizes, *changes)).config
        pool, log, watcher = Pool(ranks), Log(), Watcher()
        last = train(config, pool, read_data(config), Tracker([log]), watcher)
        return Ran(pool, log, last, watcher.seen)

    return run


def test_when_it_validates_and_saves(go: Go, tmp_path: Path) -> None:
    ran = go(
        "trainer.total_training_steps=5",
        "trainer.val_before_train=True",
        "trainer.test_freq=2",
        "trainer.save_freq=3",
    )
    assert [step for step, _ in ran.log.lines] == [0, 1, 2, 3, 4, 5]
    assert ran.log.with_metric("val-core/") == [0, 2, 4, 5]  # every second, and at the end
    assert ran.saved == ["global_step_3", "global_step_5"]
    assert (tmp_path / "run/latest_checkpointed_iteration.txt").read_text() == "5"
    assert ran.log.with_metric("timing_s/save_checkpoint") == [3, 5]
    assert ran.last == ran.log.lines[-1][1]


def test_never_means_not_at_the_end_either(go: Go) -> None:
    ran = go("trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.save_freq=-1")
    assert ran.log.with_metric("val-core/") == [] and ran.saved == []


def test_epochs_make_the_steps_and_see_every_row_once(go: Go) -> None:
    ran = go("trainer.total_training_steps=null", "trainer.total_epochs=2")
    assert ran.pool.specs[0].total_steps == 6  # 24 rows by 8, twice
    assert [metrics["training/epoch"] for _, metrics in ran.log.lines][::3] == [0, 1]
    trained = [uid for event, uids in ran.seen if event == "stepped" for uid in uids]
    assert sorted(trained) == list(range(48))


def test_workers_are_told_paths_as_the_driver_means_them(
    go: Go, tmp_path: Path, tiny_model: str, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs is another working folder on a cluster that was running before."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "model").symlink_to(tiny_model)
    (here / "data").symlink_to(parquet)
    (here / "reward.py").write_text("def compute_score(**_): return 0.0")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(here))
    ran = go(
        *("actor_rollout_ref.model.path=model", "actor_rollout_ref.model.tokenizer_path='~/model'"),
        *("critic.model.path=./model", "custom_reward_function.path=reward.py", "trainer.default_local_dir=out"),
        *("data.train_files=data/train.parquet", "data.val_files=[data/test.parquet]"),
        *("trainer.rollout_data_dir=a", "trainer.validation_data_dir='~/b'", "trainer.capsule_freq=99"),
    )
    [config] = {id(spec.config): spec.config for spec in ran.pool.specs}.values()
    part, trainer = config.actor_rollout_ref, config.trainer
    assert part.model.path == part.model.tokenizer_path == config.critic.model.path == str(here / "model")
    assert config.custom_reward_function.path == str(here / "reward.py")
    assert config.data.train_files + config.data.val_files == [
        str(here / "data/train.parquet"),
        str(here / "data/test.parquet"),
    ]
    assert (trainer.default_local_dir, trainer.rollout_data_dir) == (str(here / "out"), str(here / "a"))
    assert (trainer.validation_data_dir, trainer.capsule_dir) == (str(here / "b"), None)
    assert config.global_profiler.save_path == str(here / "outputs/profile")


def test_order_of_the_phases_in_a_step(go: Go) -> None:
    ran = go("algorithm.use_kl_in_reward=True")
    assert ran.pool.phases == [
        *("generate", "score", "log_probs", "ref_log_probs", "values"),
        *("update_critic", "update_actor", "sync_weights"),
    ]


def test_memory_of_each_phase_is_logged_under_its_name(go: Go) -> None:
    """Each reading belongs to the phase in which it was taken; what came before the step to none."""
    changes = ("trainer.val_before_train=True", "trainer.test_freq=1", "trainer.save_freq=1")
    last = go(*changes, "algorithm.use_kl_in_reward=True").last
    found = {name.removeprefix("memory_gb/"): value for name, value in last.items() if name.startswith("memory_gb/")}
    before = 2  # generate and score of the validation before training
    order = ("gen", "reward", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights")
    assert found == {name: before + number for number, name in enumerate(order, 1)} | {
        "testing": before + 10,
        "save_checkpoint": before + 12,  # `save`, and its digests
    }
    assert last["perf/max_memory_allocated_gb"] == before + 12
    assert last["perf/max_memory_reserved_gb"] == 2 * (before + 12)
    assert last["perf/cpu_memory_used_gb"] == 3


def test_the_phases_of_a_step_add_up_to_it(go: Go, tmp_path: Path) -> None:
    ran = go("trainer.save_freq=1", "trainer.test_freq=1", f"trainer.rollout_data_dir={tmp_path / 'samples'}")
    seconds = {name: value for name, value in ran.last.items() if name.startswith("timing_s/")}
    assert {"timing_s/data", "timing_s/metrics", "timing_s/other"} < set(seconds)
    assert seconds["timing_s/other"] >= 0
    assert sum(seconds.values()) == pytest.approx(2 * seconds["timing_s/step"])


def test_phases_side_by_side_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given phases from 1 to 4 and from 2 to 6 of a step from 0 to 10, 5 s are in neither."""
    now = iter([0.0, 1.0, 2.0, 4.0, 6.0, 10.0])
    monkeypatch.setattr(phases.time, "perf_counter", lambda: next(now))
    clock = phases.Phases(lambda: None)
    with clock.step():
        critic, actor = clock("update_critic"), clock("update_actor")
        critic.__enter__()
        actor.__enter__()
        critic.__exit__(None, None, None)
        actor.__exit__(None, None, None)
    assert clock.seconds == {"update_critic": 3.0, "update_actor": 4.0, "step": 10.0, "other": 5.0}


def test_no_models_are_asked_that_the_estimator_does_without(go: Go) -> None:
    ran = go("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2")
    assert not {"ref_log_probs", "values", "update_critic"} & set(ran.pool.phases)
    assert not [name for name in ran.last if name.startswith(("critic/vf", "critic/lr", "critic/values"))]


def test_critic_warm_up(go: Go) -> None:
    ran = go("trainer.total_training_steps=4", "trainer.critic_warmup=2")
    updates = [phase for phase in ran.pool.phases if phase.startswith(("update", "sync"))]
    # verl's condition, critic_warmup <= step: with 2 the actor is first updated in step 2
    assert updates == ["update_critic"] + ["update_critic", "update_actor", "sync_weights"] * 3
    assert ran.log.with_metric("actor/lr") == [2, 3, 4]


def test_val_only_trains_nothing(go: Go) -> None:
    ran = go("trainer.val_only=True", "actor_rollout_ref.rollout.val_kwargs.n=2", "data.val_batch_size=4")
    assert set(ran.pool.phases) == {"generate", "score"} and len(ran.pool.phases) == 2 * 2  # 6 rows by 4
    mean = sum(uid % 5 for uid in range(6)) / 6
    assert ran.last["val-core/openai/gsm8k/reward/mean@2"] == pytest.approx(mean)
    assert ran.last["val/test_score/openai/gsm8k"] == pytest.approx(mean)


def test_observer_sees_the_run_in_order(go: Go) -> None:
    ran = go("trainer.total_training_steps=2", "trainer.save_freq=1")
    assert [event for event, _ in ran.seen] == ["started", "stepped", "saved", "stepped", "saved"]


def test_samples_are_written(go: Go, tmp_path: Path) -> None:
    go(f"trainer.rollout_data_dir={tmp_path / 'samples'}")
    lines = [json.loads(line) for line in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    assert len(lines) == 8 and len({line["response"] for line in lines}) == 1
    assert [line["reward"] for line in lines] == [float(i % 5) for i in range(8)]
    assert all(line["row"].endswith("train.parquet") and line["step"] == 1 for line in lines)


class Judge(Pretender):
    """Gives one number more to some responses, and none of them to the others."""

    def score(self, rollout: Rollout) -> Scores:
        extra = torch.tensor([1.5 if uid % 2 else torch.nan for uid in rollout.prompts.uid_B.tolist()])
        return Scores((rollout.prompts.uid_B % 5).float(), {"format": extra})


def test_samples_have_score_and_reward_and_what_else_is_known(go: Go, tmp_path: Path) -> None:
    folders = (f"trainer.rollout_data_dir={tmp_path / 'samples'}", f"trainer.validation_data_dir={tmp_path / 'val'}")
    penalty = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.1", "trainer.val_before_train=True")
    go(*folders, *penalty, ranks=(Judge(), Judge()))
    lines = [json.loads(line) for line in (tmp_path / "samples/1.jsonl").read_text("utf-8").splitlines()]
    for uid, line in enumerate(lines):
        assert line["score"] == uid % 5
        assert line["reward"] == pytest.approx(uid % 5 - 0.1 * 3 * 0.5)  # three tokens, 0.5 nats from the reference
        assert line.get("format") == (1.5 if uid % 2 else None)
    [first, *_] = [json.loads(line) for line in (tmp_path / "val/0.jsonl").read_text("utf-8").splitlines()]
    assert first["score"] == 0 and "reward" not in first and first["step"] == 0


class Drifting(Pretender):
    """Its log-probs are not at all those of its engine."""

    def log_probs(self, rollout: Rollout, passes: tuple[torch.Tensor, ...]) -> LogProbs:
        return LogProbs(rollout.logp_BT - 5, -rollout.logp_BT)


def test_samples_of_a_step_that_stops_the_run_are_written(go: Go, tmp_path: Path) -> None:
    """They are what one looks at to see why."""
    with pytest.raises(DriftError):
        go(f"trainer.rollout_data_dir={tmp_path / 'samples'}", ranks=(Drifting(), Drifting()))
    assert len((tmp_path / "samples/1.jsonl").read_text("utf-8").splitlines()) == 8


ADAPTIVE = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=10")


def test_resumed_run_has_the_coefficient_and_the_rows_of_an_uninterrupted_one(go: Go, tmp_path: Path) -> None:
    whole = go(*ADAPTIVE, "trainer.total_training_steps=5", f"trainer.default_local_dir={tmp_path / 'whole'}")
    go(*ADAPTIVE, "trainer.total_training_steps=2", "trainer.save_freq=2")
    resumed = go(*ADAPTIVE, "trainer.total_training_steps=5")

    assert resumed.seen[0] == ("started", 2) and "load" in resumed.pool.phases
    assert resumed.seen[1:] == whole.seen[3:]
    name = "actor/reward_kl_penalty_coeff"
    coefficients = [metrics[name] for _, metrics in whole.log.lines]
    assert [metrics[name] for _, metrics in resumed.log.lines] == coefficients[2:]
    assert len(set(coefficients)) == 5


def test_a_fixed_coefficient_is_the_commands_own_after_resuming(go: Go) -> None:
    in_reward = ("algorithm.use_kl_in_reward=True", "trainer.save_freq=1")
    go(*in_reward, "trainer.total_training_steps=1", "algorithm.kl_ctrl.kl_coef=0.001")
    resumed = go(*in_reward, "trainer.total_training_steps=2", "algorithm.kl_ctrl.kl_coef=0.05")
    [(_, metrics)] = resumed.log.lines
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.05


def test_a_run_that_is_done_does_nothing_more(go: Go) -> None:
    go("trainer.total_training_steps=2", "trainer.save_freq=1")
    again = go("trainer.total_training_steps=2", "trainer.save_freq=1")
    assert again.pool.phases == ["digests", "load"] and again.log.lines == []


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that comes so far as to start Ray fails."""

    def start(_config: Config) -> None:
        raise WorkerDied("Ray was started", hint="")

    monkeypatch.setattr("trainer.launch.start_ray", start)
    monkeypatch.setattr(main_ppo, "running_cluster", lambda: "another")  # this process' environment stays as it is


@pytest.mark.usefixtures("no_ray")
def test_that_nothing_is_left_to_do_is_known_before_ray_starts(
    go: Go, words: Words, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where there is something to validate with: the run that is done has done so."""
    go("trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.resume_mode=disable")
    (tmp_path / "run/metrics.jsonl").write_text("{}")

    def again(*changes: str) -> tuple[int, str]:
        sizes = ("trainer.n_gpus_per_node=2", f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.save_freq=1")
        capsys.readouterr()
        code = main_ppo.main(words(*sizes, "trainer.val_before_train=True", "trainer.logger=file", *changes))
        return code, capsys.readouterr().err

    code, said = again("trainer.total_training_steps=2")
    assert code == 0 and [line for line in said.splitlines() if "debugger" not in line][-5:] == [
        f"note: results go to {tmp_path}/run/metrics.jsonl",
        f"note: checkpoints go to {tmp_path}/run",
        "note: nothing left to do: step 2 of 2 is done; trainer.val_only=True validates it",
        f"note: results in {tmp_path}/run/metrics.jsonl",
        f"note: checkpoints in {tmp_path}/run, the newest is global_step_2",
    ]
    asked_for = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/run/global_step_2")
    assert again("trainer.total_training_steps=1", *asked_for)[0] == 0
    for changes in (
        ("trainer.total_training_steps=3",),
        ("trainer.total_training_steps=2", "trainer.resume_mode=disable"),
        ("trainer.total_training_steps=2", "trainer.val_only=True"),
    ):
        code, said = again(*changes)
        assert code == 1 and "Ray was started" in said and "nothing left" not in said, changes
    # what is damaged is the ranks' to look at
    (tmp_path / "run/global_step_2/actor").write_text("weighty")
    assert "Ray was started" in again("trainer.total_training_steps=2")[1]


def test_resume_modes(go: Go, tmp_path: Path) -> None:
    go("trainer.total_training_steps=3", "trainer.save_freq=1")
    folder = tmp_path / "run"

    def start(*changes: str) -> int:
        step: int = go("trainer.total_training_steps=4", *changes).seen[0][1]
        return step

    assert start() == 3
    assert start("trainer.resume_mode=disable") == 0
    assert start("trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder / 'global_step_2'}") == 2
    with pytest.raises(CheckpointError, match=r"no state\.json"):
        start("trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}")


def test_what_is_not_whole_is_not_resumed_from(go: Go, tmp_path: Path) -> None:
    """Given a half-written folder, a newer one without its last file, and a name that leads nowhere."""
    go("trainer.total_training_steps=1", "trainer.save_freq=1")
    folder = tmp_path / "run"
    (folder / "global_step_2.partial").mkdir()
    (folder / "global_step_3").mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    ran = go("trainer.total_training_steps=2", "trainer.save_freq=1")
    assert ran.seen[0] == ("started", 1) and ran.saved == ["global_step_2"]
    assert not (folder / "global_step_2.partial").exists()


def test_unreadable_state_names_the_file(go: Go, tmp_path: Path) -> None:
    go("trainer.save_freq=1")
    (tmp_path / "run/global_step_1/state.json").write_text('{"step": 1')
    with pytest.raises(CheckpointError, match=r"global_step_1/state\.json") as caught:
        go("trainer.total_training_steps=2")
    assert "resume" in caught.value.hint


class NoSpace(Pretender):
    def save(self, folder: str) -> None:
        (Path(folder) / "actor").write_text("wei")
        raise OSError(28, "No space left on device")


def test_a_failed_save_leaves_the_earlier_one(go: Go, tmp_path: Path) -> None:
    go("trainer.save_freq=1")
    with pytest.raises(CheckpointError, match=r"global_step_2: No space left"):
        go("trainer.total_training_steps=2", "trainer.save_freq=1", ranks=(Pretender(), NoSpace()))
    assert [path.name for path in checkpoints.complete(tmp_path / "run")] == ["global_step_1"]
    assert not list((tmp_path / "run").glob("*.partial"))
    assert go("trainer.total_training_steps=2").seen[0] == ("started", 1)


class Meanwhile(Pretender):
    """While it writes a checkpoint, somebody starts the same command once more."""

    def __init__(self, again: Callable[[], object]) -> None:
        self.again, self.said = again, ""

    def save(self, folder: str) -> None:
        super().save(folder)
        with pytest.raises(FolderInUse) as caught:
            self.again()
        self.said = caught.value.message
        assert (Path(folder) / "actor").exists()


def test_the_same_command_twice_at_once(go: Go, tmp_path: Path) -> None:
    rank = Meanwhile(lambda: go("trainer.save_freq=1"))
    assert go("trainer.save_freq=1", ranks=(Pretender(), rank)).saved == ["global_step_1"]
    assert f"another run writes to {tmp_path / 'run'}: process {os.getpid()} on" in rank.said
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "global_step_1",
        "latest_checkpointed_iteration.txt",
    ]


@pytest.mark.parametrize(("keep", "left"), [("1", [4]), ("2", [3, 4]), ("9", [1, 2, 3, 4]), ("null", [1, 2, 3, 4])])
def test_old_checkpoints_are_dropped(go: Go, tmp_path: Path, keep: str, left: list[int]) -> None:
    go("trainer.total_training_steps=4", "trainer.save_freq=1", f"trainer.max_actor_ckpt_to_keep={keep}")
    assert [path.name for path in checkpoints.complete(tmp_path / "run")] == [f"global_step_{n}" for n in left]


def test_a_new_run_does_not_drop_its_own_checkpoint_for_an_older_runs(go: Go, tmp_path: Path) -> None:
    go("trainer.total_training_steps=3", "trainer.save_freq=3")
    go("trainer.resume_mode=disable", "trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=1")
    assert [path.name for path in checkpoints.complete(tmp_path / "run")] == ["global_step_1"]


# --------------------------------------------------------------------------- the same loop over one rank's real models


KL = {
    "no KL": (),
    "KL in the reward": ("algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl"),
    "KL loss": ("actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_type=mse"),
}
REWARD = "def compute_score(solution_str, **row):\n    return {'score': float(len(set(solution_str))), 'length': 2.0}\n"


class OneRank(Pool):
    """This process as the only rank, with real models."""

    def __init__(self) -> None:
        super().__init__([None])

    def build(self, spec: RunSpec) -> tuple[Choice, ...]:
        self.ranks = [Roles(spec, Seat.alone())]
        return self.ranks[0].chosen


@pytest.mark.parametrize("estimator", ["gae", "grpo", "rloo", "reinforce_plus_plus"])
@pytest.mark.parametrize("kl", KL)
def test_every_estimator_trains_with_every_kl(
    words: Words, mesh: object, tmp_path: Path, estimator: str, kl: str
) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    changes = (
        f"algorithm.adv_estimator={estimator}",
        *KL[kl],
        "actor_rollout_ref.rollout.n=2",
        "trainer.total_training_steps=2",
        f"custom_reward_function.path={tmp_path / 'reward.py'}",
    )
    config: Config = load(words(*changes)).config
    pool, log = OneRank(), Log()
    train(config, pool, read_data(config), Tracker([log]))
    [first, second] = [metrics for _, metrics in log.lines]

    roles = pool.ranks[0]
    assert roles.checksums("engine") == roles.checksums("actor")
    assert (roles.critic is not None) == (estimator == "gae")
    assert (roles.reference is not None) == (kl != "no KL")
    assert first["critic/length/mean"] == 2.0
    assert first["actor/grad_norm"] > 0 and first["actor/skipped_steps"] == 0
    assert first["training/rollout_probs_diff_max"] < 1e-5 > second["training/rollout_probs_diff_max"]
    if kl == "KL in the reward":
        assert abs(first["actor/reward_kl_penalty"]) < 1e-6 < second["actor/reward_kl_penalty"]
    if kl == "KL loss":
        assert second["actor/kl_loss"] > 0
    if kl != "no KL":  # the reference is still what the actor was
        assert roles.checksums("reference") != roles.checksums("actor")


class Skipping(Pretender):
    """A gradient of its critic overflows."""

    def update_critic(self, shares: Sequence[MiniBatch]) -> UpdateReport:
        return UpdateReport(tuple({"grad_norm": 1.0} for _ in shares), (), 0.1, 1)


def test_optimizer_steps_that_are_left_out_are_said(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Tracker, "note", lambda _self, text: said.append(text))
    go(ranks=(Skipping(), Skipping()))
    left_out = "1 of 2 optimizer steps of the critic were skipped: their gradient was not finite"
    assert said == [f"step 1: {left_out}"]


class Overflowing(Pretender):
    """No gradient of its actor is ever finite."""

    def update_actor(self, shares: Sequence[MiniBatch]) -> UpdateReport:
        return UpdateReport(tuple({"grad_norm": math.inf} for _ in shares), (), 0.1, len(shares))


def test_a_run_that_has_trained_nothing_fails(go: Go) -> None:
    said = "the actor is as it was when this run began: all 4 of its optimizer steps were skipped"
    with pytest.raises(NotFinite, match=said) as found:
        go("trainer.total_training_steps=2", ranks=(Overflowing(), Overflowing()))
    assert found.value.exit_code == 1 and "diverged" in found.value.hint


class Ended(Pretender):
    """A batch system ends the run in its second step."""

    def score(self, rollout: Rollout) -> Scores:
        if rollout.prompts.uid_B.min() >= 8:
            signal.raise_signal(signal.SIGTERM)
        return super().score(rollout)


def test_the_step_in_progress_is_saved_in_its_grace_period(words: Words, tmp_path: Path) -> None:
    changes = (f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.total_training_steps=3", "trainer.test_freq=2")
    config = load(words(*changes)).config
    pool, log, leaving = Pool((Ended(),)), Log(), Leaving(60)
    before = signal.getsignal(signal.SIGTERM)
    leaving.listen()
    try:
        with pytest.raises(KeyboardInterrupt):
            train(config, pool, read_data(config), Tracker([log]), leaving=leaving)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [step for step, _ in log.lines] == [1, 2]
    assert log.with_metric("val-core/") == []  # there is no time for it
    assert [path.name for path in checkpoints.complete(tmp_path / "run")] == ["global_step_2"]
    assert not (tmp_path / "run/run.lock").exists()


def test_what_takes_long_is_told_before_it_begins(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    generate = Pretender.generate
    monkeypatch.setattr(Tracker, "note", lambda _self, text: said.append(text))
    phase, shown = Tracker.phase, list[str]()
    monkeypatch.setattr(Tracker, "phase", lambda self, *given: (shown.append(given[0]), phase(self, *given))[1])
    build = Pool.build
    monkeypatch.setattr(Pool, "build", lambda self, spec: (said.append("build"), build(self, spec))[1])
    monkeypatch.setattr(
        Pretender, "generate", lambda self, *given: (said.append("generate"), generate(self, *given))[1]
    )
    go(
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=True",
        *("actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.tensor_model_parallel_size=1"),
        ranks=(Pretender(),) * 2,
    )
    assert ["SGLang" in said[0], said[1], "compiles layers (actor)" in said[2], said[3]] == [
        True,
        "build",
        True,
        "generate",
    ]
    assert shown[-1] == "first step, compiling layers"
