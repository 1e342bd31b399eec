"""Values as texts, documents and trees, and expressions in frames: what the program would see, without running it."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
import ray
import torch

from devkit.debug.inworker import arrays, tree
from devkit.debug.inworker.as_documents import to_json
from devkit.debug.inworker.redaction import scrub
from devkit.debug.inworker.scopes import assign
from devkit.debug.inworker.values import (
    LARGE,
    Limits,
    evaluate,
    evaluate_log,
    evaluate_summary,
    redact,
    summarise,
)
from tests.debug.conftest import eventually


class Hostile:
    """Everything that a value may do to whoever looks at it."""

    def __init__(self) -> None:
        self.x = 1

    def _fail(self, *_arguments: object) -> Any:
        raise RuntimeError("the program's own code ran")

    __repr__ = __str__ = __len__ = __bool__ = __eq__ = __hash__ = __iter__ = __getattr__ = _fail  # type: ignore[assignment]

    @property
    def shown(self) -> int:
        return int(self._fail())


class HostileList(list[Any]):
    __repr__ = __iter__ = __len__ = __getitem__ = Hostile._fail  # type: ignore[assignment]


class HostileDict(dict[str, Any]):
    __repr__ = __iter__ = __len__ = __getitem__ = items = keys = Hostile._fail  # type: ignore[assignment]


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Config:
    lr: float
    names: list[str]


class Slotted:
    __slots__ = ("set", "unset")

    def __init__(self) -> None:
        self.set = 1


# No parameters of pytest: it looks at them, as we must not.
TEXTS: list[tuple[Any, str]] = [
    (None, "None"),
    (1.5, "1.5"),
    ("it's", '"it\'s"'),
    (b"x", "b'x'"),
    ((1,), "(1,)"),
    ({3, 1, 2}, "{1, 2, 3}"),
    (Colour.RED, "Colour.RED"),
    (Pair(1, 2), "Pair(x=1, y=2)"),
    (Config(0.1, ["a"]), "<Config lr=0.1, names=['a']>"),
    (Slotted(), "<Slotted set=1>"),
    (ValueError("bad", 3), "ValueError('bad', 3)"),
    (collections.deque([1, 2]), "deque([1, 2])"),
    (collections.defaultdict(list, a=[1]), "defaultdict({'a': [1]})"),
    (Hostile(), "<Hostile x=1>"),
    (HostileList([1, 2]), "HostileList([1, 2])"),
    (HostileDict(a=1), "HostileDict({'a': 1})"),
    (10**400, "<int of 1329 bits>"),
    (torch.float32, "torch.float32"),
    (numpy.float32(2), "np.float32(2.0)"),
    (len, "<builtin_function_or_method len>"),
    (Config, f"<class {Config.__module__}.Config>"),
    (object(), "<object>"),
]


def test_a_tensor_of_inference_mode_says_so() -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        made = torch.zeros(2)
    assert summarise(made).startswith("tensor float32[2] cpu, inference min=0 ")
    assert summarise(made.clone()).startswith("tensor float32[2] cpu min=0 ")


def test_of_many_items_a_type_that_is_not_shown_is_told() -> None:
    items: list[object] = [{"text": "a"}] * 20 + [ConnectionError()] * 2
    assert summarise(items).startswith("[2 of 22 are ConnectionError: {'text': 'a'}, ")
    assert summarise([1] * 20).startswith("[1, 1, ")


def test_texts() -> None:
    for value, text in TEXTS:
        shown = summarise(value)
        assert shown == text
        json.dumps(to_json(value), allow_nan=False)
        tree.counts(value)


def test_texts_are_capped_and_end() -> None:
    endless: dict[str, Any] = {"items": list(range(1000)), "text": "x" * 100_000}
    endless["self"] = endless
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    wide = {f"key{number}": ["y" * 1000] * 50 for number in range(1000)}
    for value in (endless, deep, wide, [wide] * 100):
        assert len(summarise(value)) <= Limits().total + 1
        assert len(summarise(value, LARGE)) <= LARGE.total + 1
    assert "... 992 more" in summarise(endless) and "'self': ..." in summarise(endless)


def test_equal_values_have_equal_texts_without_addresses() -> None:
    assert summarise(lambda: 1) == summarise(lambda: 1)
    for value in (object(), (each for each in ()), sys._getframe(), sys.stderr, print):
        assert "0x" not in summarise(value)


def test_tensors() -> None:
    text = summarise(torch.arange(6.0).reshape(2, 3))
    assert text.startswith("tensor float32[2, 3] cpu min=0 max=5 mean=2.5 #")
    assert text.endswith("[0, 1, 2, 3, 4, 5]")
    assert summarise(torch.tensor([float("nan"), 1.0])).startswith("tensor float32[2] cpu min=1 max=1 mean=1 nan=1 #")
    assert summarise(torch.zeros(3, device="meta")) == "tensor float32[3] meta (meta)"
    assert summarise(torch.zeros(0)) == "tensor float32[0] cpu (empty)"
    for kind in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.int8, torch.float64):
        assert "mean=1 " in summarise(torch.ones(100, 3).to(kind)), kind
    assert "#" in summarise(torch.tensor([1 + 2j])) and "min" not in summarise(torch.tensor([1 + 2j]))
    assert summarise(torch.nn.Parameter(torch.ones(9))).startswith("tensor float32[9] cpu min=1")


def test_hashes_tell_contents_apart_and_nothing_else() -> None:
    def tag(value: Any) -> str:
        return str(arrays.array_facts(value)["hash"])  # type: ignore[index]

    base = torch.arange(12.0).reshape(3, 4)
    changed = base.clone()
    changed[2, 3] += 1e-6 * 11
    assert tag(base) == tag(base.clone()) == tag(base.t().contiguous().t())
    assert len({tag(base), tag(changed), tag(base.reshape(4, 3)), tag(base.t())}) == 4


def test_large_and_chunked_arrays_give_the_same_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.randn(7, 5, 3)
    value[3, 2, 1] = float("nan")
    whole = arrays.array_facts(value)
    monkeypatch.setattr(arrays, "CHUNK", 4)
    chunked = arrays.array_facts(value)
    assert whole is not None and chunked is not None
    assert {**chunked, "mean": 0} == {**whole, "mean": 0} and chunked["mean"] == pytest.approx(whole["mean"])
    assert chunked["nan"] == 1
    monkeypatch.setattr(arrays, "MOST_ELEMENTS", 30)
    head = arrays.array_facts(value)
    assert head is not None
    assert head["note"] == "of the first 30 elements" and head["max"] == value[:2].max().item()


def test_a_tensor_subclass_is_not_asked() -> None:
    class Collective(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_arguments: Any, **_more: Any) -> Any:
            raise SystemExit("a collective would wait for stopped ranks")

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, (2, 3))  # type: ignore[attr-defined,no-any-return]

        @classmethod
        def __torch_dispatch__(cls, *_arguments: Any, **_more: Any) -> Any:  # type: ignore[override]
            raise SystemExit("a collective would wait for stopped ranks")

    plain = torch.ones(10).as_subclass(Collective)
    assert summarise(plain).startswith("tensor float32[10] cpu min=1")
    assert summarise(Wrapper()) == "tensor float32[2, 3] cpu (Wrapper: not looked into)"
    assert tree.counts(Wrapper())[1] == 0


def test_a_sharded_tensor_is_its_local_part() -> None:
    """A DTensor's own `min` is a collective: on one rank of a real group of one, no call is made."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = distribute_tensor(torch.arange(10.0), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert "tensor float32[10] cpu min=0 max=9" in summarise(sharded)
        assert [child.name for child in tree.indexed(sharded, 8, 5)] == ["8", "9"]
    finally:
        dist.destroy_process_group()


