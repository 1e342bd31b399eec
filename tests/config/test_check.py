"""`--check`: arithmetic, files and settings, judged without starting anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pace import stretched
from trainer.balance import PassLimit
from trainer.config import ConfigErrors, MicroBatches, check_command, load, micro_batch_sizes

from .conftest import write_rows

Command = Callable[..., list[str]]
A, ROLLOUT, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


def problems(words: list[str]) -> dict[str, str]:
    found = check_command(words).problems
    assert len({problem.key for problem in found}) == len(found)
    assert all("\n" not in problem.message + problem.hint for problem in found)
    return {problem.key: problem.message for problem in found}


def notes(words: list[str]) -> dict[str, str]:
    return {note.key: note.message for note in check_command(words).notes}


def test_a_fit_command_has_facts(command: Command) -> None:
    report = check_command(command("trainer.total_epochs=3"))
    assert report.ok and report.facts is not None
    assert (report.facts.rows.train, report.facts.rows.val) == (16, 4)
    assert (report.facts.ranks, report.facts.steps_per_epoch, report.facts.total_steps) == (1, 2, 6)
    assert report.facts.micro_batches == rows(2, 2, 2, 2, 2)


def test_a_check_loads_no_framework(command: Command) -> None:
    program = (
        "import sys\n"
        "from trainer.config import check_command\n"
        "assert check_command(sys.argv[1:]).ok\n"
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, *command()],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=stretched(60),
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr


ARITHMETIC = [
    # more words; the key that is named; what is said
    (
        [f"{ROLLOUT}.n=1", "trainer.n_gpus_per_node=3"],
        "data.train_batch_size",
        "8 x actor_rollout_ref.rollout.n=1 sequences",
    ),
    ([f"{A}.ppo_mini_batch_size=3"], f"{A}.ppo_mini_batch_size", "train_batch_size=8 is not a multiple of"),
    (["critic.ppo_mini_batch_size=16"], "critic.ppo_mini_batch_size", "train_batch_size=8 is not a multiple of"),
    ([f"{A}.ppo_mini_batch_size=1", "trainer.nnodes=2"], f"{A}.ppo_mini_batch_size", "do not divide over 2 ranks"),
    ([f"{A}.ppo_micro_batch_size_per_gpu=3"], f"{A}.ppo_micro_batch_size_per_gpu", "does not divide the 4 sequences"),
    (["critic.ppo_micro_batch_size_per_gpu=3"], "critic.ppo_micro_batch_size_per_gpu", "does not divide the 4 seq"),
    ([f"{A}.ppo_micro_batch_size_per_gpu=8"], f"{A}.ppo_micro_batch_size_per_gpu", "does not divide the 4 sequences"),
    ([f"{A}.ppo_micro_batch_size_per_gpu=null"], f"{A}.ppo_micro_batch_size_per_gpu", "neither"),
    (["critic.ppo_micro_batch_size_per_gpu=null"], "critic.ppo_micro_batch_size_per_gpu", "neither"),
    ([f"{A}.ppo_micro_batch_size=2"], f"{A}.ppo_micro_batch_size", "both given"),
    (["critic.ppo_micro_batch_size=2"], "critic.ppo_micro_batch_size", "both given"),
    (
        [f"{ROLLOUT}.log_prob_micro_batch_size=2", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2"],
        f"{ROLLOUT}.log_prob_micro_batch_size",
        "both given",
    ),
    (
        [f"{ROLLOUT}.log_prob_micro_batch_size=3", "trainer.nnodes=2"],
        f"{ROLLOUT}.log_prob_micro_batch_size",
        "does not divide over 2 ranks",
    ),
    (
        [f"{A}.ppo_micro_batch_size_per_gpu=null", f"{A}.ppo_micro_batch_size=3", "trainer.nnodes=2"],
        f"{A}.ppo_micro_batch_size",
        "does not divide over 2 ranks",
    ),
    (
        [f"{A}.ppo_micro_batch_size_per_gpu=null", f"{A}.ppo_micro_batch_size=6", "trainer.nnodes=2"],
        f"{A}.ppo_micro_batch_size",
        "3 on each rank, does not divide the 2 sequences",
    ),
    (
        [f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=1023"],
        f"{A}.ppo_max_token_len_per_gpu",
        "do not hold one sequence of up to 1024",
    ),
    (
        [f"{A}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1023"],
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "do not hold one sequence of up to 1024",
    ),
    (
        ["critic.use_dynamic_bsz=True", "critic.ppo_max_token_len_per_gpu=5"],
        "critic.ppo_max_token_len_per_gpu",
        "do not hold one sequence of up to 1024",
    ),
    (
        ["critic.use_dynamic_bsz=True", "critic.forward_max_token_len_per_gpu=1023"],
        "critic.forward_max_token_len_per_gpu",
        "do not hold one sequence of up to 1024",
    ),
]


@pytest.mark.parametrize(("words", "key", "said"), ARITHMETIC)
def test_arithmetic(command: Command, words: list[str], key: str, said: str) -> None:
    found = problems(command(*words))
    assert said in found[key]
    with pytest.raises(ConfigErrors):
        micro_batch_sizes(load(command(*words)).config)


def test_replicas_have_one_gpu(command: Command) -> None:
    replicas = f"{ROLLOUT}.engine_kwargs.sglang.replicas"
    words = [f"{ROLLOUT}.name=sglang", "trainer.n_gpus_per_node=2", f"{replicas}=2"]
    assert "replicas share one GPU" in problems(command(*words, f"{ROLLOUT}.tensor_model_parallel_size=2"))[replicas]
    assert replicas not in problems(command(*words, f"{ROLLOUT}.tensor_model_parallel_size=1"))


def test_what_a_part_does_not_use_is_not_judged(command: Command) -> None:
    unused = [f"{R}.log_prob_micro_batch_size=3", f"{R}.log_prob_micro_batch_size_per_gpu=3"]
    assert problems(command(*unused)) == {}
    assert f"{R}.log_prob_micro_batch_size" in problems(command(*unused, "algorithm.use_kl_in_reward=True"))
    assert problems(command("algorithm.adv_estimator=grpo", "critic.ppo_micro_batch_size=3")) == {}


def rows(*sizes: int) -> MicroBatches:
    return MicroBatches(*(PassLimit(rows=size) for size in sizes))


def tokens(*budgets: int) -> MicroBatches:
    return MicroBatches(*(PassLimit(tokens=budget) for budget in budgets))


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ([], rows(2, 2, 2, 2, 2)),
        (
            [f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=3"],
            rows(2, 3, 3, 2, 2),
        ),  # forward only: need not divide
        (["critic.forward_micro_batch_size_per_gpu=7"], rows(2, 2, 2, 2, 7)),
        (
            ["algorithm.use_kl_in_reward=True", f"{R}.log_prob_micro_batch_size=16", "trainer.n_gpus_per_node=2"],
            rows(2, 2, 8, 2, 2),
        ),
        (  # the critic follows, with its own budget
            [f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=4000"],
            tokens(4000, 4000, 4000, 32768, 32768),
        ),
        (
            ["critic.use_dynamic_bsz=True", "critic.forward_max_token_len_per_gpu=50000"],
            MicroBatches(*[PassLimit(rows=2)] * 3, PassLimit(tokens=32768), PassLimit(tokens=50000)),
        ),
        (  # padding is computed, and counts
            [f"{A}.use_dynamic_bsz=True", "actor_rollout_ref.model.use_remove_padding=False"],
            MicroBatches(*[PassLimit(tokens=16384, padded_to=1)] * 3, *[PassLimit(tokens=32768)] * 2),
        ),
        (
            [f"{A}.use_dynamic_bsz=True", "critic.model.use_remove_padding=False"],
            MicroBatches(*[PassLimit(tokens=16384)] * 3, *[PassLimit(tokens=32768, padded_to=1)] * 2),
        ),
        (  # Megatron packs nothing
            [f"{A}.use_dynamic_bsz=True", f"{A}.strategy=megatron"],
            MicroBatches(*[PassLimit(tokens=16384, padded_to=1)] * 3, *[PassLimit(tokens=32768, padded_to=1)] * 2),
        ),
        (["algorithm.adv_estimator=grpo"], rows(2, 2, 2, 2, 2)),
    ],
)
def test_sequences_per_pass(command: Command, words: list[str], sizes: MicroBatches) -> None:
    assert micro_batch_sizes(load(command(*words)).config) == sizes


def test_n_counts_in_the_arithmetic(command: Command) -> None:
    words = command(f"{ROLLOUT}.n=3", "trainer.n_gpus_per_node=6", f"{A}.ppo_micro_batch_size_per_gpu=1")
    assert problems([*words, "critic.ppo_micro_batch_size_per_gpu=2"]) == {}  # 4 x 3 over 6 ranks: 2 each


def test_sizes_over_all_ranks_are_deprecated_and_budgets_override_sizes(command: Command) -> None:
    words = command("critic.ppo_micro_batch_size_per_gpu=null", "critic.ppo_micro_batch_size=4")
    said = notes(words)["critic.ppo_micro_batch_size"]
    assert (
        said
        == "critic.ppo_micro_batch_size counts all ranks and is deprecated: it is critic.ppo_micro_batch_size_per_gpu=4"
    )
    said = notes(command(f"{A}.use_dynamic_bsz=True"))[f"{A}.ppo_micro_batch_size_per_gpu"]
    assert "no effect: use_dynamic_bsz" in said


def test_data_files(command: Command, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("not parquet")
    key = "data.train_files"
    for value, said in {
        tmp_path / "missing.parquet": "does not exist",
        tmp_path: "is a folder",
        tmp_path / "text.parquet": "is not a parquet file",
        "'hdfs://host/x.parquet'": "is not on a file system",
        write_rows(tmp_path / "a.parquet", 9, prompt=None): "has no column prompt",
        write_rows(tmp_path / "b.parquet", 9, data_source=None): "has no column data_source",
        write_rows(tmp_path / "c.parquet", 9, reward_model=None): "has no column reward_model",
        write_rows(tmp_path / "d.parquet", 9, reward_model={"style": "rule"}): "has no ground_truth",
        write_rows(tmp_path / "e.parquet", 0): "",  # its columns have no types
    }.items():
        assert said in problems(command(f"{key}={value}"))[key]
    assert "is not set" in problems(command(f"{key}=[]"))[key]


def test_a_file_without_rows(command: Command, tmp_path: Path) -> None:
    assert "there are no rows" in problems(command("data.val_max_samples=0"))["data.val_files"]


def test_columns_may_have_other_names(command: Command, tmp_path: Path) -> None:
    renamed = write_rows(tmp_path / "r.parquet", 9, prompt=None, question=[{"role": "user", "content": "?"}])
    words = command(f"data.train_files={renamed}", f"data.val_files={renamed}", "data.prompt_key=question")
    assert problems(words) == {}


def test_there_must_be_one_batch(command: Command, tmp_path: Path) -> None:
    two = f"data.train_files=[{write_rows(tmp_path / 'a.parquet', 5)},{write_rows(tmp_path / 'b.parquet', 5)}]"
    assert problems(command(two)) == {}
    said = problems(command(two, "data.train_max_samples=7"))["data.train_batch_size"]
    assert said == "data.train_batch_size=8 is more than the 7 rows there are: not one step"


def test_model_folders(command: Command, model_dir: Path, tmp_path: Path) -> None:
    key = "actor_rollout_ref.model.path"
    assert "does not exist" in problems(command(f"{key}=/no/model"))[key]
    for path in ("./model", "x/y/z", "'~/no-model'", "../model", "model/"):
        assert "does not exist" in problems(command(f"{key}={path}"))[key]
    assert "is not set" in problems(command(f"{key}="))[key]
    (tmp_path / "tok").mkdir()
    (model_dir / "tokenizer.json").rename(tmp_path / "tok" / "tokenizer.json")
    assert "no tokenizer files" in problems(command())[key]
    assert problems(command(f"actor_rollout_ref.model.tokenizer_path={tmp_path / 'tok'}")) == {}
    (model_dir / "config.json").unlink()
    (tmp_path / "tok" / "tokenizer.json").rename(model_dir / "tokenizer.json")
    assert "no config.json" in problems(command())[key]
    assert "no config.json" in problems(command(f"{key}=a/b", f"critic.model.path={model_dir}"))["critic.model.path"]


def test_a_hub_id_is_a_note(command: Command) -> None:
    words = command("actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct")
    assert problems(words) == {}
    assert "downloaded from the hub" in notes(words)["actor_rollout_ref.model.path"]


def test_reward_functions(command: Command, tmp_path: Path) -> None:
    path, name = "custom_reward_function.path", "custom_reward_function.name"
    file = tmp_path / "reward.py"
    assert "is not a file" in problems(command(f"{path}={file}"))[path]
    file.write_text("def compute_scores(): raise SystemExit\n\nclass A:\n    def compute_score(self): ...\n")
    assert "is not defined in" in problems(command(f"{path}={file}"))[name]
    assert problems(command(f"{path}={file}", f"{name}=compute_scores")) == {}
    file.write_text("from elsewhere import score as compute_score\nraise SystemExit\n")
    assert problems(command(f"{path}={file}")) == {}
    file.write_text("def compute_score(:\n")
    assert "is not Python (line 1)" in problems(command(f"{path}={file}"))[path]


def test_settings(command: Command, tmp_path: Path) -> None:
    key = f"{ROLLOUT}.val_kwargs.temperature"
    assert "cannot be sampled from" in problems(command(f"{ROLLOUT}.val_kwargs.do_sample=True"))[key]
    assert problems(command(f"{ROLLOUT}.val_kwargs.do_sample=True", f"{key}=0.6")) == {}
    key = "trainer.resume_from_path"
    assert "is not set" in problems(command("trainer.resume_mode=resume_path"))[key]
    assert "does not exist" in problems(command("trainer.resume_mode=resume_path", f"{key}=/no/where"))[key]
    assert problems(command("trainer.resume_mode=resume_path", f"{key}={tmp_path}")) == {}
    assert "no effect" in notes(command(f"{key}={tmp_path}"))[key]
    assert "data.val_files" in problems(command("trainer.val_only=True", "data.val_files=[]"))
    assert "validation is off" in notes(command("data.val_files=[]"))["data.val_files"]


OUTPUTS = ("default_local_dir", "rollout_data_dir", "validation_data_dir", "capsule_dir")
LONG = "x" * 300


@pytest.mark.parametrize("key", [*(f"trainer.{name}" for name in OUTPUTS), "global_profiler.save_path"])
def test_a_folder_that_cannot_be_written(
    command: Command, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("locked").mkdir()
    used = ("global_profiler.tool=torch", "global_profiler.steps=[1]")

    def said(path: str) -> str | None:
        """The one problem, of that key."""
        return {**{key: None}, **problems(command(*used, f"{key}='{path}'"))}[key]

    assert said("new/folder") is said(str(tmp_path)) is said("locked/new") is None
    assert said("/dev/full") == f"{key}=/dev/full is neither a file nor a folder"
    assert said("file") == f"{key}=file is a file"
    assert said("file/new") == f"{key}=file/new cannot be created: {tmp_path}/file is a file"
    assert "a name in it has 300 bytes, and " in (said(f"new/{LONG}/deep") or "")
    assert "it has " in (said("long/" * 1000) or "")
    assert "is no path" in (said("~nobody-at-all/x") or "")
    # root is refused nothing: what the system answers to others
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path) and real(path, mode))
    assert said("locked") == f"{key}=locked cannot be written to"
    assert said("locked/new") == f"{key}=locked/new cannot be created: {tmp_path}/locked cannot be written to"


@pytest.mark.parametrize("key", ["trainer.experiment_name", "trainer.project_name"])
def test_a_name_that_is_too_long_for_its_folder(
    command: Command, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = check_command(command(f"{key}={LONG}")).problems
    assert found.key == key and found.hint == f"give a shorter {key}"
    assert "has 300 bytes" in found.message and LONG not in found.message


def test_a_folder_that_nothing_is_written_to_may_be_anything(command: Command) -> None:
    unused = ("trainer.logger=console", "trainer.default_local_dir=/dev/full", "global_profiler.save_path=/dev/full")
    assert problems(command(*unused)) == {}


M, C = "actor_rollout_ref.model", "critic.model"
OFF = "enable_gradient_checkpointing=False"


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        ([f"{M}.recompute_granularity=selective", f"{M}.{OFF}"], f"{M}.recompute_granularity", f"{M}.{OFF[:-6]} is F"),
        ([f"{M}.recompute_granularity=selective"], f"{M}.recompute_granularity", None),
        ([f"{M}.{OFF}"], f"{M}.recompute_granularity", None),
        ([f"{C}.recompute_granularity=selective", f"{C}.{OFF}"], f"{C}.recompute_granularity", f"{C}.{OFF[:-6]} is F"),
        (
            [f"{C}.recompute_granularity=selective", f"{C}.{OFF}", "algorithm.adv_estimator=grpo"],
            f"{C}.recompute_granularity",
            None,
        ),
        (
            [f"{M}.recompute_granularity=selective", f"{A}.strategy=megatron"],
            f"{M}.recompute_granularity",
            "strategy=megatron has",
        ),
        ([f"{A}.use_torch_compile=True", "trainer.device=cpu"], f"{A}.use_torch_compile", "on a CPU"),
        ([f"{R}.use_torch_compile=True", "trainer.device=cpu"], f"{R}.use_torch_compile", "on a CPU"),
        (["trainer.device=cpu"], f"{A}.use_torch_compile", None),  # its default is True
        ([f"{A}.use_torch_compile=False", "trainer.device=cpu"], f"{A}.use_torch_compile", None),
        ([f"{A}.use_torch_compile=True"], f"{A}.use_torch_compile", None),
        (
            ["global_profiler.tool=torch", "global_profiler.steps=[500]", "trainer.total_training_steps=90"],
            "global_profiler.steps",
            "has no effect: [500] are not among the run's steps, 1 to 90",
        ),
        (
            ["global_profiler.tool=torch", "global_profiler.steps=[2,61,0]"],  # 30 epochs of 2 steps
            "global_profiler.steps",
            "has no effect in part: [61, 0] are not among the run's steps, 1 to 60",
        ),
        (["global_profiler.tool=torch", "global_profiler.steps=[1,60]"], "global_profiler.steps", None),
    ],
)
def test_what_does_nothing_as_the_rest_stands_is_told(
    command: Command, words: list[str], key: str, said: str | None
) -> None:
    assert problems(command(*words)) == {}
    found = notes(command(*words))
    assert (said is None and key not in found) or (said is not None and said in found[key])


def test_several_nodes_without_a_checkpoint_are_told(command: Command) -> None:
    key = "trainer.save_freq"
    assert "writes no checkpoint: losing one of 2 nodes" in notes(command("trainer.nnodes=2"))[key]
    for fine in (["trainer.nnodes=1"], ["trainer.nnodes=2", f"{key}=5"], ["trainer.nnodes=2", "trainer.val_only=True"]):
        assert key not in notes(command(*fine))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_another_engine_is_a_note_here(command: Command, engine: str) -> None:
    words = command(f"{ROLLOUT}.name={engine}", f"{ROLLOUT}.tensor_model_parallel_size=1")
    assert problems(words) == {}
    assert "hf" in notes(words)[f"{ROLLOUT}.name"]
    assert load(words).config.actor_rollout_ref.rollout.name == engine


@pytest.mark.parametrize(
    "word",
    ["tensor_model_parallel_size=4", "gpu_memory_utilization=0.3", "engine_kwargs.sglang.attention_backend=triton"],
)
def test_settings_of_other_engines_have_no_effect_on_hf(command: Command, word: str) -> None:
    (said,) = [text for key, text in notes(command(f"{ROLLOUT}.{word}")).items() if key.startswith(f"{ROLLOUT}.")]
    assert "no effect: the engine hf" in said


def test_log_probs_of_vllm_that_the_trainer_has_none_like(command: Command) -> None:
    name, key = f"{ROLLOUT}.name", "algorithm.rollout_correction.rollout_is"
    words = [f"{name}=vllm", f"{ROLLOUT}.tensor_model_parallel_size=1", f"{ROLLOUT}.temperature=0.7"]
    restricted = [*words, f"{ROLLOUT}.top_p=0.9"]
    assert "what top_p and top_k leave" in notes(command(*restricted))[name]
    assert "drift" not in notes(command(*words))[name]
    assert "has no comparable ones" in problems(command(*restricted, f"{key}=token"))[key]
    for fine in (words, [*restricted, f"{ROLLOUT}.temperature=1"], [*restricted, f"{name}=sglang"]):
        assert key not in problems(command(*fine, f"{key}=token"))


@pytest.mark.parametrize(
    ("nodes", "per_node", "size", "fits"),
    [(1, 4, 2, True), (2, 4, 8, True), (2, 4, 3, False), (1, 4, 8, False), (2, 6, 4, True), (4, 3, 4, False)],
)
def test_engines_take_whole_ranks(command: Command, nodes: int, per_node: int, size: int, fits: bool) -> None:
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    world = [f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={per_node}", "data.train_batch_size=48"]
    found = problems(command(*world, f"{A}.ppo_mini_batch_size=24", f"{ROLLOUT}.name=sglang", f"{key}={size}"))
    assert (key not in found) == fits
    assert key not in problems(command(*world, f"{A}.ppo_mini_batch_size=24", f"{key}={size}"))  # hf


def test_gpus_missing_here_are_a_note(command: Command) -> None:
    one_each = [f"{A}.ppo_micro_batch_size_per_gpu=1", "critic.ppo_micro_batch_size_per_gpu=1"]
    words = command("trainer.device=cuda", "trainer.n_gpus_per_node=4", *one_each)
    assert problems(words) == {}
    if not Path("/dev/nvidia3").exists():
        assert "this machine has" in notes(words)["trainer.n_gpus_per_node"]


def test_all_at_once(command: Command) -> None:
    words = command(
        "trainer.loger=[console]",  # unknown
        "trainer.device=tpu",  # choice
        f"{A}.ppo_mini_batch_size=16",  # arithmetic
        "data.val_files=/no/file.parquet",  # files
        "custom_reward_function.path=/no/file.py",
    )
    assert list(problems(words)) == [
        "trainer.loger",
        "trainer.device",
        f"{A}.ppo_mini_batch_size",
        "data.val_files",
        "custom_reward_function.path",
    ]


def test_a_wrong_value_makes_no_second_problem(command: Command) -> None:
    assert list(problems(command("data.train_batch_size=many"))) == ["data.train_batch_size"]
    assert list(problems(command(f"{A}.ppo_mini_batch_size=0"))) == [f"{A}.ppo_mini_batch_size"]
    assert list(problems(command("trainer.nnodes=0"))) == ["trainer.nnodes"]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("critic.enable=False", "critic.enable"),
        ("data.prompt_key=data_source", "data.prompt_key"),
        ("critic.optim.betas=[0.9]", "critic.optim.betas"),
        (
            "critic.model.fsdp_config.dtype=fp16 critic.model.fsdp_config.model_dtype=bf16",
            "critic.model.fsdp_config.dtype",
        ),
        ("actor_rollout_ref.actor.optim.betas=[0.9,1.0]", "actor_rollout_ref.actor.optim.betas"),
    ],
)
def test_settings_that_only_fail_later_are_found_now(command: Command, word: str, key: str) -> None:
    assert key in problems(command(*word.split()))
