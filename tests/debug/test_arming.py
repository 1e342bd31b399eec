"""Breakpoints in functions of every kind, however they come into the process, and none left when they are removed."""

from __future__ import annotations

import asyncio
import builtins
import gc
import importlib
import json
import linecache
import py_compile
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker.records import Breakpoint
from tests.debug.armory import DEADLINE, Armory
from tests.pace import stretched

KINDS = """
import asyncio, contextlib, functools

def deco(f):
    @functools.wraps(f)
    def wrapper(*a, **k):
        return f(*a, **k)
    return wrapper

def hides(f):
    return lambda *a: f(*a)

class Base:
    def go(self, x): return x

class K(Base):
    field = 3
    @deco
    @deco
    def go(self, x):
        y = super().go(x)  # @decorated
        return y + 1
    @property
    def p(self):
        return 3  # @property
    @p.setter
    def p(self, value):
        self.value = value  # @setter
    @staticmethod
    def s(a):
        return a * 2  # @static
    @classmethod
    def c(cls):
        return cls.field  # @classmethod
    @functools.cached_property
    def cached(self):
        return 4  # @cached
    class Inner:
        def deep(self):
            return 5  # @inner_class

@hides
def hidden(x):
    return x  # @hidden

def outer(n):
    k = n
    def inner(i):
        z = i + k
        return z  # @closure
    return inner

def local_class():
    class Local:
        def get(self):
            return 7  # @local_class
    return Local

async def co(x):
    await asyncio.sleep(0)
    return x  # @async

async def agen():
    yield 1  # @async_generator

@contextlib.contextmanager
def manager():
    yield 1  # @manager

def gen(n):
    for i in range(n):
        yield i  # @generator

def multi(a, b):
    found = [  # @multi
        a
        + j
        for j in range(b)
    ]
    return found

partial = functools.partial(multi, 1)
table = {"f": deco(lambda q: q), "g": multi}

async def everything():
    k = K()
    k.p = k.go(1)
    async for x in agen():
        pass
    with manager():
        pass
    return [k.value, k.p, k.s(2), k.c(), k.cached, k.Inner().deep(), hidden(1), outer(1)(2), local_class()().get(),
            await co(3), list(gen(1)), multi(1, 2), partial(1), table["g"](1, 1)]
"""
EVERY_HIT = ["async", "async_generator", "cached", "classmethod", "closure", "decorated", "generator", "hidden"]
EVERY_HIT += ["inner_class", "local_class", "manager", "multi", "multi", "multi", "property", "setter", "static"]


