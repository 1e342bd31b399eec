"""Tools as verl has them: files written for it, calls, answers, limits, and what goes wrong."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.pace import stretched
from tests.trainer.tool_files import CLASSES, FUNCTIONS, INFERRED, MULTI_TURN, call, write
from trainer import config
from trainer.agent.contract import Observed
from trainer.agent.homes import Broken, Home, Houses, answered
from trainer.agent.player import read_environment
from trainer.agent.source import TOOLS, Source
from trainer.agent.tools import bundle, schemas
from trainer.agent.tools.calls import Call, calls_in, cut
from trainer.agent.tools.python import PythonTool, run
from trainer.agent.tools.rows import Asked, options_of
from trainer.agent.tools.shown import schemas_in
from trainer.config.agents import constructor
from trainer.errors import ConfigError

Play = Callable[..., "Playing"]


class Playing:
    """One conversation's tools."""

    def __init__(self, home: Home, options: Mapping[str, Any]) -> None:
        self.home = home
        self.ask("reset", 1, options)

    def ask(self, *what: Any) -> Observed:
        self.home.ask(*what)
        assert answered([self.home], stretched(60.0))
        return self.home.take()

    def step(self, action: str) -> Observed:
        return self.ask("step", action)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """`play("max_parallel_calls=2", tool_selection=[...])`: keys of multi_turn, and what the row says."""
    opened = list[tuple[Houses, Home]]()

    def made(*changes: str, isolate: bool = False, **options: Any) -> Playing:
        houses = houses_of(tmp_path, *(f"{MULTI_TURN}.{change}" for change in changes), isolate=isolate)
        opened.append((houses, houses.home()))
        return Playing(opened[-1][1], options_of(options, "tool_agent"))

    yield made
    for houses, home in opened:
        home.end(kill=True)
        houses.close()


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Tools in this process leave nothing in it."""
    before = set(sys.modules)
    yield
    for name in [each for each in sys.modules if each.startswith(("verl", "my_tools", "agent_functions"))]:
        if name not in before:
            del sys.modules[name]


def houses_of(folder: Path, *words: str, isolate: bool = False, **texts: str) -> Houses:
    """Tools of the usual files; `texts` are others, by their names without an ending."""
    settings = config.load([*write(folder), *words]).config
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return Houses(Source(TOOLS, read_environment(settings), constructor(settings)), isolate=isolate)


# -- calls and answers


def test_a_file_written_for_verl_works_as_it_is(play: Play) -> None:
    playing = play(tools_kwargs={"add": {"create_kwargs": {"more": 100}}, "odd": None})
    observed = playing.step(f"Let me see. {call('add', {'a': 1, 'b': 2})}")
    # an instance for each call: made with the row's own arguments, and let go of before the next
    assert (observed.text, observed.reward, observed.terminated) == ("103 of 1", 0.5, False)
    assert observed.messages == [{"role": "tool", "content": "103 of 1"}]
    assert playing.step(call("add", {"a": 1, "b": 2})).text == "103 of 1"
    assert playing.step(call("twice", {"x": 4})).text == '{"twice": 8}'
    observed = playing.step(call("thrice", {"x": 4}))
    assert (observed.text, observed.reward) == ("12", 1.5)
    observed = playing.step("It is 103.")
    assert (observed.text, observed.terminated, observed.messages) == ("", True, [])
    counted = {"calls": 4, "errors": 0, "unreadable": 0, "left_out": 0, "shortened": 0}
    assert observed.numbers == {f"tools/{name}": count for name, count in counted.items()}


def test_an_older_tool_gives_texts(play: Play) -> None:
    observed = play().step(call("odd", {"how": "text"}))
    assert (observed.text, observed.reward) == ("old", 0.25)


def test_calls_of_a_turn_are_answered_in_their_order(play: Play) -> None:
    several = "".join(call("twice", {"x": x}) for x in (3, 1, 2))
    playing = play("max_parallel_calls=2")
    observed = playing.step(several)
    assert [each["content"] for each in observed.messages] == ['{"twice": 6}', '{"twice": 2}']
    assert observed.text == '{"twice": 6}\n{"twice": 2}'
    assert observed.numbers["tools/left_out"] == 1 and observed.numbers["tools/calls"] == 2
    # verl's default carries out the first alone
    assert len(play().step(several).messages) == 1


def test_what_cannot_be_read_is_counted_and_no_call(play: Play) -> None:
    playing = play()
    broken = "<tool_call>{'name': 'add'}</tool_call>"
    assert playing.step(broken + call("twice", {"x": 1})).numbers["tools/unreadable"] == 1
    observed = playing.step(broken)
    assert observed.terminated and observed.numbers["tools/unreadable"] == 2  # as in verl: a turn without a call


def test_the_last_turn_calls_nothing(play: Play) -> None:
    playing = play("max_assistant_turns=2")
    assert playing.step(call("twice", {"x": 1})).text
    observed = playing.step(call("twice", {"x": 1}))
    assert (observed.text, observed.terminated, observed.numbers["tools/calls"]) == ("", False, 1)


def test_a_row_chooses_its_agent_and_its_tools(play: Play) -> None:
    assert play(agent_name="single_turn_agent").step(call("twice", {"x": 1})).terminated
    chosen = play(tool_selection=["add"])
    assert chosen.step(call("twice", {"x": 1})).text == "Error when executing tool: 'twice'"
    assert chosen.step(call("add", {"a": 1, "b": 1})).text == "2 of 1"


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (call("odd", {"how": "raise"}), "no more"),
        (call("nothing", {}), "'nothing'"),
        (call("add", {"a": 1}), "'b'"),
        (call("add", None), "'NoneType' object is not subscriptable"),
        (call("twice", {"y": 1}), "twice() got an unexpected keyword argument 'y'"),
        (call("odd", {"how": "half"}), "its answer has half a character (a lone surrogate)"),
    ],
    ids=["raises", "no such tool", "an argument missing", "no arguments", "another argument", "surrogate"],
)
def test_what_goes_wrong_in_a_tool_is_what_the_model_reads(play: Play, action: str, said: str) -> None:
    playing = play()
    observed = playing.step(action)
    assert observed.text == f"Error when executing tool: {said}"
    assert observed.numbers["tools/errors"] == 1 and observed.reward == 0 and not observed.terminated
    assert playing.step(call("twice", {"x": 1})).text == '{"twice": 2}'  # and it goes on


def test_a_long_answer_is_cut(play: Play) -> None:
    observed = play("max_tool_response_length=10").step(call("odd", {"how": "long"}))
    assert observed.text == "xxxxx...(truncated)...xxxxx" and observed.numbers["tools/shortened"] == 1
    assert len(play().step(call("odd", {"how": "long"})).text) == 256 + len("...(truncated)...")


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("die", "died", "its process left by itself, with exit code 9"),
        ("leave", "raised", "step raised SystemExit: 3 at .*my_tools.py:"),
        ("picture", "wrong", "odd answered with a picture"),
    ],
)
def test_a_tool_that_takes_its_process_along_fails_the_conversation(play: Play, how: str, kind: str, said: str) -> None:
    playing = play(isolate=True)
    with pytest.raises(Broken, match=said) as caught:
        playing.step(call("odd", {"how": how}))
    assert caught.value.kind == kind


def test_a_tool_that_hangs_is_not_waited_for(play: Play) -> None:
    playing = play(isolate=True)
    playing.home.ask("step", call("odd", {"how": "hang"}))
    assert not answered([playing.home], 0.2)


def test_an_answer_of_nothing_is_a_message_of_nothing(play: Play) -> None:
    observed = play().step(call("odd", {"how": "nothing"}))
    assert observed.messages == [{"role": "tool", "content": ""}] and observed.reward == 0


# -- their schemas


def test_schemas_are_those_of_yaml_class_and_function(tmp_path: Path) -> None:
    found = schemas_in(houses_of(tmp_path))
    assert [each["function"]["name"] for each in found] == ["add", "odd", "thrice", "twice"]
    # as verl writes them into the prompt: in its order, whatever that of the file
    assert json.dumps(found[0]["function"]["parameters"]) == (
        '{"type": "object", "properties": {"a": {"type": "integer", "description": "the first"}, '
        '"b": {"type": "integer", "description": "the second"}}, "required": ["a", "b"]}'
    )


def test_the_schema_of_a_function_is_that_of_its_hints_and_docstring(tmp_path: Path) -> None:
    found = schemas_in(houses_of(tmp_path, functions=INFERRED))[2]
    assert found["function"] == {
        "name": "twice",
        "description": "Doubles a number.",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "description": "what to double"},
                "how": {"type": "string", "description": "in which way", "enum": ["well", "badly"]},
            },
            "required": ["x"],
        },
    }


class _Property(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    type: str | list[str]
    description: str | None = None
    enum: list[Any] | None = None


class _Parameters(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    type: str
    properties: dict[str, _Property]
    required: list[str] = pydantic.Field(default_factory=list)


class _Function(pydantic.BaseModel):
    name: str
    description: str
    parameters: _Parameters = pydantic.Field(
        default_factory=lambda: _Parameters(type="object", properties={}, required=[])
    )
    strict: bool = False


class _Tool(pydantic.BaseModel):
    type: str
    function: _Function


PROPERTY = {"description": "d", "enum": ["a", 1], "type": "string", "default": "a", "items": {"type": "string"}}
FUNCTION = {"description": "d", "name": "f", "returns": {"type": "string"}}


@pytest.mark.parametrize(
    "given",
    [
        {"function": FUNCTION, "type": "function", "more": 1},
        {"type": "function", "function": {**FUNCTION, "strict": True, "parameters": {"type": "o", "properties": {}}}},
        {
            "type": "function",
            "function": {
                **FUNCTION,
                "parameters": {
                    "required": ["p"],
                    "additionalProperties": False,
                    "properties": {"p": PROPERTY, "q": {"type": ["integer", "null"], "description": None}},
                    "type": "object",
                },
            },
        },
    ],
)
def test_a_schema_is_written_as_pydantic_writes_it(given: dict[str, Any]) -> None:
    """With verl's fields, declared anew."""
    for how in ({}, {"exclude_unset": True}, {"exclude_none": True}, {"exclude_unset": True, "exclude_none": True}):
        theirs = _Tool.model_validate(given).model_dump(**how)
        ours = schemas.OpenAIFunctionToolSchema.model_validate(given).model_dump(**how)
        assert json.dumps(ours) == json.dumps(theirs), how


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"type": "function"},
        {"type": 3, "function": FUNCTION},
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {**FUNCTION, "parameters": {"type": "o"}}},
        {"type": "function", "function": {**FUNCTION, "parameters": {"type": "o", "properties": {"p": {}}}}},
    ],
)
def test_a_schema_that_is_none_is_refused_as_there(given: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's is one
        _Tool.model_validate(given)
    with pytest.raises(ValueError, match=r"OpenAIFunction\w+"):
        schemas.OpenAIFunctionToolSchema.model_validate(given)


def test_an_answer_has_its_fields() -> None:
    answer = schemas.ToolResponse(text="a")
    assert answer.is_text_only() and not answer.is_empty() and answer == schemas.ToolResponse(text="a")
    assert schemas.ToolResponse().is_empty() and schemas.ToolResponse().text is None
    with pytest.raises(ValueError, match="image of ToolResponse"):
        schemas.ToolResponse(image="a.png")


# -- files that do not load


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("my_tools", "import nothing_of_that_name\n", r"my_tools.py raised while it was loaded: ModuleNotFoundError"),
        ("my_tools", "x = 1\n", "there is no class Adder in my_tools"),
        ("my_tools", CLASSES.replace("self._instances = {}", "1 / 0"), "ZeroDivisionError: division by zero at .*my_"),
        ("functions", "x = 1\n", "functions.py has no function under @function_tool"),
        ("functions", INFERRED.replace("        x: what to double\n", ""), "functions.py raised while it was loaded"),
        ("functions", FUNCTIONS.replace('("thrice"', '("add"'), "two tools have the name add"),
        ("functions", INFERRED.replace("x: int, how", "*x: int, how"), "takes any number of arguments"),
        ("my_tools", "from verl.utils.nothing import x\n" + CLASSES, "No module named 'verl.utils.nothing'"),
    ],
)
def test_files_that_do_not_load_are_named(tmp_path: Path, file: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        schemas_in(houses_of(tmp_path, **{file: text}))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tools: [", "is no YAML of use"),
        ("tools: []", "has no list of tools"),
        ("tools: [{config: {}}]", "tool 1 of .* has no class_name"),
        ("tools: [{class_name: Adder, config: {}}]", "has class_name=Adder, which is not MODULE.CLASS"),
        ("tools: [{class_name: a.B}]", "has no config"),
        ("tools: [{class_name: a.B, config: {type: mcp}}]", "has config.type=mcp, and only native is there"),
        ("tools: [{class_name: a.B, config: {}, tool_schema: 3}]", "has a tool_schema that is no mapping"),
        ("tools: [{class_name: a.B, config: {x: '${nobody}'}}]", "is no YAML of use"),
    ],
)
def test_a_yaml_of_no_use_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "tools.yaml").write_text(text)
    with pytest.raises(bundle.Broken, match=said):
        bundle.entries_of(str(tmp_path / "tools.yaml"))


