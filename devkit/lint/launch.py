"""A launch as the rules see it: its scripts, its training commands, how many nodes and which GPUs it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from devkit.lint.gpus import Gpu, gpu_named_in
from devkit.lint.room import Room
from devkit.lint.shell import Command, Script, parse
from devkit.lint.source import Source, Text
from devkit.lint.values import Argument, Page, Scope

Kind = Literal["shell", "sbatch", "dstack", "command", "document"]
_SHELLS = frozenset({"bash", "sh", "zsh"})
_MODULE = re.compile(r"(verl\.)?trainer\.main_ppo|(.*/)?(verl/)?trainer/main_ppo\.py")
OVERRIDE = re.compile(r"[+~]{0,2}[a-z_]\w*(\.\w+)+=.*", re.DOTALL)
_WITH_VALUE = frozenset({"--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd", "--dialect"})
_NESTED = 4  # scripts in scripts in scripts
MOST_TRAININGS = 40  # commands of a file whose keys are looked at
MOST_OVERRIDES = 500  # words of such a command


@dataclass(frozen=True)
class Unit:
    """A script, or the text of a `bash -c` in one."""

    script: Script
    scope: Scope
    commands: tuple[tuple[Command, tuple[Argument, ...]], ...]
    is_inner: bool = False

    @cached_property
    def begins_with_override(self) -> bool:
        """Whether a command of it is an override: it was cut off from the one above."""
        return any(command.words and OVERRIDE.fullmatch(command.words[0].raw) for command, _ in self.commands)

    @cached_property
    def pipelines(self) -> Mapping[int, Sequence[tuple[Command, tuple[Argument, ...]]]]:
        """The commands of each pipeline, by where it begins."""
        found: dict[int, list[tuple[Command, tuple[Argument, ...]]]] = {}
        for command, words in self.commands:
            if command.pipe is not None:
                found.setdefault(command.pipe[0], []).append((command, words))
        return found


@dataclass(frozen=True)
class Training:
    """`... python3 -m verl.trainer.main_ppo KEY=VALUE ...`."""

    unit: Unit
    command: Command
    before: tuple[Argument, ...]  # up to the module: wrappers such as srun, docker exec, ray job submit
    module: Argument
    options: tuple[Argument, ...]  # such as --config-name
    overrides: tuple[Argument, ...]
    stray: tuple[Argument, ...]  # neither
    rest: tuple[Argument, ...]  # all that stands behind the module

    @property
    def is_ours(self) -> bool:
        return "verl" not in self.module.text

    @cached_property
    def by_key(self) -> Mapping[str, Argument]:
        """The last override of each key: it is the one that counts."""
        return {argument.key: argument for argument in self.overrides}

    def value(self, key: str) -> str | None:
        """The value of a key, if it is given and known."""
        argument = self.by_key.get(key)
        return argument.value if argument is not None and argument.known else None

    def number(self, key: str, default: float) -> float | None:
        """A key's number; None where it can't be known."""
        if key not in self.by_key:
            return default
        try:
            return float(self.value(key) or "")
        except ValueError:
            return None

    def is_on(self, key: str, default: bool) -> bool:
        value = self.value(key)
        return default if value is None else value.strip().lower() in ("true", "1", "yes", "on")

    @cached_property
    def is_abridged(self) -> bool:
        """Whether `...` stands for more overrides, or more of them were cut off and stand below."""
        return any(word.text in ("...", "\u2026") for word in self.stray) or self.unit.begins_with_override

    @cached_property
    def takes_more(self) -> bool:
        """Whether its caller can add overrides: `"$@"`, or a list that is filled elsewhere."""
        return any("$" in word.text and "=" not in word.text for word in self.rest)

    @property
    def through_jobs(self) -> bool:
        """Whether `ray job submit` carries it to the cluster."""
        return has_words(self.before, "ray", "job", "submit")


@dataclass(frozen=True)
class Launch:
    """What was given to lint."""

    source: Source
    kind: Kind
    units: tuple[Unit, ...]
    trainings: tuple[Training, ...]
    asked: str | None = None  # the target that the user named
    gpu: Gpu | None = None
    surroundings: Mapping[str, int] = field(default_factory=dict)  # what Slurm or dstack is asked for
    environment: tuple[Argument, ...] = ()  # NAME=VALUE of dstack's `env`

    @cached_property
    def environment_names(self) -> frozenset[str]:
        return frozenset(argument.text.partition("=")[0] for argument in self.environment)

    @cached_property
    def commands(self) -> tuple[tuple[Unit, Command, tuple[Argument, ...]], ...]:
        return tuple((unit, command, words) for unit in self.units for command, words in unit.commands)

    @cached_property
    def nodes(self) -> int:
        """The most nodes that anything in it speaks of."""
        found = [self.surroundings.get("nodes", 1)]
        for training in self.trainings:
            found.append(int(training.number("trainer.nnodes", 1) or 1))
        if any(joins(words) for _, _, words in self.commands):
            found.append(2)
        sizes = [value for name, value in self.settings if name == "WORLD_SIZE"]
        if any(name == "MASTER_ADDR" for name, _ in self.settings):
            found += [int(size.text) for size in sizes if size.text.isdecimal() and len(size.text) < 6]
        return max(found)

    @cached_property
    def settings(self) -> tuple[tuple[str, Argument], ...]:
        """Each variable with a value that it is given, in order: assignments, prefixes, `env`, docker's `-e`."""
        found: list[tuple[str, Argument]] = [_split(argument) for argument in self.environment]
        for unit in self.units:
            for assignment in unit.script.assignments:
                if assignment.value is not None:
                    value = unit.scope.text_of(assignment.value, assignment.at, assignment.branches)
                    argument = Argument(value.text, value.known, assignment.span, assignment.value.raw)
                    found.append((assignment.name, argument))
            for command, words in unit.commands:
                for prefix in command.prefixes:
                    if prefix.value is not None:
                        value = unit.scope.text_of(prefix.value, command.at, command.branches)
                        found.append((prefix.name, Argument(value.text, value.known, prefix.span, prefix.value.raw)))
                found += _passed_on(words)
        return tuple(found)

    @cached_property
    def _by_setting(self) -> Mapping[str, list[Argument]]:
        found: dict[str, list[Argument]] = {}
        for name, value in self.settings:
            found.setdefault(name, []).append(value)
        return found

    def settings_of(self, name: str) -> list[Argument]:
        return self._by_setting.get(name, [])


