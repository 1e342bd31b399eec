"""What a training command asks of a cluster: its nodes, GPUs and CPUs. Parsed by `devkit lint`'s means, never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import isfile

from devkit.doctor.plan import Demand
from devkit.lint.launch import Launch, Training
from devkit.lint.read import Wish, read, sources
from trainer.config import resolve
from trainer.config.search_r1 import URL
from trainer.teams import ranks_of

_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_URL = "retriever.url"
_TP, _ENGINE = "actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.name"
_VERL_DEFAULTS = {_NODES: 1, _GPUS: 8, _TP: 2}
_MOST = 1_000_000  # nodes or GPUs; more is a slip of the keyboard


@dataclass(frozen=True)
class Wanted:
    """What the command asks for, and what of it can't be told."""

    demands: tuple[Demand, ...] = ()
    gaps: tuple[str, ...] = ()


def wanted(words: Sequence[str]) -> Wanted:
    """The demands of every training command in it. Raises UsageError for a file that can't be read."""
    if not words:
        return Wanted()
    is_file = len(words) == 1 and isfile(words[0])
    given = sources(words, (), None) if is_file else sources((), words, None)
    demands: list[Demand] = []
    gaps: list[str] = []
    for source in given:
        launch, _ = read(source, Wish())
        for training in launch.trainings:
            found = _demand(launch, training)
            if isinstance(found, Demand):
                demands.append(found)
            else:
                gaps.append(found)
        if not launch.trainings:
            gaps.append(f"{source.name} runs neither trainer.main_ppo nor verl.trainer.main_ppo")
    return Wanted(tuple(demands), tuple(gaps))


def without_gpus(demand: Demand, *, any_gpus: bool) -> Demand:
    """The demand on this cluster: our trainer takes a CPU slot per rank where there is no GPU."""
    is_ours = "verl" not in demand.command
    return replace(demand, gpus=False) if is_ours and not any_gpus else demand


def _demand(launch: Launch, training: Training) -> Demand | str:
    line = launch.source.place(training.module.span).line
    place = f"{launch.source.name}:{line}"
    unknown = [training.by_key[key] for key in (_NODES, _GPUS, _TP) if key in training.by_key]
    unclear = [argument.text for argument in unknown if not argument.known or training.number(argument.key, 0) is None]
    if unclear:
        return f"{place}: {unclear[0]}"
    return _of_ours(training, place) if training.is_ours else _of_verl(training, place)


def _of_ours(training: Training, place: str) -> Demand | str:
    """By the trainer's own reading of it: defaults, renames and dialects are its."""
    config = resolve([argument.text for argument in training.overrides if argument.known]).config
    if not 0 < config.world_size < _MOST:
        return f"{place}: {config.trainer.nnodes} nodes x {config.trainer.n_gpus_per_node}"
    generating = ranks_of(config, "rollout")
    return Demand(
        command=training.module.text,
        place=place,
        nodes=config.trainer.nnodes,
        per_node=config.trainer.n_gpus_per_node,
        gpus=config.trainer.device != "cpu",
        tensor_parallel=config.ranks_per_engine,
        engine=config.actor_rollout_ref.rollout.name,
        generating=generating if len(generating) < config.world_size else (),
        retriever=(config.retriever.url or "") if config.agent.env is not None else "",
        topk=config.retriever.topk,
    )


def _of_verl(training: Training, place: str) -> Demand | str:
    """One GPU and one CPU per rank, and a CPU for the task that holds the driver."""
    numbers = {key: training.number(key, default) for key, default in _VERL_DEFAULTS.items()}
    if any(number is None or not 1 <= number < _MOST for number in numbers.values()):
        return f"{place}: {', '.join(f'{key}={number:g}' for key, number in numbers.items() if number is not None)}"
    nodes, per_node, group = (int(numbers[key] or 1) for key in (_NODES, _GPUS, _TP))
    return Demand(
        command=training.module.text,
        place=place,
        nodes=nodes,
        per_node=per_node,
        gpus=training.value("trainer.device") != "cpu",
        extra_cpus=1.0,
        tensor_parallel=1 if training.value(_ENGINE) == "hf" else group,
        engine=training.value(_ENGINE) or "",
        retriever=_retriever_of_search_r1(training),
        topk=int(training.number("retriever.topk", 3) or 3),
    )


def _retriever_of_search_r1(training: Training) -> str:
    """Where it is by default, if the command has keys of its; empty where it does not search."""
    keys = {"max_turns", "do_search", _URL} & training.by_key.keys()
    return (training.value(_URL) or URL) if keys and training.is_on("do_search", True) else ""
