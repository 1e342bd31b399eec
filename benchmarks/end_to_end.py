"""Whole PPO steps of this trainer and of verl 0.9.1, in tokens per second: engine, model, batch and lengths the same.

    python benchmarks/end_to_end.py [--gpus 1] [--steps 5] [--only ours|verl] [KEY=VALUE ...]     (NVIDIA GPUs)
    python benchmarks/end_to_end.py --tiny                          (this trainer's part of it alone, on a CPU)

A Qwen2 of Qwen2.5-0.5B's shape with random weights; PPO with a critic of the same shape and no reference; 256 prompts
of 256 tokens, each response 512, two mini-batches; SGLang, one engine per GPU; float32 weights under FSDP2, bf16
computation, no padding, passes cut by the same token budgets. Both commands are one list of overrides, with
`KEY=VALUE` of the command line at its end, and both run for `--steps` as processes of their own, one after the other.
This trainer chooses how layers are trained, as by default. verl recomputes nothing (`VERL_BEST`); it compiles no layers
under FSDP2, and its fused kernels (`--verl-with actor_rollout_ref.model.use_fused_kernels=True`) made it slower. The
metrics of both have the same names; beside them, the time from one step's record to the next is measured from outside.
Medians of all steps but the first `--warmup`.

verl looks every 2 s whether all responses are there, and has no key for that; here it looks every 0.1 s, by a sampler
of its own (`--verl-poll 2` leaves it as it is). It is looked for in this environment; `--verl-path DIR` puts a folder
in front, for verl alone, and `--verl-python` runs it with another Python. Its critic does not load without flash-attn:
where no wheel of that fits, `end_to_end_parts/flash_attn.py` stands for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.end_to_end_parts.made_up import FULL, TINY, Sizes, make

ROOT = Path(__file__).resolve().parents[1]
PHASES = ("gen", "reward", "old_log_prob", "values", "adv", "update_critic", "update_actor", "update_weights")
MARK = "END_TO_END_RUN"  # in the environment of all processes of a run
POLL_S, GRACE_S = 0.02, 45.0
VERL_POLL_S = 2.0  # as it is published
VERL_BEST = (
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "critic.model.enable_gradient_checkpointing=False",
)
SAMPLER = """from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class Sampler(ReplayBuffer):
    def __init__(self, **settings):
        super().__init__(**settings | {{"poll_interval": {seconds}}})
"""
Metrics = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Record:
    """What a trainer wrote about a step, and when it had written it."""

    step: int
    metrics: Metrics
    seen: float


@dataclasses.dataclass(frozen=True)
class Trainer:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    metrics_file: Path


class Missing(Exception):
    """`error:` and `hint:`, the way the trainer writes them."""


def overrides(folder: Path, sizes: Sizes, args: argparse.Namespace) -> list[str]:
    """Both trainers' command. `+` is Hydra's word for a key that verl's own files do not have."""
    engine = "actor_rollout_ref.rollout"
    words = {
        "data.train_files": f"['{folder}/train.parquet']",
        "data.val_files": f"['{folder}/train.parquet']",
        "data.train_batch_size": sizes.rows,
        "data.max_prompt_length": sizes.prompt,
        "data.max_response_length": sizes.response,
        "data.filter_overlong_prompts": False,
        "reward.custom_reward_function.path": f"{folder}/reward.py",
        "actor_rollout_ref.model.path": f"{folder}/model",
        "critic.model.path": f"{folder}/model",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
        "actor_rollout_ref.actor.ppo_mini_batch_size": sizes.mini_batch,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": sizes.actor_tokens,
        "critic.ppo_max_token_len_per_gpu": sizes.critic_tokens,
        f"{engine}.name": "hf" if args.tiny else "sglang",
        f"{engine}.tensor_model_parallel_size": 1,
        f"{engine}.gpu_memory_utilization": args.memory,
        f"{engine}.max_num_seqs": sizes.rows,
        f"{engine}.ignore_eos": True,
        "algorithm.adv_estimator": "gae",
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": args.gpus,
        "trainer.total_training_steps": args.steps,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.logger": "[console,file]",
    }
    for trained in ("actor_rollout_ref.model", "critic.model"):
        words[f"{trained}.use_remove_padding"] = True
    if args.tiny:
        words["trainer.device"] = "cpu"
    else:
        words[f"+{engine}.engine_kwargs.sglang.attention_backend"] = args.attention_backend
        words[f"+{engine}.engine_kwargs.sglang.sampling_backend"] = args.sampling_backend
    return [*(f"{key}={value}" for key, value in words.items()), *args.overrides]


