"""dstack's YAML: its commands as one script, each byte with its place in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any

import yaml

from devkit.lint.gpus import Gpu, gpu_named
from devkit.lint.launch import Launch, gpu_of, trainings_of, units_of
from devkit.lint.records import Finding
from devkit.lint.source import Source, Span, Text, join
from devkit.lint.values import Argument
from devkit.reading import check_depth, yaml_loader


def read_dstack(source: Source, target: str | None, gpu: Gpu | None) -> tuple[Launch, tuple[Finding, ...]]:
    """The launch, and a finding where it is no YAML, or has no commands."""
    text = source.data.decode("utf-8", "replace")
    try:
        check_depth(text)
        root = yaml.compose(text, Loader=yaml_loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return _empty(source, target), (_unreadable(source, text, error),)
    fields = dict(_fields(root))
    commands = fields.get("commands")
    if not isinstance(commands, yaml.SequenceNode):
        message = "it has no commands"
        why, hint = "only dstack tasks, services and dev environments are supported", "see docs/lint.md"
        return _empty(source, target), (Finding("not-parsed", Span(0, 1), message, why, hint),)
    lines = [_text_of(text, node) for node in commands.value if isinstance(node, yaml.ScalarNode)]
    script = join(lines, b"\n") if lines else Text.whole(source).cut(0, 0)
    nodes = _number(fields.get("nodes")) or 1
    environment = tuple(_environment(text, fields.get("env")))
    units = tuple(units_of(script, {"DSTACK_NODES_NUM": str(nodes)} | dict(_known(environment))))
    known = gpu or _gpu(fields.get("resources"))
    launch = Launch(
        source,
        "dstack",
        units,
        trainings_of(units),
        target,
        gpu_of(source, known),
        {"nodes": nodes},
        environment,
    )
    return launch, ()


def _empty(source: Source, target: str | None) -> Launch:
    return Launch(source, "dstack", (), (), target)


def _unreadable(source: Source, text: str, error: Exception) -> Finding:
    mark = getattr(error, "problem_mark", None)
    at = _byte(text, mark.index) if mark is not None else 0
    said = getattr(error, "problem", None) or type(error).__name__
    why, hint = "dstack can't read it either", "look at the indentation of this line and of those above it"
    return Finding("not-parsed", Span(at, at + 1), f"invalid YAML: {said}", why, hint, "error")


def _fields(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield str(key.value), value


def _environment(text: str, node: Any) -> Iterator[Argument]:
    """`env`, as a list of NAME=VALUE or as a mapping."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.ScalarNode):
                yield Argument(str(item.value), "=" in str(item.value), _span(text, item), str(item.value))
    for name, value in _fields(node):
        if isinstance(value, yaml.ScalarNode):
            yield Argument(f"{name}={value.value}", True, _span(text, value), str(value.value))


def _known(environment: tuple[Argument, ...]) -> Iterator[tuple[str, str]]:
    for argument in environment:
        name, equals, value = argument.text.partition("=")
        if equals:
            yield name, value


def _number(node: Any) -> int | None:
    value = getattr(node, "value", None)
    return int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,6}", value) else None


def _gpu(resources: Any) -> Gpu | None:
    """`gpu: 80GB:8` and `gpu: H100:8`; or a mapping with `memory` or `name`."""
    gpu = dict(_fields(resources)).get("gpu")
    words = re.split(r"[:,]", str(gpu.value)) if isinstance(gpu, yaml.ScalarNode) else []
    words += [str(value.value) for name, value in _fields(gpu) if name in ("memory", "name")]
    for word in words:
        known = gpu_named(re.sub(r"\.\..*", "", word)) if re.search(r"[A-Za-z]", word) else None
        if known is not None:
            return Gpu(known.memory, f"{word}, from resources")
    return None


def _span(text: str, node: Any) -> Span:
    return Span(_byte(text, node.start_mark.index), _byte(text, node.end_mark.index))


def _byte(text: str, index: int) -> int:
    return index if text.isascii() else _bytes_before(text)[index]


@lru_cache(maxsize=1)
def _bytes_before(text: str) -> list[int]:
    """For each character of a text, and for its end, how many bytes are before it."""
    return list(accumulate((len(each.encode("utf-8", "replace")) for each in text), initial=0))


def _text_of(text: str, node: Any) -> Text:
    """A scalar's text. Where YAML folds or unescapes it, its parts are at its beginning."""
    value = str(node.value)
    starts = _block_lines(text, node, value) if node.style == "|" else _flow_lines(text, node, value)
    begin = _byte(text, node.start_mark.index)
    data, offsets = bytearray(), list[int]()
    for line, start in zip(value.split("\n"), starts, strict=True):
        encoded = f"{line}\n".encode("utf-8", "replace")
        data += encoded
        offsets += [begin if start is None else start + i for i in range(len(encoded))]
    return Text(bytes(data[:-1]), offsets)


def _flow_lines(text: str, node: Any, value: str) -> list[int | None]:
    start = node.start_mark.index + (1 if node.style in ("'", '"') else 0)
    plain = "\n" not in value and text.startswith(value, start)
    return [_byte(text, start)] if plain else [None] * (value.count("\n") + 1)


def _block_lines(text: str, node: Any, value: str) -> list[int | None]:
    """Where each line of a `|` block begins in the file."""
    position = text.find("\n", node.start_mark.index) + 1
    found: list[int | None] = []
    for line in value.split("\n"):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        written = text[position:end].rstrip("\r")
        found.append(_byte(text, position + len(written) - len(line)) if written.endswith(line) else None)
        position = min(end + 1, len(text))
    return found
