"""`schema.Config` as a tree of dotted keys: the one place that knows OmegaConf."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.choices import RANGES, Range
from trainer.config.overrides import format_value
from trainer.config.problems import Problem
from trainer.config.schema import Config

Tree = DictConfig
FOLLOWS = "follows "  # how an origin begins that names other keys
_RANGE = re.compile(r"list\(range\((\d{1,6}),\s*(\d{1,6})\)\)")  # as ROLL's files write ranks


def _fresh() -> Tree:
    """A tree of defaults that takes values."""
    fresh: Tree = pickle.loads(_kept_defaults())  # a fortieth of the time of making one
    return fresh


@cache
def _kept_defaults() -> bytes:
    return pickle.dumps(_defaults(), pickle.HIGHEST_PROTOCOL)


@cache
def _defaults() -> Tree:
    """Frozen dataclasses come out read-only."""
    built: Tree = OmegaConf.structured(Config)
    for node in _sections(built):
        OmegaConf.set_readonly(node, False)
    return built


def _sections(node: DictConfig) -> Iterator[DictConfig]:
    yield node
    for name in node:
        child = node._get_node(name)
        if isinstance(child, DictConfig):
            yield from _sections(child)
        elif isinstance(child, ListConfig):
            OmegaConf.set_readonly(child, False)


@cache
def _types() -> Mapping[str, Any]:
    """Every key and its type, in the schema's order."""
    found = dict(_leaf_types(_fresh(), ""))
    require_ranges([key for key, metadata in found.items() if _kind(metadata) in (int, float)], RANGES)
    return found


def require_ranges(numbers: Iterable[str], ranges: Mapping[str, Range]) -> None:
    """Raises LookupError for a number of the schema that nobody has given a range: there are none without."""
    for key in numbers:
        if key not in ranges:
            raise LookupError(f"{key} is a number without a range: give it one in trainer/config/choices.py")


def _kind(metadata: Any) -> Any:
    """The type of a key, or of the items of its list."""
    return metadata.element_type if hasattr(metadata, "element_type") else metadata.ref_type