def ours(folder: Path, words: Sequence[str]) -> Trainer:
    output = folder / "ours"
    command = (sys.executable, "-m", "trainer.main_ppo", *words, f"trainer.default_local_dir={output}")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Trainer("ours", command, {"PYTHONPATH": path}, output / "metrics.jsonl")


def verl(folder: Path, words: Sequence[str], args: argparse.Namespace) -> Trainer:
    """Raises Missing if it is not installed."""
    output, python = folder / "verl", args.verl_python
    output.mkdir()
    found = os.pathsep.join(filter(None, [args.verl_path, os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": found, "VERL_FILE_LOGGER_PATH": str(output / "metrics.jsonl")}
    ask = [python, "-c", "from importlib.metadata import version; print(version('verl'))"]
    look = subprocess.run(ask, capture_output=True, text=True, env=os.environ | environment)
    if look.returncode:
        raise Missing("verl is not installed", "pip install 'verl==0.9.1', or --verl-path, or --only ours")
    print(f"verl {look.stdout.strip()}")
    own = [
        *VERL_BEST,
        *args.verl_with,
        "+ray_kwargs.ray_init.address=local",
        "+ray_kwargs.ray_init.include_dashboard=False",
    ]
    if args.verl_poll != VERL_POLL_S:
        (folder / "sampler.py").write_text(SAMPLER.format(seconds=args.verl_poll))
        sampler = "trainer.v1.sampler.custom_sampler"
        own += [f"{sampler}.path={folder}/sampler.py", f"{sampler}.name=Sampler"]
    command = (python, "-m", "verl.trainer.main_ppo", *words, *own, f"trainer.default_local_dir={output}")
    return Trainer("verl", command, environment, output / "metrics.jsonl")


def run(trainer: Trainer, steps: int, timeout_s: float, logs: Path) -> list[Record]:
    """The records of a run, until its last step's, its end or the timeout. Whatever it leaves behind is ended."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{trainer.name}.log"
    mark = f"{os.getpid()}-{trainer.name}"
    print(f"{trainer.name}: up to {timeout_s:.0f} s, {log}", flush=True)
    folder = trainer.metrics_file.parent.parent
    # A Ray of its own: not that of RAY_ADDRESS, nor the last one that was started on this machine.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {MARK: mark, "PYTHONUNBUFFERED": "1", "RAY_TMPDIR": str(folder), **trainer.environment}
    started = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            trainer.command,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    records: list[Record] = []
    try:
        for record in watched(trainer.metrics_file, process, started + timeout_s):
            records.append(record)
            print(f"{trainer.name}: step {record.step} at {record.seen - started:.1f} s", flush=True)
            if record.step >= steps:
                break
        ended = f"exit code {process.wait(GRACE_S)}" if len(records) >= steps or process.poll() is not None else "late"
    except subprocess.TimeoutExpired:
        ended = f"still there {GRACE_S:.0f} s after its last step"
    finally:
        end(process, mark)
    print(f"{trainer.name}: {len(records)} of {steps} steps in {time.monotonic() - started:.1f} s, {ended}", flush=True)
    if len(records) < steps:
        print(*log.read_text(errors="replace").splitlines()[-40:], sep="\n", file=sys.stderr)
    return records


def watched(path: Path, process: subprocess.Popen[bytes], deadline: float) -> Iterator[Record]:
    """The records as they are written, until the process is gone or the deadline is past."""
    taken = 0
    while True:
        alive = process.poll() is None
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for line in lines[taken:]:
            if line.endswith("\n"):
                taken += 1
                yield record_of(line, time.monotonic())
        if not alive or time.monotonic() > deadline:
            return
        time.sleep(POLL_S)


def record_of(line: str, seen: float) -> Record:
    """Of either trainer's file.

    >>> record_of('{"step": 3, "timing_s/step": 2.5}', 0.0) == record_of('{"step":3,"data":{"timing_s/step":2.5}}', 0.0)
    True
    """
    values = json.loads(line)
    step = values.pop("step")
    return Record(step, values.get("data", values), seen)


def end(process: subprocess.Popen[bytes], mark: str) -> None:
    """First the trainer itself, which stops its Ray; then each process that still carries the mark."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:  # it is gone by now, or another user's
            continue


def intervals(records: Sequence[Record], warmup: int) -> list[float]:
    """From one record to the next, for each step that counts."""
    return [after.seen - before.seen for before, after in itertools.pairwise(records)][warmup - 1 :]


def seconds_of(records: Sequence[Record], warmup: int) -> dict[str, float]:
    """Medians by phase; `whole` is from one record to the next."""
    counted = records[warmup:]
    found = {"whole": statistics.median(intervals(records, warmup))}
    for name in ("step", *PHASES):
        values = [r.metrics[f"timing_s/{name}"] for r in counted if f"timing_s/{name}" in r.metrics]
        if values:
            found[name] = statistics.median(values)
    found["others"] = found["step"] - sum(found.get(name, 0.0) for name in PHASES)
    return found


def show(runs: Mapping[str, Sequence[Record]], args: argparse.Namespace) -> None:
    names = list(runs)
    seconds = {name: seconds_of(records, args.warmup) for name, records in runs.items()}
    tokens = {name: middle(records[args.warmup :], "perf/total_num_tokens") for name, records in runs.items()}
    compared = len(names) == 2
    titles = [f"{name}, {unit}" for unit in ("s", "tokens/s") for name in names]
    print("\n| | " + " | ".join([*titles, *(["ours / verl"] if compared else [])]) + " |")
    print("|---|" + "---|" * (len(titles) + compared))
    for phase in ("whole", "step", *PHASES, "others"):
        if not any(phase in found for found in seconds.values()):
            continue
        took = [seconds[name].get(phase) for name in names]
        rates = [tokens[name] / s if s else None for name, s in zip(names, took, strict=True)]
        cells = [f"{s:.3f}" if s is not None else "" for s in took] + [f"{r:,.0f}" if r else "" for r in rates]
        if compared:
            both = rates[0] and rates[1]
            cells.append(f"{rates[0] / rates[1]:.2f}" if both and rates[0] and rates[1] else "")
        print(f"| {phase} | " + " | ".join(cells) + " |")
    print()
    for name, records in runs.items():
        counted = records[args.warmup :]
        prompt, response = (middle(counted, f"{part}_length/mean") for part in ("prompt", "response"))
        whole = intervals(records, args.warmup)
        print(
            f"{name}: {tokens[name]:,.0f} tokens a step, prompts of {prompt:.0f} and responses of {response:.0f};"
            f" {len(counted)} steps, whole {min(whole):.3f} to {max(whole):.3f} s"
        )


def middle(records: Sequence[Record], name: str) -> float:
    return statistics.median(float(record.metrics[name]) for record in records)


def where(args: argparse.Namespace) -> str:
    if args.tiny:
        return f"{os.cpu_count()} CPU cores"
    look = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(look, capture_output=True, text=True, timeout=30).stdout.split("\n")
    except OSError:
        raise Missing("there is no NVIDIA GPU", "--tiny runs this trainer's part on a CPU") from None
    return f"{args.gpus} x {names[0]}"


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2, help="steps that do not count")
    parser.add_argument("--only", choices=("ours", "verl"))
    parser.add_argument("--timeout", type=float, default=280, help="seconds for each trainer")
    parser.add_argument("--memory", type=float, default=0.3, help="of a GPU, for the engine")
    parser.add_argument("--attention-backend", default="triton", help="SGLang's")
    parser.add_argument("--sampling-backend", default="pytorch", help="SGLang's")
    parser.add_argument("--verl-path", metavar="DIR", help="a folder with verl and what it needs")
    parser.add_argument("--verl-python", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--verl-poll", type=float, default=0.1, help="seconds; 2 is verl as it is published")
    parser.add_argument("--verl-with", nargs="*", default=[], metavar="KEY=VALUE", help="for verl alone")
    parser.add_argument("--logs", type=Path, default=None, help="a folder for what the trainers print")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on a CPU, this trainer alone")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for both trainers")
    args = parser.parse_args(words)
    if not 1 <= args.warmup < args.steps:
        parser.error("--warmup takes at least one step, and leaves at least one")
    if args.tiny:
        args.only = "ours"  # verl has no way to run on a CPU
    return args


def main(words: Sequence[str]) -> int:
    args = arguments(words)
    sizes = TINY if args.tiny else FULL
    with tempfile.TemporaryDirectory(prefix="e2e", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        try:
            print(f"{where(args)}, Python {sys.version.split()[0]}")
            command = overrides(folder, sizes, args)
            trainers = [] if args.only == "verl" else [ours(folder, command)]
            if args.only != "ours":
                trainers.append(verl(folder, command, args))
        except Missing as missing:
            print(f"error: {missing.args[0]}\nhint: {missing.args[1]}", file=sys.stderr)
            return 2
        make(folder, sizes, args.steps)
        runs = {t.name: run(t, args.steps, args.timeout, args.logs or folder / "logs") for t in trainers}
    whole = {name: records for name, records in runs.items() if len(records) > args.warmup}
    if whole:
        show(whole, args)
    return 0 if all(len(records) >= args.steps for records in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
