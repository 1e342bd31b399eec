"""Launch commands as people write them, with keys that are rarely used: what is not there is told in a line of its own.

Each changes what is learned, so none may be one name among twenty in a note.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainer import main_ppo

A, O, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"  # noqa: E741
# Whose command, its words, and those of them that have to be told; the others act, or change nothing that is learned.
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "verl's DAPO": (
        [
            *("algorithm.adv_estimator=grpo", f"{O}.n=4", f"{A}.clip_ratio_low=0.2", f"{A}.clip_ratio_high=0.28"),
            *("data.gen_batch_size=24", "algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"),
            *("reward_model.reward_manager=dapo", "+reward_model.reward_kwargs.overlong_buffer_cfg.len=4096"),
        ],
        [
            *("data.gen_batch_size", "algorithm.filter_groups.enable", "reward_model.reward_manager"),
            "reward_model.reward_kwargs.overlong_buffer_cfg.len",
        ],
    ),
    "verl's DAPO with its filter off": (
        ["algorithm.filter_groups.enable=False", "algorithm.filter_groups.max_num_gen_batches=10"],
        [],
    ),
    "Dr. GRPO": (
        [
            *("algorithm.adv_estimator=grpo", f"{O}.n=4", "algorithm.norm_adv_by_std_in_grpo=False"),
            *(f"{A}.loss_agg_mode=seq-mean-token-sum-norm", f"{A}.loss_scale_factor=8", f"{A}.use_kl_loss=False"),
        ],
        [],
    ),
    "GSPO": (
        [f"{A}.policy_loss.loss_mode=gspo", f"{A}.clip_ratio_low=3e-4", f"{A}.loss_agg_mode=seq-mean-token-mean"],
        [f"{A}.policy_loss.loss_mode"],
    ),
    "a curriculum over a data set of one's own": (
        [
            *("data.custom_cls.path=/x/data.py", "data.custom_cls.name=Mine", "data.dataloader_num_workers=0"),
            *("data.sampler.class_path=/x/sampler.py", "data.sampler.class_name=Curriculum"),
        ],
        ["data.custom_cls.path", "data.custom_cls.name", "data.sampler.class_path", "data.sampler.class_name"],
    ),
    "Qwen3 without thinking": (
        ["+data.apply_chat_template_kwargs.enable_thinking=False", f"{M}.override_config.attention_dropout=0.1"],
        ["data.apply_chat_template_kwargs.enable_thinking", f"{M}.override_config.attention_dropout"],
    ),
    "an optimizer of 8 bits": (
        [f"{A}.optim.optimizer=AdamW8bit", f"{A}.optim.optimizer_impl=bitsandbytes.optim", f"{A}.optim.num_cycles=0.5"],
        [f"{A}.optim.optimizer", f"{A}.optim.optimizer_impl"],
    ),
    "an engine of 8 bits": (
        [f"+{O}.engine_kwargs.vllm.quantization=fp8", f"+{O}.engine_kwargs.vllm.swap_space=8", f"{O}.mode=async"],
        [f"{O}.engine_kwargs.vllm.quantization"],
    ),
    "LoRA": (
        [f"{M}.lora_rank=32", f"{M}.lora_alpha=32", f"{M}.target_modules=all-linear", f"{O}.load_format=safetensors"],
        [],
    ),
    "from the weights of an earlier run": (
        [f"{A}.checkpoint.load_contents=['model']", f"{M}.external_lib=my.plugin"],
        [f"{A}.checkpoint.load_contents", f"{M}.external_lib"],
    ),
    "tools (multi-turn)": (
        [
            *(f"{O}.multi_turn.enable=True", f"{O}.multi_turn.tool_config_path=/x.yaml", "data.return_raw_chat=True"),
            *(f"{O}.agent.default_agent_loop=tool_agent", f"{O}.mode=async"),
        ],
        [
            f"{O}.multi_turn.tool_config_path",  # the file is not there
        ],
    ),
    "rejection by importance ratios": (
        ["algorithm.rollout_correction.rollout_is=sequence", "algorithm.rollout_correction.rollout_rs=token"],
        ["algorithm.rollout_correction.rollout_rs"],
    ),
    "Search-R1 with rewards for the format": (
        [
            *("do_search=true", "max_turns=4", "+reward_model.structure_format_score=0.2", f"{O}.n_agent=5"),
            *("+reward_model.final_format_score=0.1", "algorithm.no_think_rl=false"),
        ],
        [],  # all of it acts
    ),
    "a reward function with arguments": (
        ["+custom_reward_function.reward_kwargs.alpha=0.5", "+reward_model.reward_kwargs.beta=1"],
        ["custom_reward_function.reward_kwargs.alpha", "reward_model.reward_kwargs.beta"],
    ),
    "ROLL": (
        ["rollout_batch_size=64", "actor_train.training_args.learning_rate=1e-6", "init_kl_coef=0.1", "reward_clip=5"],
        ["rollout_batch_size", "actor_train.training_args.learning_rate", "init_kl_coef", "reward_clip"],
    ),
    "TRL": (["--learning_rate", "1e-6", "--num_generations", "8"], ["--learning_rate", "--num_generations"]),
    "a file of Hydra's": (
        ["--config-path=/x", "--config-name=gsm8k_multiturn_grpo"],
        ["--config-path", "--config-name"],
    ),
    "a group of Hydra's": (
        ["actor@actor_rollout_ref.actor=megatron_actor", "+experiment=gsm8k"],
        ["actor@actor_rollout_ref.actor", "experiment"],
    ),
}
Command = Callable[..., list[str]]


@pytest.mark.parametrize(("words", "lost"), COMMANDS.values(), ids=COMMANDS)
def test_what_is_lost_is_told(
    words: list[str], lost: list[str], command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    main_ppo.main(["--check", *command(*words)])
    lines = capfd.readouterr().err.splitlines()
    told = " ".join(line for line in lines if line.startswith(("error: ", "warning: ")))
    assert [key for key in lost if key not in told] == []
    # What is not lost is told neither as an error nor as a warning.
    others = {word.lstrip("+").partition("=")[0] for word in words if "=" in word} - set(lost)
    assert [key for key in others if f" {key}=" in told or f"no key {key}" in told] == []
    # And no note says of a key that it is taken which an error says does not exist.
    unknown = {line.rpartition(" ")[2] for line in lines if line.startswith("error: there is no key ")}
    assert [line for line in lines if line.endswith("it is accepted here") and unknown & set(line.split())] == []


def test_a_file_of_hydras_has_a_hint(capfd: pytest.CaptureFixture[str]) -> None:
    assert main_ppo.main(["--config-name=gsm8k_multiturn_grpo"]) == 2
    hint = "hint: Hydra's files are not read here: give each of their values as KEY=VALUE"
    assert capfd.readouterr().err.splitlines()[-1] == hint
