"""What a file of tools written for verl imports, for where verl is not installed.

    from verl.tools.base_tool import BaseTool
    from verl.tools.function_tool import function_tool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
    from verl.utils.rollout_trace import rollout_trace_op

`stand_in` puts these names in place. Whatever else such a file imports of verl must be installed. Standard library
only, but for schemas that are made of a function's signature: transformers makes those, as in verl.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from trainer.agent.tools import schemas
from trainer.agent.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


class BaseTool:
    """verl's base class: `create`, then `execute`, then `release`, anew for each call.

    `calc_reward` is for a tool's own use: verl's loop does not call it, nor does this trainer.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        assert self.tool_schema is not None, "Tool schema is not set!"
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return (str(uuid4()) if instance_id is None else instance_id), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """Gives `(ToolResponse, reward, metrics)`."""
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None: ...


@dataclass
class FunctionTool:
    """A function that models can call."""

    name: str
    fn: Callable[..., Any]
    tool_schema: Any
    is_async: bool = False


FUNCTION_TOOL_REGISTRY: dict[str, FunctionTool] = {}


def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """A decorator, with or without a name. The schema is made of type hints and a docstring with `Args:`.

    Raises ValueError for parameters that no schema can say, and for a name that another function has.
    """

    def named(as_name: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
            tool_name = as_name or fn.__name__
            known = FUNCTION_TOOL_REGISTRY.get(tool_name)
            if known is not None and known.fn is not fn:
                raise ValueError(f"two functions are the tool {tool_name}")
            made = OpenAIFunctionToolSchema.model_validate(schema) if schema is not None else schema_of(fn, tool_name)
            FUNCTION_TOOL_REGISTRY[tool_name] = FunctionTool(tool_name, fn, made, inspect.iscoroutinefunction(fn))
            return fn

        return decorator

    if callable(name) and schema is None:
        return named(None)(name)
    return named(name)


def schema_of(fn: Callable[..., Any], name: str) -> OpenAIFunctionToolSchema:
    """As transformers makes it. Raises ValueError, and what transformers raises for a docstring of no use."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    unsaid = [each for each, parameter in inspect.signature(fn).parameters.items() if parameter.kind in several]
    if unsaid:
        raise ValueError(f"the tool {name} takes any number of arguments ({', '.join(unsaid)}): give each a name")
    from transformers.utils.chat_template_utils import get_json_schema

    found = get_json_schema(fn)
    found["function"]["name"] = name
    made: OpenAIFunctionToolSchema = OpenAIFunctionToolSchema.model_validate(found)
    return made


def normalize_function_tool_return(given: Any) -> tuple[Any, float, dict[str, Any]]:
    """What a function gives as `(ToolResponse, reward, metrics)`: a text, a mapping, or a tuple of up to three.

    Raises TypeError for a tuple of another length.
    """
    if not isinstance(given, tuple):
        return _response(given), 0.0, {}
    if not 1 <= len(given) <= 3:
        raise TypeError(f"a tool gives (response,), (response, reward) or (response, reward, metrics), not {given!r}")
    reward = 0.0 if len(given) < 2 or given[1] is None else float(given[1])
    metrics = {} if len(given) < 3 or given[2] is None else dict(given[2])
    return _response(given[0]), reward, metrics


def _response(value: Any) -> Any:
    if hasattr(value, "text") and hasattr(value, "image"):  # verl's own class, too
        return value
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    return ToolResponse(text=text if isinstance(text, str) else str(text))


def _same(function: Any = None, **_: Any) -> Any:
    """`rollout_trace_op`: there are no traces."""
    return function if function is not None else _same


def stand_in() -> None:
    """Puts the modules in place, once; nothing where verl is installed."""
    if "verl" in sys.modules or importlib.util.find_spec("verl") is not None:
        return
    known: dict[str, dict[str, Any]] = {
        "verl": {},
        "verl.tools": {},
        "verl.utils": {},
        "verl.tools.schemas": {name: each for name, each in vars(schemas).items() if isinstance(each, type)},
        "verl.tools.base_tool": {
            "BaseTool": BaseTool,
            "OpenAIFunctionToolSchema": OpenAIFunctionToolSchema,
            "ToolResponse": ToolResponse,
        },
        "verl.tools.function_tool": {
            "FunctionTool": FunctionTool,
            "FUNCTION_TOOL_REGISTRY": FUNCTION_TOOL_REGISTRY,
            "function_tool": function_tool,
            "normalize_function_tool_return": normalize_function_tool_return,
        },
        "verl.utils.rollout_trace": {"rollout_trace_op": _same},
    }
    for name, members in known.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        if name in ("verl", "verl.tools", "verl.utils"):
            module.__path__ = []  # a package: what it lacks is named in the error
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
