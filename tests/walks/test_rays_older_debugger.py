"""`devkit debug-cluster --legacy` is for `ray debug`: entered as the command itself says, on two nodes.

Post-mortem is Ray's, too: none unless the user asks for it, and then that of `ray debug`.
"""

from __future__ import annotations

import pytest

from tests.hosts.hosts import Lan
from tests.walks.terminals import Terminal

pytestmark = [pytest.mark.walks, pytest.mark.timeout(600)]
ENTER = "Enter breakpoint index or press enter to refresh:"


def ray_debug(page: str) -> str:
    """The command, as what `devkit debug-cluster` printed has it."""
    _, _, advice = page.partition("in another terminal:\n")
    export, debug = (line.strip() for line in advice.splitlines()[:2])
    return f"bash -c '{export}; exec {debug}'"


def test_a_breakpoint_on_each_node_is_entered_by_ray_debug(lan: Lan) -> None:
    here, there = Terminal(lan[0]), Terminal(lan[1])
    page = here.run("devkit debug-cluster --legacy --num-cpus 1")
    token = here.run("cat .ray/auth_token")
    there.run(f"mkdir -m 700 .ray && umask 077 && echo {token} > .ray/auth_token")
    there.run("devkit debug-cluster --join 10.77.0.1:6379 --legacy --num-cpus 1")
    with here.running("python programs/legacy.py") as program:
        program.says("use 'ray debug' to connect")
        here.once("devkit ps", "nothing is stopped")  # it is Ray's stop, not ours
        with here.running(ray_debug(page)) as debugger:
            while debugger.says(ENTER).count("programs/legacy.py") < 2:
                debugger.type("")  # the other node's is on its way
            values = set()
            for _ in range(2):
                debugger.type("0")
                debugger.says("(Pdb)")
                debugger.type("p x")
                values.add(debugger.says("(Pdb)").split()[0])
                debugger.type("c")
                debugger.says(ENTER)
            assert values == {"2", "3"}
        assert program.wait() == 0 and "squares [4, 9]" in program.said, program.said


def test_a_task_that_raises_is_left_alone(terminal: Terminal) -> None:
    terminal.run("devkit debug-cluster --legacy --num-cpus 1")
    with terminal.running("python programs/legacy_raises.py") as program:
        program.says("it failed")  # a stop would have kept it from that
        terminal.once("devkit ps", "nothing is stopped")
        assert "no crashes" in terminal.run("devkit crashes")
        program.type("")
        assert program.wait() == 0, program.said


def test_post_mortem_that_the_user_asks_for_is_entered_by_ray_debug(terminal: Terminal) -> None:
    page = terminal.run("RAY_DEBUG_POST_MORTEM=1 devkit debug-cluster --legacy --num-cpus 1")
    with terminal.running("python programs/legacy_raises.py") as program:
        program.says("use 'ray debug' to connect")
        terminal.once("devkit ps", "nothing is stopped")
        with terminal.running(ray_debug(page)) as debugger:
            listed = debugger.says(ENTER)
            assert "ray::pick" in listed and "IndexError: list index out of range" in listed, listed
            debugger.type("0")
            debugger.says("(Pdb)")
            debugger.type("p x")
            assert debugger.says("(Pdb)").split()[0] == "41"
            debugger.type("c")
            debugger.says(ENTER)
        program.says("it failed")
        program.type("")
        assert program.wait() == 0, program.said
