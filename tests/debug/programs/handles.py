"""Catches exceptions in ways whose handlers are not on the line from which they come; prints where they were caught."""

# ruff: noqa: SIM105, B012, BLE001 - that is what it is about

import contextlib
import json
import sys

from devkit.debug.inworker.raising import Raising

ERRORS = (KeyError, OSError)
Renamed = KeyError


class OwnError(LookupError):
    pass


class Swallows:
    def __exit__(self, *error):
        return True

    def __enter__(self):
        return self


class Passes(Swallows):
    def __exit__(self, *error):
        return False


class Refuses(Passes):
    def __enter__(self):
        raise KeyError("refused")


def fail():
    raise KeyError("a")


def fail_so():
    raise OwnError("b")


def second():
    try:
        fail()
    except OSError:
        pass
    except Exception:  # @second
        pass


def of_its_base():
    try:
        fail_so()
    except (
        OSError,
        ValueError,
    ):
        pass
    except LookupError:  # @of_its_base
        pass
    except Exception:
        pass


def enters():
    try:
        with Refuses():
            str(1)
    except Exception:  # @enters
        pass


def bare():
    try:
        fail()
    except:  # noqa: E722 @bare
        pass


def outer():
    try:
        try:
            fail()
        except OSError:
            pass
        finally:
            str(1)
    except KeyError:  # @outer
        pass


def suppressed():
    with contextlib.suppress(KeyError):  # @suppressed
        fail()


def passed_on():
    try:
        with Passes():
            fail()  # @passed_on 3.11
    except Exception:  # @passed_on
        pass


def swallowed():
    try:
        with Swallows():  # @swallowed
            fail()  # @swallowed 3.11
    except Exception:
        pass


def left():
    for _ in range(1):
        try:
            fail()  # @left 3.11
        finally:
            str(1)  # @left
            break


def renamed():
    try:
        fail()  # @renamed
    except Renamed:
        pass
    except Exception:
        pass


def in_a_tuple():
    try:
        fail()
    except ERRORS:  # @in_a_tuple
        pass


def from_two_lines():
    try:
        for number in range(2):
            if number:
                fail()
            else:
                str(1)
        str(2)
    except KeyError:  # @from_two_lines
        pass


raising = Raising(lambda *_: None, lambda *_: None, lambda: None)
raising.count()
CALLS = (second, of_its_base, enters, bare, outer, suppressed, passed_on, swallowed, left, renamed, in_a_tuple)
found = {}
for call in (*CALLS, from_two_lines):
    raising.caught.forget()
    for _ in range(3):
        call()
    found[call.__name__] = [[each["count"], each["by"]["function"], each["by"]["line"]] for each in raising.listed()]
print(json.dumps(found))
sys.stdout.flush()
