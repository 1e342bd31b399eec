"""How often `devkit smoke --tiny` fails where nothing is wrong: seeds beside settings, and what each failure said.

    python benchmarks/false_alarms.py [--seeds 40] [--from 0] [--at-once 1] [--settings default megatron ...]

Each is a whole run of the command, in a folder of its own; its floor is none. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

ACTOR, CRITIC = "actor_rollout_ref.actor", "critic"
OFFLOADED = ("param_offload", "optimizer_offload")
SETTINGS = {
    "default": (),
    "grpo-kl-loss": (
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.n=4",
        f"{ACTOR}.use_kl_loss=true",
        f"{ACTOR}.kl_loss_coef=0.01",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
    ),
    "dynamic-two-epochs": (
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{CRITIC}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_epochs=2",
        f"{ACTOR}.shuffle=true",
        "actor_rollout_ref.model.use_remove_padding=true",
    ),
    "megatron": (f"{ACTOR}.strategy=megatron", f"{CRITIC}.strategy=megatron"),
    "offloaded": tuple(
        f"{part}.{kind}=true" for part in (f"{ACTOR}.fsdp_config", "critic.model.fsdp_config") for kind in OFFLOADED
    ),
    "teams": (
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=3",
        "trainer.device_mapping.actor=[1,2]",
        "trainer.device_mapping.rollout=[0]",
    ),
}


@dataclass(frozen=True)
class Outcome:
    """One run of the command."""

    setting: str
    seed: int
    seconds: float
    failed: tuple[str, ...]  # a check: what it said; empty where all passed


def run(setting: str, seed: int) -> Outcome:
    command = [sys.executable, "-m", "devkit", "smoke", "--tiny", "--json", "--seed", str(seed), *SETTINGS[setting]]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - start
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        return Outcome(setting, seed, seconds, (f"exit code {done.returncode}: {done.stderr[-500:]}",))
    failed = [f"{each['name']}: {each['detail']}" for each in checks if each["status"] == "fail"]
    if done.returncode and not failed:
        failed.append(f"exit code {done.returncode}")
    return Outcome(setting, seed, seconds, tuple(failed))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args(argv)
    wanted = [(name, seed) for seed in range(options.first, options.first + options.seeds) for name in options.settings]
    found: dict[str, list[Outcome]] = {name: [] for name in options.settings}
    with ThreadPoolExecutor(options.at_once) as pool:
        for outcome in pool.map(lambda each: run(*each), wanted):
            found[outcome.setting].append(outcome)
            for said in outcome.failed:
                print(f"{outcome.setting}, seed {outcome.seed}: {said}", flush=True)
    print(f"{'setting':<22}{'runs':>6}{'false alarms':>14}{'median s':>10}")
    for name, outcomes in found.items():
        false = sum(bool(each.failed) for each in outcomes)
        middle = statistics.median(each.seconds for each in outcomes)
        print(f"{name:<22}{len(outcomes):>6}{false:>14}{middle:>10.1f}")
    return int(any(each.failed for outcomes in found.values() for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
