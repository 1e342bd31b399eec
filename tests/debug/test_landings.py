"""What becomes of an exception at each place to which it may bring a function, under each Python of this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.debug.test_raising import PYTHONS, ROOT

HERE = Path(__file__).parent
SOURCE = """
def body():
    with a:
        b()
async def body():
    async with a:
        b()
def body():
    try:
        b()
    finally:
        c()
def body():
    try:
        b()
    finally:
        return 1
def body():
    for _ in x:
        try:
            b()
        finally:
            if c:
                break
def body():
    return [b(x) for x in y]
async def body():
    async for x in y:
        b()
async def body():
    return [b(x) async for x in y]
async def body():
    await b()
def body():
    try:
        b()
    except KeyError as error:
        c(error)
def body():
    try:
        b()
    except* KeyError:
        c()
def body():
    try:
        b()
    except KeyError:
        raise
def body():
    try:
        b()
    except KeyError as error:
        try:
            c()
        except OSError:
            pass
        raise X from error
def body():
    try:
        b()
    except KeyError:
        if c:
            raise
        return 1
def body():
    try:
        b()
    finally:
        with a:
            c()
async def body():
    try:
        b()
    finally:
        async with a:
            await c()
def body():
    yield b()
"""
LOOK = """
import json, sys, types
from devkit.debug.inworker import landings
found = []
for text in json.load(sys.stdin):
    [code] = [each for each in compile(text, "x", "exec").co_consts if isinstance(each, types.CodeType)]
    codes = [code, *[each for each in code.co_consts if isinstance(each, types.CodeType)]]
    places = [(each, landings.landing(each, target)) for each in codes for _, _, target in landings._guarded(each)]
    assert {one.branch for each, one in places if one.kind == "exit"} == {
        branch for each in codes for branch in landings.branches(each)
    }
    found.append(sorted({one.kind for _, one in places} - {"passes"}))
print(json.dumps(found))
"""
EXIT, CATCHES = ["exit"], ["catches"]
WANTED = [EXIT, EXIT, [], CATCHES, CATCHES, [], [], [], [], CATCHES, CATCHES, [], CATCHES, CATCHES, EXIT, EXIT, []]


@pytest.mark.parametrize("python", PYTHONS)
def test_only_what_can_go_on_without_the_exception_catches(python: str) -> None:
    """Of the exception in a handler that goes on by another one, only the inner `except OSError` catches something."""
    every = [
        f"{each.strip()}\n"
        for each in SOURCE.replace("\nasync def body", "\0async def body")
        .replace("\ndef body", "\0def body")
        .split("\0")
        if each.strip()
    ]
    done = subprocess.run(
        [python, "-c", LOOK], cwd=HERE, env={"PYTHONPATH": str(ROOT)}, input=json.dumps(every),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [*zip(every, found, strict=True)] == [*zip(every, WANTED, strict=True)]
