"""The tools of a run as one text: read where the command is typed, loaded where conversations are.

`multi_turn.tool_config_path` is verl's YAML; its classes and `multi_turn.function_tool_path` are files of the user's,
which travel with it, so that nodes need no copy of them. What those import must be installed there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import user_file
from trainer.agent.tools import verl

if TYPE_CHECKING:  # yaml and torch, which an environment's process does not need
    from trainer.config.agent_schema import MultiTurnConfig

FUNCTIONS = "agent_functions"  # the module of function_tool_path
NATIVE = "native"


@dataclass(frozen=True)
class Bundle:
    """What tools are made of. Of `modules`, each has its file and its text."""

    tools: tuple[Mapping[str, Any], ...]  # of the YAML: class_name, config, tool_schema
    modules: Mapping[str, tuple[str, str]]
    functions: tuple[str, str] | None = None  # file and text

    @property
    def files(self) -> list[str]:
        """Names under which tracebacks know the user's code."""
        own = [] if self.functions is None else [self.functions[0]]
        return [*(file for file, _ in self.modules.values()), *own]

    def to_text(self) -> str:
        return json.dumps({"tools": self.tools, "modules": self.modules, "functions": self.functions})

    @staticmethod
    def of_text(text: str) -> Bundle:
        found = json.loads(text)
        modules = {name: (file, source) for name, (file, source) in found["modules"].items()}
        functions = found["functions"]
        return Bundle(tuple(found["tools"]), modules, None if functions is None else (functions[0], functions[1]))


class Broken(Exception):
    """Tools that cannot be read or loaded; the message names the file or class."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read(config: MultiTurnConfig) -> Bundle:
    """On the driver. Raises Broken."""
    entries = entries_of(config.tool_config_path) if config.tool_config_path else []
    folders = [os.getcwd(), *([os.path.dirname(_absolute(config.tool_config_path))] if config.tool_config_path else [])]
    modules = {}
    for entry in entries:
        name = str(entry["class_name"]).rpartition(".")[0]
        file = beside(name, folders)
        if file is not None:
            modules[name] = (file, _text(file))
    functions = None
    if config.function_tool_path:
        functions = (_absolute(config.function_tool_path), _text(config.function_tool_path))
    return Bundle(tuple(entries), modules, functions)


def entries_of(path: str) -> list[dict[str, Any]]:
    """The tools of a YAML file, with `${...}` resolved. Raises Broken."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from trainer.config.yaml_text import checked

    hint = "as verl's: tools: [{class_name: my_tools.Search, config: {type: native}, tool_schema: {...}}]"
    try:
        checked(Path(os.path.expanduser(path)))
        loaded = OmegaConf.to_container(OmegaConf.load(os.path.expanduser(path)), resolve=True)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "not a UTF-8 text"
        raise Broken(f"{path}: {why}", "give a YAML file that the driver can read") from error
    except (YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Broken(f"{path} is no YAML of use: {' '.join(str(error).split()):.200}", hint) from error
    tools = loaded.get("tools") if isinstance(loaded, dict) else None
    if not isinstance(tools, list) or not tools:
        raise Broken(f"{path} has no list of tools", hint)
    for number, entry in enumerate(tools, start=1):
        if wrong := _wrong(entry):
            raise Broken(f"tool {number} of {path} {wrong}", hint)
    return tools


def _wrong(entry: Any) -> str:
    """What is wrong with one tool of a YAML file; empty if nothing is."""
    if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str):
        return "has no class_name"
    module, _, name = entry["class_name"].rpartition(".")
    if not module or not name.isidentifier():
        return f"has class_name={entry['class_name']}, which is not MODULE.CLASS"
    config = entry.get("config")
    if not isinstance(config, dict):
        return "has no config"
    if config.get("type", NATIVE) != NATIVE:
        return f"has config.type={config['type']}, and only {NATIVE} is there"
    schema = entry.get("tool_schema")
    if schema is not None and not isinstance(schema, dict):
        return "has a tool_schema that is no mapping"
    try:
        json.dumps(entry)  # as it travels
    except (TypeError, ValueError):  # bytes, and keys that are no texts
        return "holds something that JSON has not"
    return ""


def beside(module: str, folders: Sequence[str]) -> str | None:
    """The file of a module below one of `folders`, if it is a user's: neither installed nor this trainer's."""
    if module.split(".")[0] in ("trainer", "verl"):
        return None
    paths = (os.path.join(folder, *module.split(".")) + ".py" for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), None)


def _absolute(path: str | None) -> str:
    return os.path.abspath(os.path.expanduser(path or ""))


def _text(path: str) -> str:
    try:
        return user_file.text_of(path)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a UTF-8 text, nor one of the encoding it declares"
        raise Broken(f"{path}: {why}", "give a Python file that the driver can read") from error


# -- where conversations are


@dataclass(frozen=True)
class Loaded:
    """Classes and functions, from which each conversation makes its tools."""

    classes: tuple[tuple[Any, Mapping[str, Any]], ...]  # with their entries
    functions: tuple[Any, ...]
    files: tuple[str, ...]

    def make(self) -> dict[str, Any]:
        """Tools by name, made anew. Raises what a user's class raises, and ValueError for two of one name."""
        schemas = sys.modules["verl.tools.schemas"]
        made = []
        for kind, entry in self.classes:
            given = entry.get("tool_schema")
            schema = None if given is None else schemas.OpenAIFunctionToolSchema.model_validate(given)
            made.append(kind(config=dict(entry["config"]), tool_schema=schema))
        tools: dict[str, Any] = {}
        for tool in (*made, *self.functions):
            if tool.name in tools:
                raise ValueError(f"two tools have the name {tool.name}")
            tools[tool.name] = tool
        return tools


def load(bundle: Bundle) -> Loaded:
    """Loads the user's files. Raises Broken."""
    from trainer.agent.contract import told

    verl.stand_in()
    importlib.import_module("verl.tools.schemas")
    for name, (file, text) in bundle.modules.items():
        _executed(text, file, name)
    classes = []
    for entry in bundle.tools:
        module, _, name = entry["class_name"].rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except Exception as error:  # whatever the user's module raises is reported, with its cause
            raise Broken(
                f"class_name={entry['class_name']}: {told(error, bundle.files)}",
                f"{module} must be a file where the command is typed, or be installed on every node",
            ) from error
        if not isinstance(found, type):
            raise Broken(f"there is no class {name} in {module}", "class_name is MODULE.CLASS")
        classes.append((found, entry))
    return Loaded(tuple(classes), _functions(bundle), tuple(bundle.files))


def _functions(bundle: Bundle) -> tuple[Any, ...]:
    if bundle.functions is None:
        return ()
    file, text = bundle.functions
    registry = importlib.import_module("verl.tools.function_tool").FUNCTION_TOOL_REGISTRY
    for name in [name for name, each in registry.items() if each.fn.__module__ == FUNCTIONS]:
        del registry[name]  # of an earlier run in this process
    before = set(registry)
    _executed(text, file, FUNCTIONS)
    found = tuple(registry[name] for name in sorted(set(registry) - before))
    if not found:
        raise Broken(
            f"{file} has no function under @function_tool", "from verl.tools.function_tool import function_tool"
        )
    return found


def _executed(text: str, file: str, name: str) -> None:
    from trainer.agent.contract import told

    try:
        user_file.load(text, file, name)
    except Exception as error:  # the user's code may raise anything; it is reported, with its cause
        sys.modules.pop(name, None)
        hint = "it must load on its own, with what it imports installed on every node"
        raise Broken(f"{file} raised while it was loaded: {told(error, [file])}", hint) from error
