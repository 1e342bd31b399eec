"""Files and commands to `Launch`: shell, sbatch, dstack's YAML, the shell blocks of a Markdown page, words."""

from __future__ import annotations

import errno
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import isfile

from devkit.errors import UsageError
from devkit.lint.dstack import read_dstack
from devkit.lint.gpus import Gpu
from devkit.lint.launch import Kind, Launch, gpu_of, trainings_of, units_of, units_of_blocks
from devkit.lint.records import Finding
from devkit.lint.source import Source, Text, line_starts
from devkit.reading import read_regular

_PRAGMA = re.compile(r"#\s*devkit-lint:\s*(allow|for)=([\w.,-]+)")
_FENCE = re.compile(rb"[ \t]*(```+|~~~+)[ \t]*(\w*)")
_SHELL_FENCES = frozenset({b"bash", b"sh", b"shell", b"zsh"})
_COMMAND_LINE = re.compile(rb"\s*(?:\$ )?(?:export|pip3?|git|ray|docker|python3?|bash|srun|source|cd|curl|sudo|ssh)\s")
_SBATCH = re.compile(r"^#SBATCH\s+(-{1,2}[\w-]+)(?:[= ]\s*(\S+))?", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
LARGEST = 1_000_000  # bytes of a script; a larger one is something else


@dataclass(frozen=True)
class Wish:
    """What the user says beside the files."""

    target: str | None = None
    gpu: Gpu | None = None


def sources(files: Sequence[str], words: Sequence[str], stdin: bytes | None) -> list[Source]:
    """What there is to lint.

    Raises:
        UsageError: a file can't be read, or there is nothing to lint.
    """
    if len(words) >= 2 and words[0].rpartition("/")[2] in ("bash", "sh") and isfile(words[1]):
        return [*(_file(name, stdin) for name in files), _file(words[1], None)]
    found = [_file(name, stdin) for name in files]
    if len(words) == 1 and words[0].split() != list(words):  # a whole command in quotes
        found.append(Source.of_text("command", f"{words[0]}\n"))
    elif words:
        found.append(Source.of_text("command", " \\\n    ".join(shlex.quote(word) for word in words) + "\n"))
    if not found:
        hint = "devkit lint run.sh, or devkit lint -- python3 -m verl.trainer.main_ppo ..."
        raise UsageError("nothing to lint", hint=hint)
    return found


def _file(name: str, stdin: bytes | None) -> Source:
    too_large = UsageError(f"{name} is too large to be a launch script", hint="pass the script itself")
    if name == "-":
        if len(stdin or b"") > LARGEST:
            raise too_large
        return Source("stdin", stdin or b"")
    if name.endswith(".py"):
        hint = f"lint reads the script that starts it, or its command: devkit lint -- python {name} KEY=VALUE ..."
        raise UsageError(f"{name} is a Python program, not a launch script", hint=hint)
    try:
        return Source(name, read_regular(name, LARGEST))
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EFBIG:
            raise too_large from None
        hint = "devkit lint FILE takes files; a command goes after --: devkit lint -- python3 -m ..."
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}", hint=hint) from error


def read(source: Source, wish: Wish) -> tuple[Launch, tuple[Finding, ...]]:
    """A source as the rules see it, and what is wrong with its own form."""
    text = source.data.decode("utf-8", "replace")
    target = wish.target or next((value for name, value in _PRAGMA.findall(text) if name == "for"), None)
    if source.name.endswith((".yml", ".yaml")):
        return read_dstack(source, target, wish.gpu)
    if source.name.endswith((".md", ".rst", ".txt")):
        units = tuple(units_of_blocks(list(_blocks(source))))
        return Launch(source, "document", units, trainings_of(units), target, gpu_of(source, wish.gpu)), ()
    slurm = slurm_of(text)
    kind: Kind = "command" if source.name == "command" else "sbatch" if slurm else "shell"
    return _launch(source, Text.whole(source), kind, slurm, target, wish.gpu), ()


def allowed(source: Source) -> frozenset[str]:
    """The rules that `# devkit-lint: allow=RULE,...` turns off."""
    text = source.data.decode("utf-8", "replace")
    return frozenset(rule for name, value in _PRAGMA.findall(text) if name == "allow" for rule in value.split(","))


def _launch(
    source: Source, text: Text, kind: Kind, asked_of_slurm: Mapping[str, int], target: str | None, gpu: Gpu | None
) -> Launch:
    units = tuple(units_of(text, dict(_given(asked_of_slurm))))
    return Launch(source, kind, units, trainings_of(units), target, gpu_of(source, gpu), asked_of_slurm)


def _blocks(source: Source) -> Iterator[Text]:
    """The shell blocks of a page; a block that doesn't say what it is counts if it looks like shell."""
    whole, starts = Text.whole(source), [*line_starts(source.data), len(source.data)]
    lines = [source.data[start:end] for start, end in pairwise(starts)]
    ends: dict[bytes, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(), []).append(number)
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        is_underline = fence is not None and fence[1][:1] == b"~" and number > 0 and bool(lines[number - 1].strip())
        number += 1
        closing = ends.get(fence[1], []) if fence else []
        index = bisect_left(closing, number)
        if fence is None or is_underline or index == len(closing):
            continue
        start, end = starts[number], starts[closing[index]]
        number = closing[index] + 1
        if fence[2] in _SHELL_FENCES or (not fence[2] and _COMMAND_LINE.match(source.data, start, end)):
            yield whole.cut(start, end)


def slurm_of(text: str) -> dict[str, int]:
    """What `#SBATCH` lines ask for, by the options' long names."""
    found: dict[str, int] = {}
    for name, value in _SBATCH.findall(text):
        option = _SHORT.get(name, name).removeprefix("--")
        number = re.search(r"(\d{1,6})$", value or "") if option in ("gres", "gpus-per-node", "gpus") else None
        number = number or re.match(r"(\d{1,6})(?=$|-)", value or "")
        if option == "gres" and "gpu" in (value or ""):
            option = "gpus-per-node"
        if number:
            found[option] = int(number[1])
    return found


def _given(asked: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The variables that Slurm sets from what it is asked for."""
    names = {
        "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
        "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
        "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    }
    for option, variables in names.items():
        if option in asked:
            yield from ((variable, str(asked[option])) for variable in variables)
