"""What `devkit vscode init` writes: our launch configurations and tasks, and how they are told from a user's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
PREFIX = "devkit: "

# A run to begin with: GSM8K on two workers; what it needs is in docs/trainer.md.
TRAINER_ARGUMENTS = (
    "data.train_files=data/gsm8k/train.parquet",
    "data.val_files=data/gsm8k/test.parquet",
    "data.train_batch_size=32",
    "data.max_prompt_length=256",
    "data.max_response_length=128",
    "data.filter_overlong_prompts=True",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=2",
    "trainer.total_training_steps=4",
)

# Digests of entries as earlier versions of devkit wrote them: those may be brought up to date. Add, never remove.
FORMER: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Programs:
    """How the editor starts devkit and Python in a folder."""

    devkit: str
    python: str


@dataclass(frozen=True)
class Part:
    """One array of one file, whose entries are known by a name."""

    array: str
    key: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class File:
    """One file of `.vscode` and what we have in it."""

    name: str
    version: str
    about: str
    parts: tuple[Part, ...]


def programs_of(folder: Path) -> Programs:
    """Those of the folder's own environment, if it has one: an editor's PATH seldom has them."""
    if (folder / ".venv" / "bin" / "devkit").exists():
        return Programs("${workspaceFolder}/.venv/bin/devkit", "${workspaceFolder}/.venv/bin/python")
    return Programs("devkit", "python")


def files(programs: Programs) -> tuple[File, ...]:
    """Both files."""
    about = "devkit's entries are made by `devkit vscode init`; what you change in them stays"
    return (
        File(
            "launch.json",
            "0.2.0",
            about,
            (
                Part("configurations", "name", launch_configurations(programs)),
                Part("inputs", "id", (CRASH_INPUT,)),
            ),
        ),
        File("tasks.json", "2.0.0", about, (Part("tasks", "label", tasks(programs)),)),
    )


CRASH_INPUT: Entry = {
    "id": "devkitCrash",
    "type": "promptString",
    "description": "The crash's ID, as `devkit crashes` lists it",
}


def launch_configurations(programs: Programs) -> tuple[Entry, ...]:
    """The debug configurations of type `devkit`."""
    return (
        {
            "name": PREFIX + "run the current file",
            "type": "devkit",
            "request": "launch",
            "program": "${file}",
            "cwd": "${workspaceFolder}",
        },
        {
            "name": PREFIX + "attach to all stopped ranks",
            "type": "devkit",
            "request": "attach",
            "all": True,
        },
        {
            "name": PREFIX + "open a crash",
            "type": "devkit",
            "request": "attach",
            "crash": "${input:devkitCrash}",
        },
        {
            "name": PREFIX + "train with PPO",
            "type": "devkit",
            "request": "launch",
            "command": [programs.python, "-m", "trainer.main_ppo"],
            "args": list(TRAINER_ARGUMENTS),
            "cwd": "${workspaceFolder}",
        },
    )


def tasks(programs: Programs) -> tuple[Entry, ...]:
    """The tasks, each one command of devkit's."""
    return (
        {**_task(programs, "smoke test", "smoke", "--tiny"), "group": "test"},
        _task(programs, "start a debug cluster", "debug-cluster", "--nodes", "2"),
        _task(programs, "stop the debug cluster", "debug-cluster", "stop"),
    )


def _task(programs: Programs, label: str, *arguments: str) -> Entry:
    return {
        "label": PREFIX + label,
        "type": "process",
        "command": programs.devkit,
        "args": list(arguments),
        "problemMatcher": [],
    }


def is_ours(entry: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Whether an entry is as this or an earlier version of devkit wrote it, in this or another environment."""
    digest = digest_of(entry)
    return digest == digest_of(current) or digest in FORMER


def digest_of(entry: Mapping[str, Any]) -> str:
    """What an entry says, whichever environment its program is in."""
    command = entry.get("command")
    if isinstance(command, str):
        normal: Any = _name_of(command)
    elif isinstance(command, list) and command and isinstance(command[0], str):
        normal = [_name_of(command[0]), *command[1:]]
    else:
        normal = command
    document = json.dumps({**entry, "command": normal}, sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()[:16]


def _name_of(program: str) -> str:
    """
    >>> _name_of("${workspaceFolder}/.venv/bin/python3"), _name_of("mine")
    ('python', 'mine')
    """
    name = program.rpartition("/")[2]
    return "python" if name in ("python", "python3") else name
