"""What people type at a debugger's prompt gives what pdb gives: each idiom is tried in pdb itself and here."""

from __future__ import annotations

import builtins
import gc
import io
import pdb
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from devkit.debug.inworker import dap_frames, hits
from devkit.debug.inworker.conditions import Condition
from devkit.debug.inworker.dap_frames import Node, References
from devkit.debug.inworker.instrument import Mark, Source
from devkit.debug.inworker.scopes import assign, evaluate
from devkit.debug.inworker.specs import SpecError, check_condition
from devkit.debug.inworker.values import evaluate_log, evaluate_summary
from tests.debug import idioms
from tests.debug.idioms import CHANGES, LOOKS, Idiom

FAILED = re.compile(r"^\*\*\* (\w+)(?:: |$)")
PDB_CANNOT = {"NameError", "RuntimeError", "AttributeError"}


def is_expression(text: str) -> bool:
    """The client of `eval` takes nothing else."""
    try:
        compile(text, "<expression>", "eval")
    except SyntaxError:
        return False
    return True


EXPRESSIONS = [each for each in LOOKS if is_expression(each.last)]


def in_pdb(idiom: Idiom) -> tuple[str, Any]:
    """What pdb shows last, an exception by its name; and what became of the program's variables."""
    typed = [*(f"!{line}" for line in idiom.lines[:-1]), "!print('@@')", f"p {idiom.last}", "c"]
    shown = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("\n".join(typed) + "\n"), stdout=shown, nosigint=True, readrc=False)
    debugger.prompt = ""
    before, sys.stdout = sys.stdout, shown
    try:
        after = idioms.play(lambda: debugger.set_trace(sys._getframe(1)))
    finally:
        sys.stdout = before
        sys.settrace(None)
    text = shown.getvalue().rpartition("@@\n")[2].strip()
    failed = FAILED.match(text)
    return failed[1] if failed else text, after


def played(idiom: Idiom, look: Callable[[FrameType], str]) -> tuple[str, Any]:
    """The same with us: `look` shows the last line; the others are run as the prompt runs them."""
    shown: list[str] = []

    def stop() -> None:
        frame = sys._getframe(1)
        for line in idiom.lines[:-1]:
            at_prompt(frame, line, "repl")
        shown.append(look(frame))

    after = idioms.play(stop)
    return shown[0], after


def at_prompt(frame: FrameType, text: str, context: str) -> str:
    node: Any = Node(None, frame, "frame")  # type: ignore[arg-type]
    try:
        answer, _ = dap_frames.evaluated(node, {"expression": text, "context": context}, References())
    except Exception as error:  # noqa: BLE001 - what a text raises is its outcome
        return type(error).__name__
    return str(answer["result"])


def as_p(idiom: Idiom) -> str:
    return played(idiom, lambda frame: at_prompt(frame, idiom.last, "clipboard"))[0]


def truth_of(idiom: Idiom) -> str:
    """Whether it is true where it stands, or what it raises."""

    def look(frame: FrameType) -> str:
        try:
            return str(bool(evaluate(idiom.last, frame)))
        except Exception as error:  # noqa: BLE001 - as above
            return type(error).__name__

    return played(idiom, look)[0]


@pytest.mark.parametrize("idiom", LOOKS + CHANGES, ids=lambda idiom: " ; ".join(idiom.lines))
def test_p_gives_what_pdb_gives(idiom: Idiom) -> None:
    mine, became = played(idiom, lambda frame: at_prompt(frame, idiom.last, "clipboard"))
    for _ in range(2):  # up to Python 3.12 pdb loses a change of locals() when another thread reads them just then
        theirs, after = in_pdb(idiom)
        wanted = idiom.more if idiom.more and theirs in PDB_CANNOT | {idiom.less} else theirs
        if mine == wanted and (idiom.more or became == after):
            break
    assert mine == wanted, f"pdb: {theirs}"
    if not idiom.more:
        assert became == after