def test_variables_of_a_yaml_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_URL", "http://a")
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: a.B, config: {url: '${oc.env:TOOL_URL}'}}]")
    assert bundle.entries_of(str(tmp_path / "tools.yaml"))[0]["config"] == {"url": "http://a"}


def test_a_class_travels_as_text(tmp_path: Path) -> None:
    """Where it is loaded, its file need not be."""
    settings = config.load(write(tmp_path)).config
    source = Source(TOOLS, read_environment(settings), constructor(settings))
    for name in ("my_tools.py", "functions.py", "tools.yaml"):
        (tmp_path / name).unlink()
    with closing(Houses(source, isolate=True)) as houses:
        assert len(schemas_in(houses)) == 4
    assert source.files == [str(tmp_path / "my_tools.py"), str(tmp_path / "functions.py")]


# -- texts


def test_calls_as_hermes_writes_them() -> None:
    assert calls_in("none") == ([], 0) and calls_in("<tool_call>{}") == ([], 0)
    assert calls_in(call("a", {"x": [1, {"y": "é</b>"}]})) == ([Call("a", {"x": [1, {"y": "é</b>"}]})], 0)
    assert calls_in(call("a", 3) + " and " + call("b", {})) == ([Call("a", 3), Call("b", {})], 0)
    for broken in ("", "3", "[]", '{"name": "a"}', '{"arguments": {}}', '{"name": 3, "arguments": {}}', "[" * 10**5):
        assert calls_in(f"<tool_call>{broken}</tool_call>") == ([], 1), broken[:20]


