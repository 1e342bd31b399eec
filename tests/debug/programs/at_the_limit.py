"""Runs into the limit of recursion in several ways, at several depths; prints what is raised and where, as JSON."""

import io
import json
import pickle
import traceback

from devkit.debug.inworker import raising_monitored, raising_traced
from devkit.debug.inworker.raising import Raising

DEPTHS = 6
LONG = 20000


class Node:
    def __init__(self):
        self.next = None


class Pickler(pickle.Pickler):
    """As cloudpickle's: asked of each object."""

    def reducer_override(self, thing):
        self.any = issubclass(type(thing), Node) and isinstance(thing, object)
        return NotImplemented


def calls_itself(n):
    return calls_itself(n + 1)


def compares(n):
    return compares(n + 1) if isinstance(n, int) and sorted([n, -n]) else str(n)


def catches_on_the_way(n):
    try:
        return catches_on_the_way(n + 1)
    except KeyError:
        return None


def pickles(_):
    first = node = Node()
    for _ in range(LONG):
        node.next = Node()
        node = node.next
    Pickler(io.BytesIO()).dump(first)


def deeper(depth, call):
    return deeper(depth - 1, call) if depth else call(0)


def raised():
    for call in (calls_itself, compares, catches_on_the_way, pickles):
        for depth in range(1 if call is catches_on_the_way else DEPTHS):  # it takes seconds: a look at each handler
            try:
                deeper(depth, call)
            except RecursionError as error:
                files = {each.f_code.co_filename for each, _ in traceback.walk_tb(error.__traceback__)}
                yield [call.__name__, depth, type(error).__name__, str(error), sorted(files)]


def main():
    before = list(raised())
    raising = Raising(lambda *_: None, lambda *_: None, lambda: None)
    raising.count()
    found = {"before": before, "seen": list(raised()), "failed": []}
    for module in (raising_monitored, raising_traced):
        module.flight = None  # a fault of ours
    for _ in range(2):
        try:
            {}["a"]
        except KeyError as error:
            files = [each.f_code.co_filename for each, _ in traceback.walk_tb(error.__traceback__)]
            found["failed"].append([type(error).__name__, files])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