def test_arrays() -> None:
    assert summarise(numpy.arange(3)).startswith("array int64[3] min=0 max=2 mean=1 #")
    assert summarise(numpy.empty(1, dtype=object)) == "array object[1]"
    assert summarise(numpy.array(["a"])) == "array <U1[1]"
    assert summarise(numpy.ma.masked_array([1.0, 2.0], [True, False])).startswith("array float64[2] min=1")


@pytest.mark.parametrize(
    ("name", "is_hidden"),
    [
        ("token", True), ("HF_TOKEN", True), ("accessToken", True), ("password", True), ("DB_PASSWORD", True),
        ("client_secret", True), ("api_key", True), ("apiKey", True), ("OPENAI_API_KEY", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("Authorization", True), ("credentials", True), ("private_key", True), ("cookie", True),
        ("eos_token", False), ("pad_token", False), ("tokens", False), ("token_ids", False), ("num_tokens", False),
        ("keyboard", False), ("key", False), ("primary_key", False), ("secretary", False), ("author", False),
        ("tokenizer", False), ("PWD", True), ("OLDPWD", False), ("", False),
    ],
)  # fmt: skip
def test_secrets_by_name(name: str, is_hidden: bool) -> None:
    assert (redact(name, "value") == "<redacted>") is is_hidden
    assert ("value" not in summarise({"outer": {name: "value"}})) is is_hidden
    assert ("value" not in json.dumps(to_json({"outer": [{name: "value"}]}))) is is_hidden


def test_tokens_of_a_tokenizer_are_shown() -> None:
    assert redact("token", 17) == 17
    assert redact("token", [1, 2]) == [1, 2]
    assert redact("password", 1234) == "<redacted>"
    assert redact("password", None) is None


def test_secrets_of_the_environment_are_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "verysecret-4711")
    assert "verysecret" not in summarise(os.environ, Limits(items=10_000, total=10**6))
    assert "verysecret" not in summarise(["a text with verysecret-4711 in it"])
    assert "verysecret" not in json.dumps(to_json({"url": "http://h/?t=verysecret-4711"}))
    assert scrub("see hf_abcdefghijklmnopqrstuv") == "see <redacted>"


