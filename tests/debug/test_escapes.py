"""Errors that a handler lets pass, and a loop that cannot be run where one runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import escapes
from devkit.debug.inworker.lineage import places_of

HERE = Path(__file__).name


def said(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - any is the test's material
        return list(escapes.said(error, places_of(error.__traceback__)[:-1]))  # without this function
    raise AssertionError("it did not fail")


def line(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"- @{mark}"))


def leaves() -> None:
    sys.exit(1)


def passes() -> float:
    try:
        leaves()
    except Exception:  # noqa: BLE001 - @let
        return 0.0
    return 1.0


def takes() -> float:
    try:
        leaves()
    except (ValueError, SystemExit):
        raise
    return 1.0


def gives() -> Callable[[], None]:
    try:

        def later() -> None:
            sys.exit(1)

        return later
    except Exception:  # noqa: BLE001 - around the text of the function, and not around its call
        return leaves


def cleans() -> float:
    try:
        return passes()
    except:
        print("cleaned")
        raise


def test_a_handler_around_the_text_of_a_function_has_let_nothing_pass() -> None:
    assert said(gives()) == []


def test_a_handler_lets_pass_what_is_no_exception() -> None:
    text = f"SystemExit is no Exception: the `except Exception` at {HERE}:{line('let')} lets it pass"
    assert said(passes) == [text]
    assert said(cleans) == [text], "the innermost one"
    assert said(leaves) == [], "nothing tries there"
    assert said(takes) == [], "one that takes it, and raises it again"


def test_cancelling_is_no_exception_either() -> None:
    async def step() -> None:
        try:
            raise asyncio.CancelledError
        except Exception:  # noqa: BLE001 - @cancelled
            pass

    [text] = said(lambda: step().send(None))
    assert text.startswith("CancelledError is no Exception: the `except Exception` at ")


class Manager:
    async def generate(self) -> None: ...

    def evaluate(self) -> None:
        asyncio.run(self.generate())

    async def inner(self) -> None:
        asyncio.run(self.generate())


class Plain:
    def evaluate(self) -> None:
        asyncio.run(Manager().generate())


@pytest.mark.filterwarnings("ignore:coroutine 'Manager.generate' was never awaited")
def test_a_plain_method_of_an_async_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    def within(call: Callable[[], None]) -> list[str]:
        async def there() -> list[str]:
            try:
                call()
            except RuntimeError as error:
                return list(escapes.said(error, places_of(error.__traceback__)[:-1]))
            return []

        return asyncio.run(there())

    assert within(Manager().evaluate) == [], "no actor"
    monkeypatch.setattr(escapes, "is_async_actor", lambda: True)
    [text] = within(Manager().evaluate)
    assert text == (
        "Ray runs every method of an actor that has an async one (generate, inner), evaluate as well, in an event "
        "loop: make evaluate async and await there, or leave no method of the actor's class async"
    )
    assert within(Plain().evaluate) == [], "no method of its class is async"
