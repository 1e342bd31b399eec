"""Files of tools as their users write them for verl, and a chat template that shows tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

CLASSES = '''
from typing import Any, Optional
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Adder(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instances = {}

    async def create(self, instance_id: Optional[str] = None, **kwargs) -> tuple[str, ToolResponse]:
        instance_id = instance_id or str(uuid4())
        self._instances[instance_id] = kwargs.get("create_kwargs", {}).get("more", 0)
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[ToolResponse, float, dict]:
        total = parameters["a"] + parameters["b"] + self._instances[instance_id]
        return ToolResponse(text=f"{total} of {len(self._instances)}"), await self.calc_reward(instance_id), {}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return 0.5

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._instances[instance_id]


class Odd(BaseTool):
    """Goes wrong in the way that it is asked for; an older one's `create` and `execute` give no ToolResponse."""

    def get_openai_tool_schema(self):
        return OpenAIFunctionToolSchema.model_validate({
            "type": "function",
            "function": {
                "name": "odd",
                "description": "Goes wrong.",
                "parameters": {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]},
            },
        })

    async def create(self, instance_id=None, **kwargs):
        return "0"

    async def execute(self, instance_id, parameters, **kwargs):
        how = parameters["how"]
        if how == "hang": import time; time.sleep(1000)
        if how == "die": import os; os._exit(9)
        if how == "leave": raise SystemExit(3)
        if how == "picture": return ToolResponse(image=[1]), 0.0, {}
        if how == "nothing": return ToolResponse(), None, {}
        if how == "raise": raise ValueError("no more")
        return {"long": "x" * 10**6, "half": "a\\ud800b", "text": "old"}[how], 0.25, {}
'''
YAML = """
tools:
  - class_name: my_tools.Adder
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: add
        description: Adds two numbers.
        parameters:
          type: object
          properties:
            a: {description: the first, type: integer}
            b: {type: integer, description: the second}
          required: [a, b]
  - class_name: my_tools.Odd
    config: {type: native}
"""
FUNCTIONS = """
from verl.tools.function_tool import function_tool

NUMBER = {"type": "integer", "description": "a number"}
PARAMETERS = {"type": "object", "properties": {"x": NUMBER}, "required": ["x"]}


def schema(name, description):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": PARAMETERS}}


@function_tool(schema=schema("twice", "Doubles a number."))
def twice(x):
    return {"twice": 2 * x}


@function_tool("thrice", schema=schema("thrice", "Triples a number."))
async def times_three(x: int):
    return str(3 * x), 1.5
"""
INFERRED = '''
from verl.tools.function_tool import function_tool


@function_tool
def twice(x: int, how: str = "well") -> dict:
    """Doubles a number.

    Args:
        x: what to double
        how: in which way (choices: ["well", "badly"])
    """
    return {"twice": 2 * x}
'''
# As Qwen2.5's: tools in the system message, answers of tools next to one another in one message of the user.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n' }}"
    "</tools><|im_end|>\n"
    "{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"


def write(folder: Path) -> list[str]:
    """The files in `folder`, and the words of a command that names them."""
    (folder / "my_tools.py").write_text(CLASSES)
    (folder / "tools.yaml").write_text(YAML)
    (folder / "functions.py").write_text(FUNCTIONS)
    return [
        f"{MULTI_TURN}.enable=True",
        f"{MULTI_TURN}.tool_config_path={folder / 'tools.yaml'}",
        f"{MULTI_TURN}.function_tool_path={folder / 'functions.py'}",
    ]


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def model_with_tools(model: str, folder: Path) -> str:
    """A copy of a model, in `folder`, with a template that shows tools."""
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return str(folder)