def _leaf_types(node: DictConfig, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in map(str, node):
        child = node._get_node(name)
        if isinstance(child, DictConfig):
            yield from _leaf_types(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child._metadata  # type: ignore[union-attr]


def all_keys() -> tuple[str, ...]:
    """Every dotted key of the schema, in its order."""
    return tuple(_types())


def is_key(key: str) -> bool:
    return key in _types()


def is_section(key: str) -> bool:
    return any(name.startswith(key + ".") for name in _types())


def build(values: Mapping[str, Any]) -> tuple[Tree, list[Problem]]:
    """The defaults with `values` over them, and a problem for each value that can't be: to be left out of a rebuild."""
    built = _fresh()
    problems = [problem for key, value in values.items() if (problem := _set(built, key, value)) is not None]
    wrong = {problem.key for problem in problems}
    for key, value in values.items():
        if key not in wrong and (problem := _resolve(built, key, value)) is not None:
            problems.append(problem)
    return built, problems


def _set(built: Tree, key: str, value: Any) -> Problem | None:
    if _is_list(key) and value is not None and not _refers(value):
        value = value if isinstance(value, list) else _spelled_out(str(value)) or [value]
    if not (_refers(value) or _fits(key, value)):
        return _misfit(key, value)
    try:
        OmegaConf.update(built, key, value)
    except (OmegaConfBaseException, OverflowError, RecursionError):  # the latter of numbers and braces without end
        return _misfit(key, value)
    return None


def _fits(key: str, value: Any) -> bool:
    """What OmegaConf would take and make something else of: -1 is no truth value, and no list is a text."""
    if _is_list(key):
        return value is None or not any(isinstance(item, (list, dict, bool, type(None))) for item in value)
    if _kind(_types()[key]) is bool:
        plain = isinstance(value, bool) or (type(value) is int and value in (0, 1))
        return plain or value is None or (isinstance(value, str) and value.lower() in ("true", "false"))
    return not isinstance(value, (list, dict))


def _resolve(built: Tree, key: str, value: Any) -> Problem | None:
    """Whether what `key` refers to can be found; a list that refers to something that is none becomes one of it."""
    try:
        found = OmegaConf.select(built, key, throw_on_missing=True)
        if _is_list(key) and found is not None and not isinstance(found, ListConfig):
            if not isinstance(found, (str, int, float)) or isinstance(found, bool):
                return _misfit(key, value)
            OmegaConf.update(built, key, [found])
        elif isinstance(found, DictConfig) or (
            isinstance(found, ListConfig) and not _holds(found, _kind(_types()[key]))
        ):
            return _misfit(key, value)
    except OmegaConfBaseException as error:
        said = str(error).splitlines()[0]
        return Problem(key, f"{key}={_shown(value)} cannot be resolved: {said}", "check what it refers to")
    except (OverflowError, RecursionError):
        return _misfit(key, value)
    return None


def _holds(found: ListConfig, kind: type) -> bool:
    """Whether the items of another key's list are of this one's type."""
    return all(type(item) is kind or (kind is float and type(item) is int) for item in found)


def _misfit(key: str, value: Any) -> Problem:
    return Problem(
        key, f"{key}={_shown(value)} is not {_type_name(key)}", f"the default is {key}={format_value(default(key))}"
    )


def _shown(value: Any) -> str:
    """A value as the user may know it again, in one line."""
    try:
        text = " ".join(str(value).split())
    except (ValueError, RecursionError):  # a number of more digits than Python prints, brackets without end
        text = "..."
    return text if len(text) < 200 else f"{text[:200]}..."


def _spelled_out(text: str) -> list[int]:
    """
    >>> _spelled_out("list(range(4, 7))")
    [4, 5, 6]
    """
    span = _RANGE.fullmatch(text)
    return list(range(int(span[1]), int(span[2]))) if span else []


def _refers(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$\{[^}]*\}", value) is not None


def _is_list(key: str) -> bool:
    return isinstance(_fresh_node(key), ListConfig)


def _type_name(key: str) -> str:
    metadata = _types()[key]
    plain = {int: "an integer", float: "a number", bool: "True or False", str: "a text"}
    if _is_list(key):
        return f"a list, each item {plain[metadata.element_type]}"
    return plain[metadata.ref_type] + (" or null" if metadata.optional else "")


def _fresh_node(key: str) -> Any:
    section, _, name = key.rpartition(".")
    return OmegaConf.select(_defaults(), section)._get_node(name)


def default(key: str) -> Any:
    """The default as the schema has it: `${other.key}` where it follows another."""
    node = _fresh_node(key)
    return OmegaConf.to_container(node) if isinstance(node, ListConfig) else node._value()


def value_of(built: Tree, key: str) -> Any:
    """The value of `key` in plain Python."""
    value = OmegaConf.select(built, key)
    return OmegaConf.to_container(value, resolve=True) if isinstance(value, ListConfig) else value


def to_config(built: Tree) -> Config:
    config = OmegaConf.to_object(built)
    assert isinstance(config, Config)
    return config


def flatten(config: Config) -> dict[str, Any]:
    """Every key of a configuration with its value.

    >>> flatten(Config())["trainer.nnodes"]
    1
    """

    def value(key: str) -> Any:
        node: Any = config
        for name in key.split("."):
            node = getattr(node, name)
        return node

    return {key: value(key) for key in all_keys()}


def default_origins() -> dict[str, str]:
    """`default`, or `follows KEY`, for every key."""
    return dict(_default_origins())


@cache
def _default_origins() -> Mapping[str, str]:
    return {key: _default_origin(key) for key in all_keys()}


def _default_origin(key: str) -> str:
    own = default(key)
    followed = re.findall(r"\$\{([^}]*)\}", own) if isinstance(own, str) else []
    section = key.rpartition(".")[0]
    names = [section + name if name.startswith(".") else name for name in followed]
    return FOLLOWS + ", ".join(names) if names else "default"