def joins(words: Sequence[Argument]) -> bool:
    """Whether it is the `ray start` of a node that joins others."""
    return has_words(words, "ray", "start") and any(word.text.startswith("--address") for word in words)


def has_words(words: Sequence[Argument], *wanted: str) -> bool:
    texts = [word.text.rpartition("/")[2] for word in words]
    return any(tuple(texts[i : i + len(wanted)]) == wanted for i in range(len(texts) - len(wanted) + 1))


def option(words: Sequence[Argument], *names: str) -> Argument | None:
    """The value of an option, written `--name=value` or `--name value`."""
    for i, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name in names and equals:
            return Argument(value, word.known, word.span, word.raw)
        if word.text in names and i + 1 < len(words):
            return words[i + 1]
    return None


def _passed_on(words: Sequence[Argument]) -> Iterator[tuple[str, Argument]]:
    """`docker run -e A=1 --env B=2` and `env C=3 python`."""
    is_container = bool(words) and any(word.text.rpartition("/")[2] in ("docker", "podman") for word in words[:3])
    for i, word in enumerate(words):
        if is_container and word.text in ("-e", "--env") and i + 1 < len(words) and "=" in words[i + 1].text:
            yield _split(words[i + 1])
        elif is_container and word.text.startswith("--env="):
            yield _split(Argument(word.text[6:], word.known, word.span, word.raw))
        elif words[0].text == "env" and re.fullmatch(r"[A-Za-z_]\w*=.*", word.text, re.DOTALL):
            yield _split(word)


