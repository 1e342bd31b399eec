"""How often `devkit smoke --tiny` fails where nothing is wrong: seeds beside settings, and what each failure said.

    python benchmarks/false_alarms.py [--seeds 0-39] [--parallel 1] [--settings default grpo ...]

Each is a whole run of the command, with a folder of its own for its files and for those of its Ray, whose ports are
free ones anyway; one run takes about two cores. A line of JSON for each run as it ends (`seed`, `setting`, `exit_code`,
`failed`, `seconds`), and a table on stderr. The floor is none: exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ACTOR, CRITIC, ROLLOUT = "actor_rollout_ref.actor", "critic", "actor_rollout_ref.rollout"
OFFLOADED = ("param_offload", "optimizer_offload", "grad_offload")
GRPO = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4", "algorithm.use_kl_in_reward=False")
# Packing is on by default, and off in "padded".
SETTINGS = {
    "default": (),
    "grpo": (*GRPO, f"{ACTOR}.use_kl_loss=False"),
    "kl-loss": (
        *GRPO,
        f"{ACTOR}.use_kl_loss=True",
        f"{ACTOR}.kl_loss_coef=0.01",
        f"{ACTOR}.kl_loss_type=low_var_kl",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
    ),
    "packed": (
        "actor_rollout_ref.model.use_remove_padding=True",
        "critic.model.use_remove_padding=True",
        f"{ACTOR}.use_dynamic_bsz=True",
        f"{CRITIC}.use_dynamic_bsz=True",
        f"{ACTOR}.ppo_epochs=2",
        f"{ACTOR}.shuffle=True",
    ),
    "padded": (
        "actor_rollout_ref.model.use_remove_padding=False",
        "critic.model.use_remove_padding=False",
    ),
    "offloaded": tuple(
        f"{part}.{kind}=True" for part in (f"{ACTOR}.fsdp_config", "critic.model.fsdp_config") for kind in OFFLOADED
    ),
    "lora": (
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.target_modules=all-linear",
        "critic.model.lora_rank=8",
    ),
    "lora-grpo": (*GRPO, "actor_rollout_ref.model.lora_rank=32", f"{ACTOR}.use_kl_loss=True"),
    "megatron": (f"{ACTOR}.strategy=megatron", f"{CRITIC}.strategy=megatron"),
    "teams": (
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=3",
        "trainer.device_mapping.actor=[1,2]",
        "trainer.device_mapping.rollout=[0]",
    ),
}
USUAL = ("default", "grpo", "kl-loss", "packed", "padded", "offloaded", "lora")


@dataclass(frozen=True)
class Outcome:
    """One run of the command."""

    seed: int
    setting: str
    exit_code: int
    failed: dict[str, str]  # by check: what it said
    seconds: float


def run(setting: str, seed: int, timeout_s: float) -> Outcome:
    words = [sys.executable, "-m", "devkit", "smoke", "--tiny", "--json", "--seed", str(seed), *SETTINGS[setting]]
    start = time.monotonic()
    # Short, as sockets lie below it. Torch's own threads are one for each rank already.
    with tempfile.TemporaryDirectory(prefix="fa", dir="/tmp", ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]), "TMPDIR": folder}
        command = [*words, f"--timeout={timeout_s:g}"]
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    seconds = round(time.monotonic() - start, 1)
    try:
        checks = json.loads(done.stdout)["checks"]
        failed = {each["name"]: each["detail"] for each in checks if each["status"] == "fail"}
    except (ValueError, KeyError):
        failed = {}
    if done.returncode and not failed:
        failed = {"command": done.stderr.strip()[-500:]}
    return Outcome(seed, setting, done.returncode, failed, seconds)


def seeds(text: str) -> range:
    """
    >>> list(seeds("3-5")), list(seeds("7"))
    ([3, 4, 5], [7])
    """
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=seeds, default=seeds("0-39"), metavar="A-B")
    parser.add_argument("--parallel", type=int, default=1, metavar="N")
    parser.add_argument("--settings", nargs="+", default=list(USUAL), choices=list(SETTINGS))
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="of one run")
    options = parser.parse_args(argv)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.parallel) as pool:
        wanted = [(name, seed) for seed in options.seeds for name in options.settings]
        for future in as_completed([pool.submit(run, name, seed, options.timeout) for name, seed in wanted]):
            outcomes.append(future.result())
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    print(f"{'setting':<12}{'runs':>6}{'false alarms':>14}{'median s':>10}", file=sys.stderr)
    for name in options.settings:
        own = [each for each in outcomes if each.setting == name]
        false, middle = sum(each.exit_code != 0 for each in own), statistics.median(each.seconds for each in own)
        print(f"{name:<12}{len(own):>6}{false:>14}{middle:>10.1f}", file=sys.stderr)
    return int(any(each.exit_code for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
