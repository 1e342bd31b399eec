"""Which array is read-only in a line that was to write to it, and whose memory it is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import clues, unwritable
from devkit.debug.inworker.clues import Failure
from tests.debug.test_snapshot import crash_of

np = pytest.importorskip("numpy")
COPY = "; `np.array(x)` or `x.copy()` makes one that can be written"
RAYS = "a read-only view of an object of Ray's, such as ray.get gives, and tasks and actors get as arguments"
MADE = "an array that was made read-only, as setflags(write=False) does"


def told(call: Any, *arguments: Any) -> list[str]:
    error = crash_of(call, *arguments)
    assert type(error) is ValueError and ("read-only" in str(error) or "WRITEABLE" in str(error))
    found = clues.found(Failure(error, "actor")).get("misfits", [])
    assert all(each.endswith(COPY) for each in found)
    return [each.removesuffix(COPY) for each in found]


# Ray's own, which an array of Ray's has as its base, needs a Ray to be made.
SubBuffer = type("SubBuffer", (bytes,), {"__module__": "ray._raylet"})


def rays(count: int = 4) -> Any:
    """As Ray gives it: a view of a view."""
    return np.frombuffer(SubBuffer(bytes(8 * count)), dtype=np.float64).reshape(count)


def frozen(count: int = 4) -> Any:
    array = np.zeros(count)
    array.flags.writeable = False
    return array


class Normalizer:
    def __init__(self) -> None:
        self.mean = np.zeros(4)
        self.state: dict[str, Any] = {}

    def set_state(self, state: Any) -> None:
        self.mean = state["mean"]  # @assigned
        self.state = dict(state)  # @kept

    def update(self, row: Any) -> None:
        for each in row:
            delta = each - self.mean
            self.mean += delta / 2

    def scale(self) -> None:
        self.state["mean"][0] *= 2

    def into(self, row: Any) -> None:
        np.add(
            row,
            1.0,
            out=self.mean,
        )


class Scaler:
    mean: Any
    least: Any

    def __init__(self) -> None:
        self.mean, self.squares = None, np.zeros(4)
        self.least, self.most = None, None

    def first(self, mean: Any, squares: Any) -> None:
        self.mean, self.squares = mean, squares * 2  # @together
        (self.least, _), self.most = (mean, 1), squares  # @nested

    def update(self) -> None:
        self.mean *= 2

    def lower(self) -> None:
        self.least -= 1


def place(mark: str, function: str = "Normalizer.set_state") -> str:
    lines = Path(__file__).read_text().splitlines()
    at = next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))
    return f"test_unwritable.py:{at} in {function}"


def test_an_attribute_that_is_rays_and_where_it_is_assigned() -> None:
    kept = Normalizer()
    kept.set_state({"mean": rays()})
    said = f"`self.mean` is {RAYS} (self.mean is assigned at {place('assigned')})"
    assert told(kept.update, np.ones((2, 4))) == [said] == told(kept.into, rays())
    assert told(kept.scale) == [f'`self.state["mean"]` is {RAYS} (self.state is assigned at {place("kept")})']


def test_an_attribute_that_is_assigned_with_others() -> None:
    kept = Scaler()
    kept.first(rays(), rays())
    for call, name, mark in ((kept.update, "self.mean", "together"), (kept.lower, "self.least", "nested")):
        assert told(call) == [f"`{name}` is {RAYS} ({name} is assigned at {place(mark, 'Scaler.first')})"]
    tree = ast.parse("class A:\n  def f(self, x):\n    self.a, *self.b = x\n    self.c, self.a = x, np.zeros(3)\n")
    assert list(unwritable.assignments(tree, "self.a", "")) == [(3, "A.f")]
    assert [at for at, _ in unwritable.assignments(tree, "self.c", "")] == [4]


def test_arguments_and_views_of_them() -> None:
    def item(batch: Any) -> None:
        batch["x"][1] = 3.0

    def row(x: Any, other: Any) -> None:
        part = x[1:3]
        part -= other[1:3]

    def sort(x: Any, _other: Any) -> None:
        x.sort()

    def shuffle(x: Any, other: Any) -> None:
        rng = np.random.default_rng(int(other[0])); rng.shuffle(x)  # noqa: E702  # fmt: skip

    def copyto(x: Any, other: Any) -> None:
        np.copyto(x, other)

    def flat(x: Any, other: Any) -> None:
        x.flat[0] = other[0]

    def writeable(x: Any, other: Any) -> None:
        x.setflags(write=bool(other.ndim))

    assert told(item, {"x": rays()}) == [f'`batch["x"]` is {RAYS}']
    assert told(row, rays(), rays()) == [f"`part` is {RAYS}"]
    for call in (copyto, flat, writeable, sort, shuffle):
        assert told(call, rays(), np.ones(4)) == [f"`x` is {RAYS}"]


def test_what_an_item_is_looked_up_by_is_not_written_to() -> None:
    def put(x: Any, at: Any) -> None:
        x[at[0]] = 1.0

    at = np.array([0, 1])
    at.flags.writeable = False
    assert told(put, rays(), at) == [f"`x` is {RAYS}"]


def test_memory_that_is_not_rays(tmp_path: Path) -> None:
    def write(x: Any) -> None:
        x[...] = 1.0

    np.save(tmp_path / "x.npy", np.zeros(4))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    own = "a read-only view of an array that can be written itself, as np.broadcast_to and np.diagonal give them"
    assert told(write, frozen()) == [f"`x` is {MADE}"] == told(write, frozen()[1:])
    assert told(write, np.diagonal(np.zeros((3, 3)))) == [f"`x` is {own}"]
    assert told(write, np.broadcast_to(np.zeros(1), (3,))) == [f"`x` is {own}"]
    assert told(write, mapped) == ["`x` is of a file that is mapped to be read only, as mode='r' does"]
    assert told(write, np.frombuffer(bytes(16))) == ["`x` is a read-only view of bytes, as np.frombuffer gives it"]
    view = memoryview(bytearray(16)).toreadonly()
    assert told(write, np.frombuffer(view)) == ["`x` is a read-only view of memory of bytearray"]


def test_a_librarys_line_is_said_where_the_programs_own_does_not_have_the_array() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.zeros(4)}, copy=False)
    hidden = pandas.DataFrame(np.frombuffer(SubBuffer(bytes(32))).reshape(4, 1), columns=["a"], copy=False)

    def change(mask: Any) -> None:
        hidden.loc[mask[0], "a"] = 1.0

    assert frame is not hidden
    [line] = told(change, frozen(1).astype(int))
    assert line.startswith("`values` at pandas/core/internals/") and line.endswith(f" is {RAYS}")


def test_nothing_is_said_where_no_array_is_read_only_or_it_is_another_error() -> None:
    def other(x: Any) -> None:
        raise ValueError(f"{x.size}: the array is read-only")

    def shape(x: Any) -> None:
        x[:] = np.zeros(9)

    assert told(other, np.zeros(4)) == []
    assert "misfits" not in clues.found(Failure(crash_of(shape, rays().copy()), "actor"))
    assert told(other, rays()) == [], "it may be about something else"