def _split(argument: Argument) -> tuple[str, Argument]:
    name, _, value = argument.text.partition("=")
    return name, Argument(value, argument.known, argument.span, argument.raw)


def units_of(
    text: Text,
    given: Mapping[str, str],
    outer: Scope | None = None,
    depth: int = 0,
    *,
    room: Room | None = None,
    page: Page | None = None,
) -> list[Unit]:
    """A script and the scripts in it; `page` has what stands before it."""
    room, page = room or Room(), page or Page()
    script = parse(text, room)
    scope = Scope(script, given, outer, room=room, page=page, number=page.count)
    commands = tuple((command, scope.arguments(command)) for command in script.commands)
    units = [Unit(script, scope, commands, depth > 0)]
    for command in script.commands:
        inner = inner_text(script.text, command) if depth < _NESTED else None
        if inner is not None:
            around = replace(scope, at=command.at, branches=command.branches)
            units += units_of(inner, given, around, depth + 1, room=room, page=page)
    return units


def units_of_blocks(texts: Sequence[Text]) -> list[Unit]:
    """Scripts one after the other, as in a document: each sees what those before it set."""
    units: list[Unit] = []
    room, page = Room(), Page()
    for text in texts:
        found = units_of(text, {}, room=room, page=page)
        page.add(replace(found[0].scope, at=len(text.data)))
        units += found
    return units


def inner_text(text: Text, command: Command) -> Text | None:
    """The script that a command hands to another shell: `bash -c "..."`, `ssh host '...'`."""
    names = [word.raw for word in command.words]
    for i in range(1, len(names) - 1):
        if names[i - 1] in _SHELLS and re.fullmatch(r"-[a-z]*c", names[i]):
            return unquoted(text, command.words[i + 1].bounds)
    if names and names[0] == "ssh" and names[-1][:1] in ("'", '"'):
        return unquoted(text, command.words[-1].bounds)
    return None


def unquoted(text: Text, bounds: tuple[int, int]) -> Text:
    """A word without its quotes; variables stay as they are written."""
    data, offsets, i, quote = bytearray(), list[int](), bounds[0], b""
    while i < bounds[1]:
        byte = text.data[i : i + 1]
        following = text.data[i + 1 : i + 2]
        if byte == quote:
            quote = b""
        elif not quote and byte in (b"'", b'"'):
            quote = byte
        elif byte == b"\\" and quote != b"'" and following and (not quote or following in b'$`"\\'):
            i += 1
            data += following
            offsets.append(text.offsets[i])
        else:
            data += byte
            offsets.append(text.offsets[i])
        i += 1
    return Text(bytes(data), [*offsets, text.offsets[min(i, len(text.data))]])


def trainings_of(units: Sequence[Unit]) -> tuple[Training, ...]:
    found: list[Training] = []
    for unit in units:
        for command, words in unit.commands:
            if len(found) == MOST_TRAININGS:
                break
            at = next((i for i, word in enumerate(words) if i and _MODULE.fullmatch(word.text)), None)
            if at is not None and re.search(r"python|torchrun|-m$|run", words[at - 1].text):
                found.append(_training(unit, command, words, at))
    return tuple(found)


def _training(unit: Unit, command: Command, words: tuple[Argument, ...], at: int) -> Training:
    options: list[Argument] = []
    overrides: list[Argument] = []
    stray: list[Argument] = []
    rest = list(words[at + 1 : at + 1 + MOST_OVERRIDES])
    for i, word in enumerate(rest):
        is_value = bool(i) and rest[i - 1].text in _WITH_VALUE
        if word.text.startswith("-") or is_value:
            options.append(word)
        elif re.match(r"[+~]{0,2}[\w.@/]+=", word.text):
            overrides.append(word)
        elif word.known and not word.text.startswith("~"):
            stray.append(word)
    return Training(unit, command, words[:at], words[at], tuple(options), tuple(overrides), tuple(stray), tuple(rest))


def gpu_of(source: Source, asked: Gpu | None) -> Gpu | None:
    return asked or gpu_named_in(source.data.decode("utf-8", "replace"))
