"""`schema.Config` as a tree of dotted keys: the one place that knows OmegaConf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.problems import Problem
from trainer.config.schema import Config

Tree = DictConfig
FOLLOWS = "follows "  # how an origin begins that names other keys
_RANGE = re.compile(r"list\(range\((\d{1,6}),\s*(\d{1,6})\)\)")  # as ROLL's files write ranks


def _fresh() -> Tree:
    """A tree of defaults that takes values: frozen dataclasses come out read-only."""
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
    return dict(_leaf_types(_fresh(), ""))


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
    for key in values:
        try:
            OmegaConf.select(built, key, throw_on_missing=True)
        except OmegaConfBaseException as error:
            said = str(error).splitlines()[0]
            problems.append(Problem(key, f"{key}={values[key]} can not be resolved: {said}", "check what it refers to"))
    return built, problems


def _set(built: Tree, key: str, value: Any) -> Problem | None:
    if _is_list(key) and value is not None and not isinstance(value, (list, dict)) and not _refers(value):
        value = _spelled_out(str(value)) or [value]
    try:
        OmegaConf.update(built, key, value)
    except OmegaConfBaseException:
        return Problem(key, f"{key}={value} is not {_type_name(key)}", f"the default is {key}={_default(key)}")
    return None


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


@cache
def _defaults() -> Tree:
    return _fresh()


def _fresh_node(key: str) -> Any:
    section, _, name = key.rpartition(".")
    return OmegaConf.select(_defaults(), section)._get_node(name)


def _default(key: str) -> Any:
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
    return {key: _default_origin(key) for key in all_keys()}


def _default_origin(key: str) -> str:
    default = _default(key)
    followed = re.findall(r"\$\{([^}]*)\}", default) if isinstance(default, str) else []
    section = key.rpartition(".")[0]
    names = [section + name if name.startswith(".") else name for name in followed]
    return FOLLOWS + ", ".join(names) if names else "default"