def test_what_is_cut_is_where_it_was_asked_for() -> None:
    assert cut("abc", 3, "middle") == "abc" and cut("", 1, "left") == ""
    assert cut("abcdef", 1, "middle") == "...(truncated)..."
    assert (cut("abcdef", 2, "left"), cut("abcdef", 2, "right")) == ("(truncated)...ef", "ab...(truncated)")


def test_a_row_that_asks_for_nothing() -> None:
    assert Asked.of({}) == Asked() == Asked.of({"tools_kwargs": None, "tool_selection": None, "agent_name": None})
    assert Asked.of({"tools_kwargs": {"a": {}}}).create_kwargs("a") == {} == Asked().create_kwargs("a")
    assert json.loads(json.dumps(options_of({"tools_kwargs": {"a": b"x"}}, "tool_agent")))


# -- Python in a process


def python(code: str, timeout: float = 30.0, memory: int = 2**30, most: int = 1000) -> str:
    return run(code, stretched(timeout), memory, most)


def test_code_answers_with_what_it_prints() -> None:
    assert python("print(1)\nimport sys; print(2, file=sys.stderr); print(3)") == "1\n2\n3\n"
    assert python("def f(): return f.__name__\nif __name__ == '__main__': print(f())") == "f\n"
    assert python("x = 1") == ""
    assert python("print(1)\n1 / 0") == (
        '1\nTraceback (most recent call last):\n  File "<code>", line 2, in <module>\n'
        "ZeroDivisionError: division by zero\n"
    )
    assert "SyntaxError" in python("x = (")
    assert python("print('é')\nimport os; os.write(1, b'\\xff')") == "é\n\ufffd"


