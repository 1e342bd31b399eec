"""What a launch script finds in place of Ray and of the trainer; runs as `sitecustomize`, or as a program of the PATH.

It is copied out of the package and runs in whatever Python the script uses: standard library only, nothing of devkit.
The first trainer command is told to devkit through a FIFO, and then waits to be ended with its script. `ray job submit`
runs its entry point here. What would start or ask a cluster, a container or another machine does nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

FIFO = "DEVKIT_STANDIN_FIFO"  # where the trainer's command is told
FOLDER = "DEVKIT_STANDIN_FOLDER"  # where this file and the programs that lead to it are
SITE, BIN = "site", "bin"  # in it
MODULE = re.compile(r"(verl\.)?trainer\.main_ppo|(.*/)?(verl/)?trainer/main_ppo\.py")
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
ELSEWHERE = ("docker", "podman", "srun", "ssh", "singularity", "apptainer", "enroot", "mpirun", "mpiexec")
PYTHONS = ("python", "python3")
PROGRAMS = ("ray", *PYTHONS, *ELSEWHERE)
CLUSTER = ("start", "stop", "up", "down", "status", "health-check", "attach", "exec", "submit", "job")
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
SUBMIT_DIR, SUBMIT_ENV = "--working-dir", "--runtime-env-json"


def trainer_of(words: Sequence[str]) -> list[str] | None:
    """What stands behind the trainer's module, None if it is not there; wrappers may stand before it.

    >>> trainer_of(["torchrun", "-m", "verl.trainer.main_ppo", "a=1"])
    ['a=1']
    >>> trainer_of(["python3", "-m", "pip", "list"])
    """
    for at, word in enumerate(words):
        if MODULE.fullmatch(word):
            return list(words[at + 1 :])
    return None


def python_target(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """What a Python was told to run: ("-m", MODULE), ("file", PATH) or ("", ""); and the words behind it.

    >>> python_target(["python3", "-u", "-X", "dev", "-m", "verl.trainer.main_ppo", "a=1"])
    ('-m', 'verl.trainer.main_ppo', ['a=1'])
    >>> python_target(["python3", "-c", "print()"])
    ('', '', [])
    """
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word in WITH_VALUE:
            rest = rest[1:]
        elif re.fullmatch(r"-[a-zA-Z]*m", word) and rest:
            return "-m", rest[0], rest[1:]
        elif re.fullmatch(r"-[a-zA-Z]*m.+", word):
            return "-m", word.partition("m")[2], rest
        elif re.fullmatch(r"-[a-zA-Z]*c.*", word):
            return "", "", []
        elif not word.startswith("-"):
            return "file", word, rest
    return "", "", []


def say(text: str) -> None:
    sys.stderr.write(f"devkit smoke: {text}\n")
    sys.stderr.flush()


def tell(arguments: list[str]) -> NoReturn:
    """Hands the command over, and waits for the end of the script: nothing behind it shall run."""
    place = os.environ[FIFO]
    document = {"arguments": arguments, "folder": os.getcwd(), "python_path": os.environ.get("PYTHONPATH", "")}
    with open(place, "w") as fifo:
        fifo.write(json.dumps(document) + "\n")
    while True:
        import signal

        signal.pause()


def as_python(words: Sequence[str]) -> None:
    """At the start of any Python: whether it is the trainer, a launcher of it, or `ray`."""
    kind, target, rest = python_target(words)
    name = os.path.basename(target)
    if MODULE.fullmatch(target):
        tell(rest)
    elif kind and (name in LAUNCHERS or target in LAUNCHERS):
        found = trainer_of(rest)
        if found is not None:
            tell(found)
    elif kind == "file" and name == "ray" and rest[:1] and rest[0] in CLUSTER:
        sys.exit(ray(rest))


def ray(words: list[str]) -> int:
    """`ray WORDS`: only `job submit` does something."""
    if words[:2] == ["job", "submit"] and "--" in words:
        return submit(words[2 : words.index("--")], words[words.index("--") + 1 :])
    say(f"skipped: ray {shlex.join(words)}")
    return 0


def submit(options: list[str], entry: list[str]) -> NoReturn:
    """Runs a job's entry point as Ray does, by a shell, in its folder and with its variables."""
    environ = dict(os.environ)
    folder = option(options, SUBMIT_DIR)
    try:
        runtime = json.loads(option(options, SUBMIT_ENV) or "{}")
    except (ValueError, RecursionError):
        runtime = {}
    runtime = runtime if isinstance(runtime, dict) else {}
    variables = runtime.get("env_vars")
    variables = variables if isinstance(variables, dict) else {}
    environ.update({str(name): str(value) for name, value in variables.items() if name != "PATH"})
    folder = folder or str(runtime.get("working_dir") or "")
    if folder and os.path.isdir(folder):
        os.chdir(folder)
    os.execvpe("sh", ["sh", "-c", shlex.join(entry)], environ)


def option(words: list[str], name: str) -> str | None:
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
    return None


def python(name: str, words: list[str]) -> NoReturn:
    """The Python that is meant, with this file as its `sitecustomize` also where the script has set PYTHONPATH anew."""
    as_python([name, *words])
    folder = os.environ[FOLDER]
    site, own = os.path.join(folder, SITE), os.path.join(folder, BIN)
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != site]
    os.environ["PYTHONPATH"] = os.pathsep.join([site, *path])
    places = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if each != own]
    real = shutil.which(name, path=os.pathsep.join(places)) or sys.executable
    os.execv(real, [name, *words])


def as_program(name: str, words: list[str]) -> int:
    """`docker`, `srun` and others: a trainer behind them counts as if it were called here."""
    if name in PYTHONS:
        python(name, words)
    if name == "ray":
        return ray(words)
    found = trainer_of(words)
    if found is not None:
        tell(found)
    for at, word in enumerate(words):
        if "main_ppo" in word and at and re.fullmatch(r"-[a-z]*c", words[at - 1]):  # bash -c "..."
            os.execvp("sh", ["sh", "-c", word])
    if words and "main_ppo" in words[-1]:  # ssh HOST "..."
        os.execvp("sh", ["sh", "-c", words[-1]])
    say(f"skipped: {name} {shlex.join(words)}")
    return 0


def run_next() -> None:
    """The `sitecustomize` that this Python would have run without ours."""
    import importlib.util

    for entry in sys.path:
        path = os.path.join(entry, "sitecustomize.py")
        if os.path.isfile(path) and os.path.realpath(path) != os.path.realpath(__file__):
            spec = importlib.util.spec_from_file_location("sitecustomize", path)
            if spec is not None and spec.loader is not None:
                sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            return


if __name__ == "sitecustomize" and FIFO in os.environ:
    as_python(sys.orig_argv)
    run_next()
elif __name__ == "__main__":
    sys.exit(as_program(sys.argv[1], sys.argv[2:]))
