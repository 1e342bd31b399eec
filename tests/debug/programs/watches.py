"""Counts what a loop under way catches, and stops in that loop: both at once. Prints what came of it, as JSON."""

import json
import sys
import tempfile
import threading
from pathlib import Path

from devkit.debug.inworker.raising import Raising
from tests.debug.armory import DEADLINE, Armory

LOOP = """
def loop(world):
    n = 0
    while world["go"]:
        try:
            n += 1  # @body
            raise KeyError("a")
        except KeyError:
            world["turn"].release()
"""


def turns(world, count=3):
    for _ in range(count):
        assert world["turn"].acquire(timeout=DEADLINE)


def main():
    folder = Path(tempfile.mkdtemp())
    sys.path.insert(0, str(folder))
    armory = Armory(folder)
    armory.write(LOOP, "watched")
    module = armory.load()
    world = {"go": True, "turn": threading.Semaphore(0)}
    thread = threading.Thread(target=module.loop, args=(world,), daemon=True)
    thread.start()
    raising = Raising(lambda *_: None, lambda *_: None, lambda: None)
    raising.count()
    turns(world)
    armory.arm("body")
    hits = [armory.wait("body")["n"] for _ in range(5)]
    armory.arming.remove("body")
    raising.look()
    before = sum(each["count"] for each in raising.listed())
    world["turn"] = threading.Semaphore(0)  # those of before are over
    turns(world, 200)
    after = sum(each["count"] for each in raising.listed())
    world["go"] = False
    thread.join()
    armory.close()
    print(json.dumps({"hits": hits, "counted": [before, after]}))


if __name__ == "__main__":
    main()