@pytest.fixture
def armory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_objects: None) -> Iterator[Armory]:
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Armory(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("when", ["before the import", "after the import"])
def test_functions_of_all_kinds(armory: Armory, when: str) -> None:
    armory.write(KINDS, f"kinds_{when.split()[0]}")
    if when == "after the import":
        module = armory.load()
        expected = asyncio.run(module.everything())
        closure, local = module.outer(1), module.local_class()
        armory.arm()
    else:
        armory.arm()
        assert armory.note("closure") == "module not loaded yet" and armory.places("closure") == 0
        before = armory.changes
        module = armory.load()
        expected = asyncio.run(module.everything())
        armory.marks()
        closure, local = module.outer(1), module.local_class()
        assert armory.changes > before
    for name in armory.lines:
        assert (armory.places(name), armory.note(name)) == (1, ""), name
    assert asyncio.run(module.everything()) == expected
    assert sorted(armory.marks()) == EVERY_HIT
    assert closure(2) == 3 and local().get() == 7  # made before they were armed
    assert armory.marks() == ["closure", "local_class"]
    for name in armory.lines:
        armory.arming.remove(name)
    assert asyncio.run(module.everything()) == expected and closure(2) == 3 and armory.marks() == []
    codes = [each.__code__ for each in gc.get_objects() if type(each) is types.FunctionType]
    assert not any("__devkit_hit__" in code.co_names for code in codes if code.co_filename == str(armory.path))


def test_a_function_gets_its_own_code_back(armory: Armory) -> None:
    armory.write("def f(x):\n    y = x  # @a\n    return y  # @b\n", "own_code")
    f = armory.load().f
    code = f.__code__
    armory.arm("a")
    armory.arm("b", condition="x == 2")
    assert f.__code__ is not code and f.__code__.co_filename == code.co_filename
    assert [f(1), f(2)] == [1, 2] and armory.marks() == ["a", "a", "b"]
    armory.arming.remove("a")
    assert [f(1), f(2)] == [1, 2] and armory.marks() == ["b"]
    armory.arming.remove("b")
    assert f.__code__ is code
    armory.arming.remove("b")
    armory.arming.remove("never was")


def test_lines_of_a_module_that_is_imported(armory: Armory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    text = """
    found = []
    for i in range(3):
        found.append(i)  # @loop
    class C:
        x = 1  # @body
        def f(self): return self.x  # @method
    """
    armory.write(text, "module_lines")
    armory.arm("loop", condition="i == 1")
    armory.arm("body", "method")
    module = armory.load()
    assert armory.marks() == ["loop", "body"] and module.found == [0, 1, 2]
    assert module.C().f() == 1 and armory.marks() == ["method"]
    assert armory.places("loop") == 1
    cached = [path.read_bytes() for path in (armory.folder / "__pycache__").glob("module_lines*")]
    assert len(cached) == 1 and b"__devkit" not in cached[0]


def test_a_line_that_has_run_already_says_so(armory: Armory) -> None:
    armory.write("x = 1  # @top\ndef f(): pass\nclass C:\n    y = 1  # @body\n", "has_run")
    armory.load()
    armory.arm("top", "body")
    for name in ("top", "body"):
        assert armory.places(name) == 0 and "ran when its module was loaded" in armory.note(name)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_line_without_code_is_named(armory: Armory, when: str) -> None:
    armory.write("def f():\n    # words  # @none\n    return 1\n", f"no_code_{when}")
    if when == "after":
        armory.load()
    armory.arm("none")
    assert armory.load().f() == 1
    assert armory.places("none") == 0 and "line 2 of" in armory.note("none") and "no code" in armory.note("none")


def test_text_that_is_not_what_runs_is_left_alone(armory: Armory) -> None:
    text = "def f(x):\n    return x + 1  # @a\n"
    armory.write(text, "edited")
    f = armory.load().f
    code = f.__code__
    armory.write("\n" + text, "edited")
    linecache.checkcache()
    armory.arm("a")
    assert armory.places("a") == 0 and armory.note("a") == "the source differs from the running code"
    assert f.__code__ is code
    armory.arming.remove("a")
    armory.lines["a"] = 2
    armory.arm("a", source=text)  # the client still has what runs
    assert f(1) == 2 and armory.marks() == ["a"]


def test_a_compiled_file_that_is_older_than_its_text(armory: Armory) -> None:
    path = armory.write("def f(x):\n    return x + 1\n", "old_cache")
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    armory.write("\ndef f(x):\n    return x + 2  # @a\n", "old_cache")
    armory.arm("a")
    assert armory.load().f(1) == 2 and armory.marks() == []
    assert armory.places("a") == 0 and armory.note("a") == "the source differs from the running code"


def test_an_edit_doesnt_disarm_what_is_armed(armory: Armory) -> None:
    text = "def f(x):\n    y = x  # @a\n    return y  # @b\n"
    armory.write(text, "edited_later")
    f = armory.load().f
    armory.arm("a")
    armory.path.write_text("\n" + text)
    linecache.checkcache()
    armory.arm("b")
    assert armory.places("a") == 1 and armory.places("b") == 0 and "differs" in armory.note("b")
    assert f(1) == 1 and armory.marks() == ["a"]
    armory.arming.remove("a")
    assert f(1) == 1 and armory.marks() == []


def test_a_file_is_found_by_the_end_of_its_name(armory: Armory) -> None:
    text = "def f():\n    return 1  # @a\n"
    armory.write("", "pkg/__init__")
    armory.write("", "repkg/__init__")
    armory.write("def f():\n    return 2  # @a\n", "repkg/mod")
    other = armory.load("repkg.mod").f
    armory.write(text, "pkg/mod")
    f = armory.load("pkg.mod").f
    armory.arm("a", paths=("/somewhere/else/pkg/mod.py", "pkg/mod.py"), source=text)
    assert [f(), other()] == [1, 2] and armory.marks() == ["a"]
    armory.arming.remove("a")
    # The end fits two files, but the text is one's only.
    armory.arm("a", paths=("mod.py",), source=text)
    assert [f(), other()] == [1, 2] and armory.marks() == ["a"] and armory.places("a") == 1
    armory.arming.remove("a")
    # Of two that fit, that which fits best.
    armory.arm("a", paths=(str(armory.path), "mod.py"))
    assert [f(), other()] == [1, 2] and armory.marks() == ["a"]


@pytest.mark.parametrize("when", ["before the import", "after the import"])
def test_a_file_of_a_folder_that_ray_has_unpacked(armory: Armory, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The breakpoint has the user's own path: what is uploaded is told by its end and its text."""
    unpacked = armory.folder / "working_dir_files" / "_ray_pkg_0f3a"
    unpacked.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(unpacked))
    text = "def f(x):\n    return x + 1  # @a\n"
    armory.write(text, f"working_dir_files/_ray_pkg_0f3a/unpacked_{when.split()[0]}")
    module = armory.load() if when == "after the import" else None
    armory.arm("a", paths=(f"/home/me/project/{armory.path.name}",), source=text)
    module = module or armory.load()
    assert module.f(1) == 2 and armory.marks() == ["a"]
    armory.arming.remove("a")
    other = "def f(x):\n    return x + 2\n"
    for path, source, note in (
        ("/home/me/project/un.py", text, ""),
        (f"/home/me/{armory.path.name}", other, "differs"),
    ):
        armory.arm("a", paths=(path,), source=source)
        assert module.f(1) == 2 and armory.marks() == [] and note in armory.note("a")
        armory.arming.remove("a")


def test_another_file_of_the_same_end_is_not_touched_when_it_is_imported(armory: Armory) -> None:
    armory.write("", "other_pkg/__init__")
    armory.write("def f():\n    return 2  # @a\n", "other_pkg/late_mod")
    armory.arm("a", paths=("/x/late_mod.py", "late_mod.py"), source="def f():\n    return 1\n")
    assert armory.load("other_pkg.late_mod").f() == 2
    assert armory.marks() == [] and armory.places("a") == 0 and "differs" in armory.note("a")


def test_breakpoints_by_name(armory: Armory) -> None:
    armory.write(KINDS, "kinds_named")
    names = {
        "decorated": "K.go",
        "property": "K.p",
        "static": "K.s",
        "classmethod": "K.c",
        "cached": "K.cached",
        "inner_class": "K.Inner.deep",
        "hidden": "hidden",
        "closure": "outer.inner",
        "async": "co",
        "generator": "gen",
    }
    module = armory.load()
    made = module.outer(1)
    for name, qualname in names.items():
        armory.arm(name, module="kinds_named", qualname=qualname)
    for name in names:
        assert (armory.places(name), armory.note(name)) == (1, ""), name
    armory.lines = {}  # they are at the beginning of the functions
    asyncio.run(module.everything())
    made(1)
    assert sorted(armory.marks()) == sorted([*names, "closure"])


def test_a_name_that_comes_from_another_module(armory: Armory) -> None:
    armory.write(
        "class Base:\n    def f(self):\n        return 1  # @f\n\ndef g():\n    return 2  # @g\n", "named_base"
    )
    lines = armory.lines
    armory.write("from named_base import Base, g\nclass Sub(Base): pass\n", "named_sub")
    module = armory.load()
    armory.lines = lines
    armory.arm("f", module="named_sub", qualname="Sub.f")
    armory.arm("g", module="named_sub", qualname="g")
    assert module.Sub().f() + module.g() == 3 and armory.marks() == ["f", "g"]


def test_a_name_in_a_module_that_is_loaded_later(armory: Armory) -> None:
    armory.write("class C:\n    def f(self):\n        '''Doc.'''\n        return 1  # @f\n", "named_later")
    armory.arm("f", module="named_later", qualname="C.f")
    armory.arm("none", module="named_later", qualname="C.g")
    assert armory.note("f") == "module not loaded yet"
    assert armory.load().C().f() == 1 and armory.marks() == ["f"] and armory.places("f") == 1
    assert armory.places("none") == 0 and "C.g" in armory.note("none")
    armory.arm("late", module="named_later", qualname="h")
    assert armory.note("late") == "named_later has no function h"


# ---- functions by value

BY_VALUE = """
import sys
class Actor:
    scale = 2
    def __init__(self):
        self.calls = []
    def step(self, x):
        self.calls.append(x)
        return x * self.scale  # @method
def make(n):
    def inner(x):
        return x + n  # @inner
    return inner
def task(x):
    f = make(x)
    return f(1)  # @task
"""


def by_value(armory: Armory, name: str) -> tuple[Any, dict[str, Any]]:
    """A pickler, and what a driver's script would send, which is not importable here."""
    pickler: Any = pytest.importorskip("ray.cloudpickle")
    armory.write(BY_VALUE, name)
    module = armory.load()
    pickler.register_pickle_by_value(module)
    sent = {each: getattr(module, each) for each in ("Actor", "task", "make")}
    sent["inner"] = module.make(5)
    return pickler, sent


@pytest.mark.parametrize("when", ["armed first", "armed later"])
def test_functions_that_arrive_by_value(armory: Armory, when: str) -> None:
    pickler, sent = by_value(armory, f"by_value_{when[-5:]}")
    data = pickler.dumps(sent)
    sys.modules.pop(armory.path.stem)
    text = armory.path.read_text()
    armory.path.unlink()
    linecache.clearcache()
    if when == "armed later":
        received = pickler.loads(data)
        armory.arm(source=text)
    else:
        armory.arm(source=text)
        received = pickler.loads(data)
    for name in armory.lines:
        assert (armory.places(name), armory.note(name)) == (1, ""), name
    assert [received["Actor"]().step(1), received["inner"](1), received["task"](1)] == [2, 6, 2]
    assert armory.marks() == ["method", "inner", "task", "inner"]
    again = pickler.loads(data)
    assert again["task"](1) == 2 and armory.marks() == ["task", "inner"]


def test_what_is_pickled_holds_no_breakpoint(armory: Armory) -> None:
    pickler, sent = by_value(armory, "by_value_sent")
    armory.arm("method", "inner", "task", condition="sys is None")
    assert "sys" in sent["task"].__code__.co_names and "__devkit_hit__" in sent["inner"].__code__.co_names
    data = pickler.dumps(sent)
    assert b"__devkit" not in data and b"sys" not in data
    program = (
        "import sys, pickle, ray.cloudpickle;"
        "got = pickle.load(sys.stdin.buffer);"
        "print(got['Actor']().step(1), got['inner'](1), got['task'](1))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=stretched(60))
    assert done.stdout.split() == [b"2", b"6", b"2"], done.stderr


def test_a_function_by_value_from_other_text_is_left_alone(armory: Armory) -> None:
    pickler, sent = by_value(armory, "by_value_other")
    data = pickler.dumps(sent)
    armory.write("# a new line\n" + BY_VALUE, "by_value_other")
    linecache.checkcache()
    sys.modules.pop("by_value_other")
    armory.arm(source=armory.path.read_text())
    assert pickler.loads(data)["task"](1) == 2 and armory.marks() == []


# ---- conditions


def test_a_condition_that_raises_is_reported_once(armory: Armory) -> None:
    armory.write("def f(x):\n    return x  # @a\n", "raises")
    f = armory.load().f
    armory.arm("a", condition="x.missing == 3")
    assert [f(n) for n in range(5)] == list(range(5))
    assert armory.errors == [("a", "AttributeError: 'int' object has no attribute 'missing'")] and not armory.hits


@pytest.mark.parametrize("condition", ["x =", "(yield)", "await x"])
def test_a_condition_that_cannot_be_is_a_note(armory: Armory, condition: str) -> None:
    armory.write("def f(x):\n    return x  # @a\n", "cannot_be")
    f = armory.load().f
    armory.arm("a", condition=condition)
    assert armory.places("a") == 0 and "the condition" in armory.note("a") and f(1) == 1
    armory.arming.remove("a")


def test_conditions_see_private_names_and_closures(armory: Armory) -> None:
    text = """
    class A:
        def f(self, xs):
            self.__n = 3
            return max(xs)  # @private
    """
    armory.write(text, "private_names")
    armory.arm("private", condition="any(x == self.__n for x in xs)")
    a = armory.load().A()
    assert [a.f([1]), a.f([3])] == [1, 3] and armory.marks() == ["private"] and not armory.errors


# ---- where it could go wrong


def test_functions_that_were_frozen_are_found(armory: Armory) -> None:
    """`gc.freeze` hides what there is from the collector; engines call it before they fork."""
    armory.write(KINDS, "kinds_frozen")
    module = armory.load()
    gc.freeze()
    try:
        armory.arm("decorated", "property", "static", "classmethod", "hidden", "inner_class")
    finally:
        gc.unfreeze()
    asyncio.run(module.everything())
    assert sorted(armory.marks()) == ["classmethod", "decorated", "hidden", "inner_class", "property", "static"]


def test_a_function_with_builtins_of_its_own(armory: Armory) -> None:
    path = armory.write("def f():\n    return 1  # @a\n", "own_builtins")
    names: dict[str, Any] = {"__builtins__": {"len": len}}
    exec(compile(path.read_text(), str(path), "exec"), names)
    armory.arm("a")
    assert names["f"]() == 1 and armory.marks() == ["a"]


def test_a_function_that_came_unseen_is_found_later(armory: Armory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = armory.write("def f():\n    return 1  # @a\n", "unseen")
    armory.arm("a")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert names["f"]() == 1 and armory.marks() == []
    monkeypatch.setitem(sys.modules, "a_new_module", types.ModuleType("a_new_module"))  # what makes `state` look again
    assert armory.places("a") == 1
    assert names["f"]() == 1 and armory.marks() == ["a"]


def test_the_debuggers_own_threads_dont_stop(armory: Armory) -> None:
    armory.write("def f():\n    return 1  # @a\n", "own_threads")
    f = armory.load().f
    armory.arm("a")
    for name, expected in (("devkit-agent", []), ("another", ["a"])):
        thread = threading.Thread(target=f, name=name)
        thread.start()
        thread.join(DEADLINE)
        assert armory.marks() == expected


def test_a_breakpoint_in_what_the_debugger_uses_is_hit_by_the_program_only(armory: Armory) -> None:
    line = next(n for n, text in enumerate(Path(json.__file__).read_text().splitlines(), 1) if "def dumps" in text)
    gc.unfreeze()  # it is no new object
    armory.arming.add(Breakpoint("dumps", "", paths=(json.__file__,), line=line))
    assert armory.places("dumps") == 1
    json.dumps({})
    assert [mark for mark, _, _ in armory.hits] == ["dumps"]
    ours = {"json": json}
    filename = str(Path(sys.modules["devkit.debug.inworker.arming"].__file__ or "").with_name("wire.py"))
    exec(compile("json.dumps({})", filename, "exec"), ours)
    assert len(armory.hits) == 1


def test_an_import_that_fails_fails_as_before(armory: Armory) -> None:
    armory.write("x = 1  # @a\n1 / 0\n", "fails")
    armory.arm("a")
    with pytest.raises(ZeroDivisionError):
        armory.load()
    assert armory.marks() == ["a"]
    armory.write("x = (\n", "fails_to_parse")
    armory.arming.add(armory.point("b", line=1))
    with pytest.raises(SyntaxError) as caught:
        armory.load()
    assert not any("inworker" in str(each.path) for each in caught.traceback)


def test_installing_twice_and_again(armory: Armory) -> None:
    armory.arming.install()
    armory.arming.uninstall()
    armory.arming.install()
    armory.write("def f():\n    return 1  # @a\n", "twice")
    armory.arm("a")
    assert armory.load().f() == 1 and armory.marks() == ["a"]
    assert hasattr(builtins, "__devkit_hit__")


def test_arming_and_disarming_keeps_nothing(armory: Armory) -> None:
    armory.write("def f(x):\n    return x  # @a\n", "thousand")
    f = armory.load().f
    code = f.__code__
    for _ in range(12):
        armory.arm("a", condition="x == -1")
        armory.arming.remove("a")
    gc.collect()
    assert f.__code__ is code and len(armory.arming._swapping.ledger._entries) < 5


def test_arming_while_threads_run(armory: Armory) -> None:
    """Functions are swapped under threads that call them, and modules are loaded meanwhile: all results stay right."""
    armory.write("def f(x):\n    y = x + 1  # @a\n    return y * 2  # @b\n", "busy")
    module = armory.load()
    stop, wrong = threading.Event(), []

    def call() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            if module.f(n) != (n + 1) * 2:
                wrong.append(n)
            if n % 100 == 0:
                stop.wait(0.001)  # leaves the processor to others

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for count in range(3):
            armory.arm("a", condition="x == -1")
            armory.arm("b")
            importlib.reload(module)
            armory.arming.remove("a" if count % 2 else "b")
            armory.arming.remove("a")
            armory.arming.remove("b")
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
    assert not wrong and not armory.errors
    armory.hits.clear()
    armory.arm("b")
    module.f(1)
    assert armory.marks() == ["b"]