def test_code_has_an_end() -> None:
    began = time.monotonic()
    said = run("print('a', flush=True)\nwhile True: pass", 0.5, 2**30, 1000)
    assert said == "a\n[ended after 0.5 s]"
    # what it has started ends with it, also where it holds the output open
    said = run("import subprocess; subprocess.Popen(['sleep', '1000'])", 0.5, 2**30, 1000)
    assert said == "[ended after 0.5 s]"
    assert time.monotonic() - began < 900


def test_code_has_so_much_memory_output_and_file() -> None:
    assert "MemoryError" in python("x = bytearray(10**10)", memory=2**28)
    assert python("while True: print('x' * 99)", most=100) == "x" * 99 + "\n[ended after 100 bytes of output]"
    assert "File too large" in python("f = open('f', 'wb')\nfor i in range(129): f.write(bytes(2**20))", memory=2**27)
    assert python("import os; os.kill(os.getpid(), 9)") == "[ended by SIGKILL]"


def test_code_sees_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "secret")
    folder = python("import os; print(os.environ.get('SOMETHING'), os.listdir(), os.getcwd())").split()
    assert folder[:2] == ["None", "[]"] and not os.path.exists(folder[2])
    assert python("import sys; print(sys.argv, sys.stdin.read())") == "['-c'] \n"


def test_a_long_code_arrives_whole() -> None:
    assert python(f"x = '{'a' * 300_000}'\nprint(len(x))") == "300000\n"


def test_the_tool_has_limits_of_its_configuration(tmp_path: Path) -> None:
    entry = "{class_name: trainer.agent.tools.python.PythonTool, config: {type: native, max_output: 3}}"
    (tmp_path / "tools.yaml").write_text(f"tools: [{entry}]")
    settings = config.load([f"{MULTI_TURN}.enable=True", f"{MULTI_TURN}.tool_config_path={tmp_path}/tools.yaml"]).config
    houses = Houses(Source(TOOLS, read_environment(settings), constructor(settings)), isolate=False)
    assert [each["function"]["name"] for each in schemas_in(houses)] == ["python"]
    playing = Playing(houses.home(), options_of({}, "tool_agent"))
    assert playing.step(call("python", {"code": "print(12345)"})).text == "123\n[ended after 3 bytes of output]"
    assert "give the code as the argument `code`" in playing.step(call("python", {})).text
    playing.home.end()
    for wrong in ({"timeout": 0}, {"memory_mb": "1"}, {"max_output": True}, {"time": 3}):
        with pytest.raises(ValueError, match="PythonTool"):
            PythonTool(wrong, None)