def test_documents() -> None:
    assert to_json({"a": [1, float("inf")], "2": Config(0.1, [])}) == {
        "a": [1, "inf"],
        "2": {"type": "Config", "attributes": {"lr": 0.1, "names": []}},
    }
    assert to_json(torch.arange(2.0))["tensor"]["values"] == [0.0, 1.0]
    assert to_json(list(range(10)))[-1] == "... 2 more"


def test_trees_in_pages() -> None:
    rows = torch.arange(600.0).reshape(300, 2)
    assert tree.counts(rows)[1] == 300
    assert [child.value.tolist() for child in tree.indexed(rows, 298, 10)] == [[596.0, 597.0], [598.0, 599.0]]
    assert {child.name: child.value for child in tree.named(rows)}["shape"] == [300, 2]
    large = {f"k{number}": number for number in range(1000)}
    assert tree.counts(large) == (0, 1000)
    assert [(child.name, child.access) for child in tree.indexed(large, 998, 100)] == [
        ("'k998'", "['k998']"),
        ("'k999'", "['k999']"),
    ]
    assert [(child.name, child.value, child.access) for child in tree.named(Config(1, []))] == [
        ("lr", 1, ".lr"),
        ("names", [], ".names"),
    ]
    assert tree.counts(Hostile()) == (1, 0)
    assert {child.name for child in tree.named(torch.nn.Linear(2, 2))} >= {"weight", "bias"}


def test_children_are_set() -> None:
    config, items, names = Config(1, []), [1, 2], {"a": 1, 7: 2}
    tree.set_child(config, "lr", 5)
    tree.set_child(items, "1", 5)
    tree.set_child(names, "7", 5)
    assert (config.lr, items, names) == (5, [1, 5], {"a": 1, 7: 5})
    with pytest.raises(LookupError):
        tree.set_child(config, "no_such", 1)


# ---- expressions


def here() -> FrameType:
    return sys._getframe(1)


