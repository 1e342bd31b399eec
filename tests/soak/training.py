"""Rounds with the trainer itself: a run that is killed and resumed, and two smoke tests at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.soak.world import Tally, World
from tests.trainer.runs import metrics_of

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nan_hunt.py"
STEPS = 4
WORDS = (
    "data.train_batch_size=4",  # the spoiled row is behind those of four steps
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "critic.ppo_micro_batch_size_per_gpu=2",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
)
RUN_SECONDS = 600.0


def resume_after_a_kill(world: World) -> Tally:
    """Killed with all its processes after the second checkpoint; the resumed run logs what a whole one does."""
    tally, folder = Tally(), world.folder / f"train-{os.urandom(3).hex()}"
    # torch makes this wherever an optimizer is, by default in /tmp, and leaves it there; a smoke test must not.
    environ = {**_alone(world), "TORCHINDUCTOR_CACHE_DIR": str(world.folder / "torchinductor")}
    subprocess.run([sys.executable, str(EXAMPLE), str(folder)], env=environ, check=True)
    whole, killed = folder / "whole", folder / "killed"
    tally.expect(_ended(_train(folder, whole, environ)) == 0, "the whole run did not end well")
    run = _train(folder, killed, environ)
    end = time.monotonic() + RUN_SECONDS
    while not (killed / "global_step_2").is_dir() and run.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    _kill(run)
    saved = {path.name for path in killed.glob("global_step_*")}
    tally.expect("global_step_2" in saved and f"global_step_{STEPS}" not in saved, f"killed with {sorted(saved)}")
    tally.expect(_ended(_train(folder, killed, environ)) == 0, "the resumed run did not end well")
    if not tally.wrong:
        wanted, found = metrics_of(whole), metrics_of(killed)
        tally.expect(sorted(found) == sorted(wanted), f"steps {sorted(found)}")
        tally.expect(found[STEPS] == wanted[STEPS], f"step {STEPS} differs")
    return tally


def _train(folder: Path, to: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    command = ["bash", str(folder / "train.sh"), *WORDS, f"trainer.default_local_dir={to}"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _ended(run: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None if it had to be killed."""
    try:
        return run.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        _kill(run)
        return None


def _kill(run: subprocess.Popen[bytes]) -> None:
    if run.poll() is not None:
        return
    for each in [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]:
        try:
            os.kill(each.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run.wait()


def two_smokes(world: World) -> Tally:
    """Side by side, as two users of one machine do it."""
    tally = Tally()
    command = [sys.executable, "-m", "devkit", "smoke", "--tiny", "--json"]
    runs = [
        subprocess.Popen(command, env=_alone(world), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for run in runs:
        _, said = run.communicate(timeout=RUN_SECONDS)
        tally.expect(run.returncode == 0, f"exit {run.returncode}: {said[-300:]}")
    return tally


def _alone(world: World) -> dict[str, str]:
    """Not in the cluster of the other rounds: each of them brings its own."""
    names = ("RAY_ADDRESS", "RAY_TMPDIR", "DEVKIT_HOME")
    kept = {name: value for name, value in world.cluster.environ.items() if name not in names}
    python = str(Path(sys.executable).parent)
    return {**kept, "PATH": f"{python}{os.pathsep}{kept['PATH']}"}
