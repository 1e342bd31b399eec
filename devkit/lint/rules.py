"""Every rule: its name, how bad it is, what it is about, and an example of the mistake."""

from __future__ import annotations

from dataclasses import dataclass

from devkit.lint.records import Severity


@dataclass(frozen=True)
class Rule:
    name: str
    severity: Severity  # the usual one: a finding may be of another where it matters less or more
    about: str
    example: str


_TABLE: tuple[Rule, ...] = (
    # The shell
    Rule(
        "argument-after-pipe",
        "error",
        "an override passed to another program",
        "... 2>&1 | tee run.log trainer.nnodes=2",
    ),
    Rule("argument-after-comment", "error", "overrides cut off by a comment", "a.b=1 \\ ⏎ # a.c=2 \\ ⏎ a.d=3"),
    Rule("broken-continuation", "error", "a line that is not continued", "a.b=1 \\␠ ⏎ a.c=2"),
    Rule("undefined-variable", "error", "a variable that is never set", "name=${train_data}-ppo"),
    Rule("unused-variable", "note", "a variable that is never used", "math_train_path=..."),
    Rule("unquoted-arguments", "warning", "`$@` without quotes", "main_ppo trainer.nnodes=2 $@"),
    Rule(
        "unquoted-brackets",
        "note",
        "a list that the shell treats as a glob pattern",
        "trainer.logger=['console','wandb']",
    ),
    Rule(
        "typographic-quote",
        "error",
        "typographic quotes, which are plain characters to the shell",
        "CUDA_HOME=“/usr/local/cuda”",
    ),
    Rule("windows-line-ends", "error", "Windows line endings", "nnodes=2␍"),
    Rule(
        "broken-quoting",
        "warning",
        "quotes that end a quoted script early",
        'bash -c "docker images --format "{{.ID}}""',
    ),
    Rule("placeholder", "error", "a placeholder that was not filled in", 'ADDRESS="<address>:8265"'),
    Rule("shell-prompt", "error", "a shell prompt that was copied along", "$ ray job submit ..."),
    Rule(
        "not-exported",
        "warning",
        "a variable that is not exported",
        "RAY_ADDRESS=... ⏎ ray job submit ...",
    ),
    Rule("pipe-hides-failure", "note", "a lost exit code", "main_ppo ... | tee run.log"),
    Rule("dash-argument", "error", "a file name that becomes an option", "tee ${unset}-run.log"),
    Rule("comma-argument", "error", "a comma between packages", "pip install wheel, packaging"),
    Rule(
        "web-page-download",
        "error",
        "a web page instead of a file",
        "curl https://github.com/O/R/blob/main/x.sh | bash",
    ),
    Rule("not-parsed", "note", "shell or YAML that can't be read", "if [ -f x ]; then"),
    # Keys
    Rule("unknown-key", "error", "a key unknown to every release", "trainer.n_gpu_per_node=8"),
    Rule("absent-key", "error", "a key known only to other releases", "max_turns=4, for verl-0.7"),
    Rule(
        "renamed-key",
        "error",
        "a key with a different name in that release",
        "critic.model.fsdp_config.param_offload, for verl-head",
    ),
    Rule("added-key", "error", "`+` before an existing key", "+trainer.val_only=False, for verl-0.7"),
    Rule("missing-key", "error", "a key without a default", "no actor_rollout_ref.rollout.name, for verl-head"),
    Rule("inert-key", "warning", "a key without effect", "algorithm.kl_ctrl.kl_coef=0.001, for verl-0.4"),
    Rule(
        "unmet-request", "warning", "what changes the result, and this trainer does not do", "reranker.topk=4, for ours"
    ),
    Rule("version-dependent-key", "note", "a key that works only in old releases", "algorithm.kl_ctrl.kl_coef=0.001"),
    Rule("deprecated-key", "warning", "a deprecated key", "critic.ppo_micro_batch_size=16"),
    Rule("duplicate-key", "warning", "a key given twice", "model.path=A ... model.path=B"),
    Rule(
        "refused-value",
        "error",
        "a value this trainer does not support",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2, for ours",
    ),
    Rule("not-an-override", "error", "a word that Hydra can't read", "main_ppo trainer.nnodes 2"),
    Rule(
        "misleading-name",
        "note",
        "a name that contradicts the model size",
        "experiment_name=Qwen2.5-32B, a 7B model",
    ),
    # Sizes
    Rule("batch-arithmetic", "error", "batches that don't divide evenly", "train_batch_size=100 on 16 GPUs"),
    Rule("uneven-batch", "warning", "a smaller last mini-batch", "train_batch_size=100, ppo_mini_batch_size=64"),
    Rule(
        "tensor-parallel", "error", "a tensor-parallel size that doesn't fit", "tensor_model_parallel_size=3 on 8 GPUs"
    ),
    Rule("gpu-memory", "error", "more memory than a GPU has", "gpu_memory_utilization=0.9 beside 15 GB of states"),
    # Places
    Rule(
        "node-local-path",
        "warning",
        "a path on one node's local disk",
        "data.train_files=/root/train.parquet, nnodes=2",
    ),
    Rule(
        "relative-path",
        "warning",
        "a path relative to a temporary folder",
        "ray job submit -- ... default_local_dir=out",
    ),
    Rule(
        "prepared-on-one-node",
        "warning",
        "data that exists only on the head",
        "if [ $RANK = 0 ]; then prepare --local_dir ~/data",
    ),
    Rule("loopback-address", "error", "an address that other nodes can't reach", "MASTER_ADDR=127.0.0.1, nnodes=2"),
    Rule("loopback-interface", "error", "an interface that other nodes can't reach", "NCCL_SOCKET_IFNAME=lo, nnodes=2"),
    Rule("dashboard-address", "error", "a dashboard without http://", "ray job submit --address=10.0.0.5:8265"),
    # Search
    Rule(
        "answer-tag",
        "warning",
        "prompts that don't show how to answer",
        'no "<answer> Beijing </answer>" in data.train_files',
    ),
    Rule("row-index", "error", "rows that Search-R1 takes for one group", "extra_info without index, for search-r1"),
    # Environment and containers
    Rule(
        "device-variables", "error", "conflicting lists of visible GPUs", "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES"
    ),
    Rule(
        "allocator-conflict",
        "error",
        "an allocator setting that vLLM's sleep mode rejects",
        "expandable_segments:True with vllm",
    ),
    Rule("ray-debug-leftover", "warning", "leftover Ray debug flags", "RAY_DEBUG=legacy"),
    Rule("debug-leftover", "note", "settings that slow a run down", "CUDA_LAUNCH_BLOCKING=1"),
    Rule("deprecated-variable", "note", "a renamed variable", "NCCL_ASYNC_ERROR_HANDLING=1"),
    Rule("env-not-sent", "warning", "variables that a Ray job does not inherit", "export X=1 ⏎ ray job submit ..."),
    Rule("log-of-no-wait", "warning", "a log without the run's output", "ray job submit --no-wait ... | tee run.log"),
    Rule("container-network", "error", "ports that other nodes can't reach", "docker run --gpus all -p 9001:22 ..."),
    Rule("container-shm", "warning", "64 MB of shared memory", "docker run --gpus all IMAGE"),
    Rule("shm-size-ignored", "note", "a size without effect", "docker run --ipc=host --shm-size=10gb"),
    Rule(
        "srun-tasks",
        "error",
        "a container that is started twice on each node",
        "--ntasks-per-node=2, srun docker run --name",
    ),
    Rule("srun-nodes", "warning", "more nodes than tasks", "srun --nodes=2 --ntasks=1"),
)
RULES = {rule.name: rule for rule in _TABLE}
