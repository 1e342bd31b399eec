"""The keys of conversations, each default in exactly this place. A part of `schema.Config`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AgentConfig:
    """Ours: rollouts as conversations with an environment."""

    # frozen_lake, roll_frozen_lake, sokoban, several, search, tools; a class, FILE.py:CLASS; a library's; null: none
    env: str | None = None
    env_kwargs: list[str] = field(default_factory=list)  # of its constructor, as {size:3} or [size:3]
    tags: list[str] = field(
        default_factory=list
    )  # of env=several, [A:3,B:1]: three tasks of A, one of B; []: all alike
    val_tags: list[str] = field(default_factory=list)  # the same of validation
    episodes: int = (
        1024  # tasks of an epoch, each an environment's seed: what the rows of data.train_files are otherwise
    )
    val_episodes: int = 64  # tasks of validation, of other seeds; 0: no validation
    max_turns: int = 10  # of a trajectory
    max_turn_tokens: int | None = None  # sampled in a turn; null: data.max_response_length, which all turns share
    max_observation_tokens: int | None = None  # of what the environment answers, cut on its right; null: no limit
    max_context_tokens: int | None = None  # before a turn, prompt included; null: both limits of data together
    rows: str = "conversation"  # what a row of the batch is: conversation | turn (with a prompt of its own)
    history_length: int = 5  # turns that such a prompt tells of, its own included
    reward: str = "turn"  # turn (each on its turn's last token) | last (their sum on the trajectory's last)
    template: str | None = None  # each observation's message, such as "Turn {turn_idx}: {observation}"; null: as it is
    system_template: str | None = None  # what is said before the first one
    speech: str | None = None  # chat | plain; null: chat where the tokenizer has a template
    isolate: bool = True  # a process for each environment; False: in the rank's own, without deadlines, for a debugger
    max_envs: int = 128  # environments at once, for each engine
    turn_timeout: float | None = 60.0  # seconds that reset or step may take; null: no limit
    trajectory_timeout: float | None = 600.0  # seconds that a trajectory may take, its generation included; null: none
    on_failure: str = "drop_row"  # drop_row | drop_group (all samples of its prompt), where an environment fails
    min_kept: float = 0.9  # the least share of a step's trajectories that must be whole; less is an error


@dataclass(frozen=True)
class MultiTurnConfig:
    """verl's: conversations with tools."""

    enable: bool = False  # rows are conversations with tools; True is agent.env=tools
    max_assistant_turns: int | None = None  # of a conversation; null, 0: as many as there is room for
    max_user_turns: int | None = None  # answers of tools in a conversation; null, 0: as many as there is room for
    tool_config_path: str | None = None  # verl's YAML: tools: [{class_name, config, tool_schema}]
    function_tool_path: str | None = None  # a Python file with functions under @function_tool
    max_parallel_calls: int = 1  # of a turn; calls beyond it are not carried out
    max_tool_response_length: int = 256  # characters of a tool's answer; the others are cut off
    tool_response_truncate_side: str = "middle"  # left (keeps the end) | right (keeps the beginning) | middle
    format: str = "hermes"  # how calls are written: hermes (<tool_call>{JSON}</tool_call>)


@dataclass(frozen=True)
class AgentLoopConfig:
    """verl's: how rows are played that do not say it themselves, by `agent_name`."""

    default_agent_loop: str | None = None  # tool_agent | single_turn_agent; null: tool_agent with multi_turn.enable


@dataclass(frozen=True)
class SearchRewardConfig:
    """Search-R1's rewards for form (v0.3: 0.2, 0.1, 0), of data sources of questions and answers."""

    structure_format_score: float = 0.0  # tags in order, answer wrong; so much less for a right one out of order
    final_format_score: float = 0.0  # a wrong answer, tags not in order
    retrieval_score: float = 0.0  # beside structure_format_score, where a target was retrieved
    match: str = "em"  # ours: em (the answer is a target) | subem (it contains one)
