"""Which stacks of a process are shown: the different ones of the program's own code, equal ones once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from devkit.debug.inworker.stacks import TASKS
from devkit.debug.naming import Who, count, is_library, name_members
from devkit.debug.stack_groups import LOOP_THREAD, MAIN, NUMBER, TASK, Process, Stack, is_task, own_of, without_classes

MOST = 5  # different stacks of a process that are shown; a server may have hundreds


@dataclass
class Bundle:
    """Threads and tasks of a process, or of equal ones, that have the same stack."""

    stack: Stack
    by_owner: dict[Who, list[str]] = field(default_factory=dict)  # their names, by the process that has them

    @property
    def names(self) -> list[str]:
        return [name for names in self.by_owner.values() for name in names]

    def add(self, name: str, owner: Who) -> None:
        self.by_owner.setdefault(owner, []).append(name)


def bundles(processes: Sequence[Process], whole: bool = False) -> list[Bundle]:
    """The one that the processes are about comes first, then threads, then tasks by their numbers.

    Equal is what stands in the same lines of the program; `whole`: in the same lines of libraries, too.
    """

    def key(stack: Stack) -> Stack:
        return stack if whole else without_classes(own_of(stack))

    first = Bundle(processes[0].stack)
    found: dict[object, Bundle] = {key(first.stack): first}
    for process in processes:  # their first stacks are equal: otherwise they would not be together
        first.add(process.thread, process.who)
    for process in processes:
        for name, stack in process.others.items():
            found.setdefault(key(stack), Bundle(stack)).add(name, process.who)
    return list(found.values())


def is_another_thread(found: Sequence[Bundle]) -> bool:
    """Whether the first stack would be taken for the main thread's, and is that of another thread, beside others or in
    libraries alone.
    """
    usual = (MAIN, LOOP_THREAD, TASK)
    named = [name for name in found[0].names if name and not name.startswith(usual)]
    return bool(named) and (len(found) > 1 or all(is_library(frame.file) for frame in found[0].stack))


def heading(bundle: Bundle, processes: Sequence[Process]) -> str:
    """What has this stack: "thread prefetch", "48 tasks", "4 threads in each", "2 threads in ranks 0,3"."""
    everyone = [process.who for process in processes]
    if sum(map(is_task, bundle.names)) > 1 and any(_listed(process) >= TASKS for process in processes):
        return f"at least {kinds(bundle.names)}"  # no process lists more
    if len(everyone) == 1:
        return kinds(bundle.names)
    for say in (kinds, number_of):
        said = {say(bundle.by_owner.get(who, ())) for who in everyone}
        if len(said) == 1:
            return f"{said.pop()} in each"
    return f"{kinds(bundle.names)} in {name_members(bundle.by_owner, everyone)}"


def _listed(process: Process) -> int:
    """How many tasks it has given the stacks of."""
    return process.idle_tasks + sum(map(is_task, (process.thread, *process.others)))


def kinds(names: Iterable[str]) -> str:
    """How many threads and tasks these are; a single one by its name.

    >>> kinds(["task Task-65 #4", "task Task-66 #5", "pool #6"]), kinds(["task Task-65 #4"]), kinds(["pool #6"])
    ('2 tasks and 1 thread', 'task Task-65', 'thread pool')
    """
    known = list(names)
    if len(known) == 1:
        return _plain(known[0]) if is_task(known[0]) else f"thread {_plain(known[0])}"
    return number_of(known)


def number_of(names: Iterable[str]) -> str:
    """
    >>> number_of(["task Task-65 #4"]), number_of(["pool #6", "MainThread"])
    ('1 task', '2 threads')
    """
    tasks = [is_task(name) for name in names]
    parts = [(sum(tasks), "task"), (len(tasks) - sum(tasks), "thread")]
    return " and ".join(count(number, noun) for number, noun in parts if number)


def _plain(name: str) -> str:
    """Without the number that was put behind it."""
    return name.rpartition(NUMBER)[0] or name
