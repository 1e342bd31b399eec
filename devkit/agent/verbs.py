"""`devkit agent`: environments, conversations. Each verb is a short function over one module, imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devkit.debug.verbs import Json
from devkit.durations import duration

LARGEST_SEED = 2**32 - 1  # that numpy, torch and gymnasium take
app = typer.Typer(name="agent", help="Check and play environments, show and replay conversations.")


@app.command()
def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help="frozen_lake, search, FILE.py:CLASS of yours, gem:ID.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="As for the training: agent.max_turns=5 actor_rollout_ref.model.path=DIR.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of episodes, each played twice.")] = 8,
    action: Annotated[
        list[str] | None,
        typer.Option(metavar="WORDS", help="What the model might say; repeatable [default: texts of several kinds]."),
    ] = None,
    timeout: Annotated[
        float | None, duration(help="Time limit for one reset or step [default: agent.turn_timeout].")
    ] = None,
    json: Json = False,
) -> int:
    """Play an environment without a model and check what it gives.

    Each episode is played twice, in processes of their own. With a model's path, its tokenizer and chat template are
    checked, too; nothing needs a GPU.
    """
    from devkit.agent.check import CheckOptions, main

    return main(CheckOptions(env, tuple(overrides or ()), episodes, tuple(action or ()), timeout, json))


@app.command()
def play(
    env: Annotated[str, typer.Argument(metavar="ENV", help="frozen_lake, search, FILE.py:CLASS of yours, gem:ID.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="As for the training: agent.max_turns=5 agent.speech=plain."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Show the tokens of this one [default: actor_rollout_ref.model.path]."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=LARGEST_SEED, help="The environment's [default: the run's first]."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="WORDS", help="What stands before the first turn: of search.")
    ] = None,
    json: Json = False,
) -> int:
    """Play an environment in the model's place.

    Each line of the input is what a model would say; what it would be given, token by token with its mask, is shown.
    Ctrl-D ends. The environment lives in this process: breakpoint() works.
    """
    from devkit.agent.play import PlayOptions, main

    return main(PlayOptions(env, tuple(overrides or ()), tokenizer, seed, prompt, json))


@app.command()
def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Samples of a step: STEP.jsonl in trainer.rollout_data_dir.")
    ],
    row: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show this conversation, counted from 1 [default: a list].")
    ] = None,
    turn: Annotated[int | None, typer.Option(metavar="N", min=1, help="Show only this turn of it.")] = None,
    json: Json = False,
) -> int:
    """Show recorded conversations, turn by turn.

    What the model said, and is trained on, is marked; so is what the environment answered, with its reward and time.
    """
    from devkit.agent.show import main

    return main(file, row, turn, json=json)


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Samples of a step: STEP.jsonl in trainer.rollout_data_dir.")
    ],
    row: Annotated[int, typer.Option(metavar="N", min=1, help="The conversation, counted from 1.")],
    turn: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop behind this turn.")] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ENV",
            help="The environment, or where its file lies now: FILE.py:CLASS [default: as recorded].",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run the code, or ask the server, that FILE names: you know who wrote it."),
    ] = False,
    json: Json = False,
) -> int:
    """Play a recorded conversation again, without a model.

    What the model said goes into a fresh environment with the recorded seed, in this process: breakpoint() and pdb
    work. The first answer that is not as recorded is named; then the exit code is 1.

    What FILE names runs without --env or --trust only if it is an environment of the trainer's own.
    """
    from devkit.agent.replay import ReplayOptions, main

    return main(ReplayOptions(file, row, turn, env, trust, json))