def test_expressions_see_what_the_line_would_see() -> None:
    scale, captured = 3, [10]

    def inner(argument: int) -> list[Any]:
        frame = here()
        return [
            evaluate("argument + captured[0]", frame),
            evaluate("[argument * k for k in range(3)]", frame),
            evaluate("sorted(range(3), key=lambda k: -k * argument)", frame),
            evaluate("{a: (lambda: argument + a)() for a in range(2)}", frame),
            evaluate("sum(scale for _ in captured)", frame),
            evaluate("Config(argument, []).lr", frame),
            evaluate("(y := argument) and y", frame),
            (scale, captured),
        ]

    assert inner(2)[:-1] == [12, [0, 2, 4], [2, 1, 0], {0: 2, 1: 3}, 3, 2, 2]


def test_assignments_stay_in_the_frame_and_its_closures() -> None:
    value, cell, gone = 1, 1, 1

    def read() -> int:
        return cell

    def bump() -> int:
        nonlocal cell
        cell += 1
        return cell

    frame = here()
    assert evaluate("value = value + 41", frame) is None
    assert value == 42
    evaluate("cell = 7", frame)
    assert read() == cell == 7
    assert evaluate("bump()", frame) == 8 and cell == 8
    evaluate("for value in range(5): pass", frame)
    assert value == 4
    assert evaluate("new = 5\nnew * value", frame) == 20
    assert evaluate("new", frame) == 5
    evaluate("def double(x): return x * value", frame)
    assert evaluate("double(2)", frame) == 8
    evaluate("import math as m", frame)
    assert evaluate("[m.floor(1.5) for _ in 'a']", frame) == [1]
    assign("value", 9, frame)
    assert value == 9
    evaluate("del new", frame)
    with pytest.raises(NameError):
        evaluate("new", frame)
    with pytest.raises(ValueError, match="can't be deleted"):
        evaluate("del gone", frame)
    assert gone == 1
    bump()


def test_globals_are_set_only_where_they_are_meant() -> None:
    frame = here()
    evaluate("global made_here; made_here = 3", frame)
    assert globals().pop("made_here") == 3
    evaluate("not_global = 3", frame)
    assert "not_global" not in globals()
    with pytest.raises(NameError):
        evaluate("no_such_name", frame)
    with pytest.raises(SyntaxError):
        evaluate("1 +", frame)
    assert evaluate("__name__", frame) == __name__


def test_a_frame_further_out_and_a_suspended_one() -> None:
    value = 1

    def inner() -> None:
        caller = here().f_back
        assert caller is not None
        evaluate("value = 5", caller)

    inner()
    assert value == 5

    def numbers() -> Iterator[int]:
        number = 1
        yield number
        yield number

    generator: Any = numbers()
    next(generator)
    evaluate("number = 9", generator.gi_frame)
    assert next(generator) == 9


def test_what_an_expression_prints_is_given() -> None:
    printed: list[str] = []
    assert evaluate("[print('a', 1, sep='-') for _ in 'x'] and 2", here(), printed=printed.append) == 2
    assert printed == ["a-1\n"]


def test_logpoints() -> None:
    step = 3
    frame = here()
    assert evaluate_log("step * 2", frame) == "6"
    assert evaluate_log("step {step}: {[step] * 2} of {no_such}", frame) == (
        "step 3: [3, 3] of <NameError: name 'no_such' is not defined>"
    )
    assert evaluate_log("{'a': step}", frame) == "{'a': 3}"
    assert evaluate_log("{step}", frame) == "3" and evaluate_log("{step}, {step}", frame) == "3, 3"
    assert evaluate_log("plain words here", frame) == "plain words here"
    assert step == 3


class Here:
    """A stop of this very thread."""

    def run(self, call: Callable[[], Any], _timeout: float) -> Any:
        return call()


def test_summaries_of_stops() -> None:
    loss = torch.tensor([1.0])
    answer = evaluate_summary(Here(), "loss", here(), 1.0)
    assert answer["error"] is None and answer["value"].startswith("tensor float32[1] cpu min=1") and loss is not None
    assert evaluate_summary(Here(), "1 / 0", here(), 1.0) == {
        "value": None,
        "error": "ZeroDivisionError: division by zero",
    }
    assert evaluate_summary(Here(), "((", here(), 1.0)["error"].startswith("SyntaxError")