@pytest.mark.parametrize("idiom", EXPRESSIONS, ids=lambda idiom: idiom.last)
def test_eval_and_logpoints_give_what_p_gives(idiom: Idiom) -> None:
    class Stop:
        def run(self, call: Callable[[], Any], _timeout: float) -> Any:
            return call()

    def answered(frame: FrameType) -> str:
        answer = evaluate_summary(Stop(), idiom.last, frame, 9.0)
        return str(answer["value"]) if answer["error"] is None else str(answer["error"]).partition(":")[0]

    wanted = as_p(idiom)
    assert played(idiom, answered)[0] == wanted
    if not wanted.endswith("Error"):
        logged = played(idiom, lambda frame: evaluate_log(idiom.last, frame))[0].partition(", ... ")[0]  # it is cut
        assert wanted.startswith((logged, f"'{logged}'", f'"{logged}"'))


def test_a_function_that_is_left_in_the_program_keeps_what_it_uses_and_nothing_else() -> None:
    class Large:
        pass

    def program() -> tuple[Any, Any, Any]:
        large, scale = Large(), 3
        frame, kept = sys._getframe(), {}
        evaluate("kept['f'] = lambda k: [k * scale + len(OUTSIDE) for _ in 'a']", frame, also={"OUTSIDE": [1]})
        return kept["f"], weakref.ref(large), scale

    function, large, _ = program()
    gc.collect()
    assert large() is None
    with pytest.raises(NameError):
        function(2)  # what the debugger lent is gone
    function.__globals__["OUTSIDE"] = [1, 2]
    assert function(2) == [8]


def test_in_a_module_and_in_a_class_the_names_are_its_own() -> None:
    module: dict[str, Any] = {"look": sys._getframe, "__name__": "made"}
    code = "x = 1\nframe = look()\nclass A:\n    y = 2\n    inner = look()\n    del y\n"
    exec(code, module)
    assert evaluate("locals() is globals(), x, [x for _ in 'a']", module["frame"]) == (True, 1, [1])
    evaluate("new = 5\ndel x", module["frame"])
    assert module["new"] == 5 and "x" not in module
    assert "inner" in evaluate("dir()", module["A"].inner) and evaluate("new", module["A"].inner) == 5


@pytest.fixture
def conditioned() -> Iterator[Callable[[str], str]]:
    """Whether a condition held in the method, inlined or not; or the name of what it raised."""
    text = Path(idioms.__file__).read_text()
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.lstrip().startswith('return {"x"'))
    known: dict[str, Condition] = {}
    told: list[str] = []
    hits.install(
        lambda _names, _frame: told.append("True"),
        lambda _name, error: told.append(type(error).__name__),
        known.get,
    )

    def run(condition: str) -> str:
        check_condition(condition)
        built = Source(text, "idioms.py").build([Mark("b", line, condition=condition)], "idioms.py", whole=True)
        known["b"] = Condition(condition, built.sites["b"][0].class_name)
        module: dict[str, Any] = {"__name__": idioms.__name__}
        sys.modules.setdefault(idioms.__name__, idioms)
        exec(built.module.marked, module)
        told.clear()
        module["play"](lambda: None)
        return told[0] if told else "False"

    yield run
    for name in hits.NAMES:
        delattr(builtins, name)


@pytest.mark.parametrize("idiom", EXPRESSIONS, ids=lambda idiom: idiom.last)
def test_conditions_are_true_where_p_shows_what_is_true(idiom: Idiom, conditioned: Callable[[str], str]) -> None:
    try:
        held = conditioned(idiom.last)
    except SpecError:
        return  # refused when it is set
    wanted = truth_of(idiom)
    assert held == wanted
    watched = played(idiom, lambda frame: _holds(Condition(idiom.last, "Scene"), frame))[0]
    assert watched == wanted  # in a frame that ran already


def _holds(condition: Condition, frame: FrameType) -> str:
    try:
        return str(condition.holds(frame))
    except Exception as error:  # noqa: BLE001 - as above
        return type(error).__name__


@pytest.mark.parametrize(
    "look",
    [
        lambda frame: Condition("'large' in locals()").holds(frame),
        lambda frame: assign("small", 2, frame),
    ],
    ids=["condition", "assignment"],
)
def test_what_looks_at_a_frame_keeps_nothing_of_it(look: Callable[[FrameType], Any]) -> None:
    """Python's collector may be off, as trainers have it: a tensor would stay with each hit."""

    class Large:
        pass

    def call() -> weakref.ref[Large]:
        large, small = Large(), 1
        look(sys._getframe())
        assert small
        return weakref.ref(large)

    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
