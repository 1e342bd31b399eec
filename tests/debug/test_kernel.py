"""What the kernel says of a process that it killed for memory: a real one, in a control group of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devkit.debug.inworker import kernel
from devkit.debug.inworker.kernel import INITIAL, killed_for_memory
from tests.debug.memory import limited, needs_kernel_log
from tests.pace import stretched

GROW = "import sys; open(sys.argv[1], 'w').write('0'); whole = b'x' * (400 << 20)"


def test_names_the_size_at_which_it_was_killed() -> None:
    needs_kernel_log()
    if os.readlink("/proc/self/ns/pid") != INITIAL:
        pytest.skip("the kernel's log has other pids than this container")
    with limited(100) as group:
        process = subprocess.Popen([sys.executable, "-c", GROW, str(group)])
        assert process.wait(stretched(60)) == -9
    words = killed_for_memory(process.pid)
    assert words is not None and words["signal"] == "OutOfMemory"
    size = int(words["message"].partition("kernel at ")[2].partition(" MiB")[0])
    assert 50 < size < 150, words  # with what it held before it came into the group
    assert "container or cgroup" in words["message"]
    assert killed_for_memory(os.getpid()) is None


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert killed_for_memory(os.getpid(), log=str(tmp_path / "none")) is None


def test_a_machine_without_memory_is_told_from_a_container(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    killed = "Out of memory: Killed process 77 (ray::Worker) total-vm:1kB, anon-rss:4096kB, file-rss:0kB\n"
    log.write_text(f"3,1,{int(time.monotonic() * 1e6)},-;{killed}")
    words = killed_for_memory(77, log=str(log), namespace=INITIAL)
    assert words is not None
    assert words["message"] == "killed by the kernel at 4 MiB: this machine ran out of memory"


def test_what_the_kernel_did_long_ago_was_done_to_another_process_of_that_number() -> None:
    record = kernel._KILLED.search("3,1,2000000,-;Out of memory: Killed process 77 (ray::W) total-vm:1kB, anon-rss:4kB")
    assert record is not None
    assert kernel._by_pid(77, 60.0)(record) and not kernel._by_pid(77, 3600.0)(record)


def test_in_a_container_it_is_known_by_its_name_and_the_time(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    now = int(time.monotonic() * 1e6)
    killed = "Memory cgroup out of memory: Killed process 4711 ({}) total-vm:9kB, anon-rss:1048576kB, file-rss:0kB"
    old, stranger = killed.format("ray::Trainer.tr"), killed.format("python3")
    log.write_text(f"6,1,{now - 300_000_000},-;{old}\n6,2,{now - 2_000_000},-;{stranger}\n")
    assert killed_for_memory(33, "Trainer", str(log), "pid:[4026532177]") is None, "an old one, and a stranger"
    log.write_text(f"6,3,{now - 2_000_000},-;{killed.format('ray::Trainer.tr')}\n")
    assert killed_for_memory(33, "Loader", str(log), "pid:[4026532177]") is None
    words = killed_for_memory(33, "Trainer", str(log), "pid:[4026532177]")
    assert words is not None and "at 1024 MiB" in words["message"]
