"""The keys of conversations, each default in exactly this place. A part of `schema.Config`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AgentConfig:
    """Ours: rollouts as conversations with an environment."""

    env: str | None = (
        None  # frozen_lake, roll_frozen_lake, sokoban, several, search, or a class, FILE.py:CLASS; null: none, one turn
    )
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
class SearchRewardConfig:
    """Search-R1's rewards for form (v0.3: 0.2, 0.1, 0), of data sources of questions and answers."""

    structure_format_score: float = 0.0  # tags in order, answer wrong; so much less for a right one out of order
    final_format_score: float = 0.0  # a wrong answer, tags not in order
    retrieval_score: float = 0.0  # beside structure_format_score, where a target was retrieved
    match: str = "em"  # ours: em (the answer is a target) | subem (it contains one)