def test_summaries_are_quick() -> None:
    """As many values as the frames of a crash have, against a bound that only a copy of them would miss."""
    values = [list(range(10**6)), dict.fromkeys(range(10**5), "x" * 1000), torch.zeros(10**4), "y" * 10**7]
    before = time.process_time()
    for _ in range(20):
        for value in values:
            summarise(value)
    assert time.process_time() - before < 1.0


def test_what_has_much_inside_is_one_short_line() -> None:
    lock, held = threading.RLock(), threading.Lock()
    held.acquire()
    lines = {
        "RLock": (lock, "<RLock unlocked>"),
        "lock": (held, "<lock locked>"),
        "condition": (threading.Condition(), "<Condition>"),
        "event of asyncio": (asyncio.Event(), "<Event not set>"),
        "thread": (threading.Thread(name="loader"), "<Thread loader, not started>"),
    }
    for name, (value, line) in lines.items():
        assert summarise(value) == line, name
    assert summarise({"lock": lock}) == "{'lock': <RLock unlocked>}" and to_json(lock) == {
        "type": "RLock",
        "text": "<RLock unlocked>",
    }

    @ray.remote
    def score(x: int) -> int:
        return x

    @ray.remote
    class Worker:
        pass

    assert summarise(score).startswith("<RemoteFunction ") and summarise(score).endswith("score>")
    assert summarise(Worker).startswith("<ActorClass(") and len(summarise(Worker)) < 40


def test_threads_and_children_say_whether_they_have_ended() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="loader")
    thread.start()
    assert summarise(thread) == "<Thread loader>"
    gate.set()
    thread.join()
    assert summarise(thread) == "<Thread loader, ended>"
    with subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE) as child:
        assert summarise(child) == f"<Popen pid {child.pid}, running>" and child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        eventually(lambda: "running" not in summarise(child), "its end", 20)
        assert summarise(child) == f"<Popen pid {child.pid}, ended with exit code 3>"
        assert child.returncode is None, "it was not waited for"
        assert child.wait() == 3
    grader = multiprocessing.get_context("spawn").Process(target=os.getpid, name="env-train")
    assert summarise(grader) == "<SpawnProcess env-train, not started>"
    grader.start()
    grader.kill()
    eventually(lambda: "running" not in summarise(grader), "its end", 20)
    assert summarise(grader) == f"<SpawnProcess env-train pid {grader.pid}, ended by SIGKILL>"
    grader.join()


def test_a_reference_and_a_handle_are_short_and_tell_which() -> None:
    from ray import ObjectRef

    first, second = (ObjectRef(bytes.fromhex("ab" * 24 + number)) for number in ("01000000", "02000000"))
    assert [summarise(first), summarise(second)] == ["<ObjectRef abababababab #1>", "<ObjectRef abababababab #2>"]
    handle_of = type("ActorHandle", (), {"__module__": "ray.actor"})
    handle = handle_of()
    described = SimpleNamespace(class_name="job.Worker")
    handle.__dict__ |= {"_ray_actor_creation_function_descriptor": described, "_ray_actor_id": b"\xcd" * 16}
    assert summarise(handle) == "<ActorHandle Worker cdcdcdcdcdcd>"


def of_torch(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("make", [random.Random, numpy.random.default_rng, numpy.random.RandomState, of_torch])
def test_random_generators_are_equal_when_their_states_are(make: Any) -> None:
    one, other = make(7), make(7)
    assert summarise(one) == summarise(other) and len(summarise(one)) < 60
    torch.rand(1, generator=one) if isinstance(one, torch.Generator) else one.random()
    assert summarise(one) != summarise(other), "it has moved on"


def test_a_generator_says_where_it_is() -> None:
    def numbers() -> Any:
        yield 1
        yield 2

    found = numbers()
    next(found)
    line = numbers.__code__.co_firstlineno + 1
    assert summarise(found).endswith(f"numbers at line {line}>")
    list(found)
    assert summarise(found).endswith("numbers at its end>")


def test_arrays_of_up_to_32_elements_are_shown_whole() -> None:
    assert summarise(numpy.arange(32)).endswith("29, 30, 31]") and "[0, 1" not in summarise(numpy.arange(33))
