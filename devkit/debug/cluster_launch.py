"""A cluster on its way up: its `ray start` processes, and the wait for its nodes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from devkit.debug import gcs, processes, state
from devkit.debug.address import noted_address, temporary_folder
from devkit.debug.gcs import GcsAddress
from devkit.debug.node_parts import Parts, last_words
from devkit.debug.ray_start import ClusterOptions, Plan
from devkit.debug.rows import NodeRow
from devkit.debug.state import ClusterState, Started
from devkit.errors import DeadlineError, DevkitError
from devkit.signals import deferred

RANK_LABEL = "devkit-rank"  # a node's label
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*", re.MULTILINE)  # the last line of a traceback
_FAILED = " failed with the following error:"  # Ray's words, after which the traceback comes
LOOK_S = 0.1  # between two looks at a cluster that comes up
ENDING_S = 3.0  # between the end of what a `ray start` that fails has started, and its own
NOTE_S = 5.0  # for `ray start` to note an address when its node is alive; it takes some hundredths
TEMP_DIR = "--temp-dir="
LEAVING_S = 3.0  # all nodes of a cluster have the same deadline: who is gone so shortly before it was there


class DashboardFailed(DevkitError):
    """The head runs without the dashboard that it was started with; waiting for it is in vain."""


class Launch:
    """A cluster on its way up."""

    def __init__(
        self,
        options: ClusterOptions,
        plan: Plan,
        environment: Mapping[str, str],
        cluster: ClusterState,
        look: Callable[[], tuple[NodeRow, ...]],
        is_own: Callable[[NodeRow], bool],
        close: Callable[[], None],
    ) -> None:
        """`look` gives the nodes of the cluster; `is_own` tells those that this launch started."""
        self._close = close
        self.still: Callable[[str], None] = lambda what: None  # is told at each look what is missing
        self.cluster = cluster
        self.removed: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._options = options
        self._plan = plan
        self._environment = environment
        self._look = look
        self._is_own = is_own
        self._children: list[subprocess.Popen[bytes]] = []
        self._parts: list[Parts] = []
        self._noted_by = 0.0  # a moment; 0: the nodes are not there yet

    def start_all(self, deadline: float) -> None:
        """Workers as soon as the head's GCS listens."""
        for number, command in enumerate(self._plan.commands):
            if number == 1 and not self._options.join:
                self._wait(self._missing_gcs, deadline)
            self._start(command, self._plan.environments[number])

    def wait_until_up(self, deadline: float) -> tuple[NodeRow, ...]:
        """The nodes that are alive, once all that were started are, and as many as the options wait for."""
        found: tuple[NodeRow, ...] = ()
        before, most = "", 0  # what was missing at the last look, and how many were there, if the head was

        def missing() -> str | None:
            nonlocal found, before, most
            try:
                found = tuple(node for node in self._look() if node.alive)
            except DashboardFailed:
                raise
            except DevkitError as error:  # half up, a dashboard also answers with errors
                return f"an answer of the cluster ({error.message})" + (f"; before that: {before}" if before else "")
            there = any(node.is_head_node for node in found)
            leaving = len(found) < most and time.monotonic() > deadline - LEAVING_S
            if before and (leaving or not there):  # a head that leaves still answers
                return before
            lacking = missing_nodes(len(self._plan.commands), self.own(found))
            lacking = lacking or missing_nodes(self._options.wait_for, found) or self._missing_note(deadline)
            before, most = (lacking or "") if there else "", len(found)
            return lacking

        self._wait(missing, deadline)
        return found

    def own(self, nodes: tuple[NodeRow, ...]) -> tuple[NodeRow, ...]:
        """Those that this launch started."""
        return tuple(node for node in nodes if self._is_own(node))

    @property
    def head_pid(self) -> int:
        return self.cluster.processes[0].pid

    def let_go(self) -> None:
        """From now on nobody waits for the children: init does when this process has ended."""
        for child in self._children:
            if child.poll() is None:
                child.returncode = 0  # else Popen would warn of a child that still runs
        self._close()

    def _missing_gcs(self) -> str | None:
        where = GcsAddress(self._options.node_ip or "127.0.0.1", self._plan.port)
        return None if gcs.is_up(where, 1.0) else f"the GCS at {where}"

    def _missing_note(self, deadline: float) -> str | None:
        """What `ray.init()` finds this cluster by: `ray start` writes it down when its node is alive already.

        It is waited for, and done without: another Ray may have another place for it.
        """
        self._noted_by = self._noted_by or min(time.monotonic() + NOTE_S, deadline - LOOK_S)
        folder = next((word.partition("=")[2] for word in self._plan.commands[0] if word.startswith(TEMP_DIR)), "")
        noted = noted_address(Path(folder) if folder else temporary_folder(self._environment))
        there = noted is not None and noted.port == GcsAddress.parse(self.cluster.gcs_address).port
        return None if there or time.monotonic() > self._noted_by else "Ray's note of its address on this machine"

    def _wait(self, missing: Callable[[], str | None], deadline: float) -> None:
        while what := missing():
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the cluster is not up after {self._options.timeout:g} s; missing: {what}",
                    hint=f"wait longer with --timeout; Ray's logs are in {self._log(0).parent}",
                )
            self.still(what)
            with suppress(subprocess.TimeoutExpired):
                self._children[-1].wait(LOOK_S)
            self._check()

    def _check(self) -> None:
        for number, child in enumerate(self._children):
            self._check_parts(number)
            if child.poll() is not None:
                log = self._log(number)
                raise DevkitError(f"`ray start` failed: {why_failed(log)}", hint=f"its full log: {log}")

    def _check_parts(self, number: int) -> None:
        lost = self._parts[number].lost()
        if lost is not None and self._children[number].poll() is None:  # else `ray start` has ended it
            words = last_words(lost.log) if lost.log else ""
            if not words:
                with suppress(subprocess.TimeoutExpired):
                    self._children[number].wait(ENDING_S)
                    return  # `ray start` has ended it, and says why
            hint = f"its full log: {lost.log or self._log(number)}"
            raise DevkitError(f"{lost.name} exited during startup: {words or 'it logged no error'}", hint=hint)

    def _start(self, command: tuple[str, ...], own: Mapping[str, str]) -> None:
        number = len(self._children)
        log = self._log(number)
        with log.open("wb") as output, deferred():  # an interruption waits until what it has to end is known
            child = subprocess.Popen(
                command,
                env={**self._environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal, and its end, are not the cluster's
            )
            self._note(child, number, log)

    def _note(self, child: subprocess.Popen[bytes], number: int, log: Path) -> None:
        self._children.append(child)
        self._parts.append(Parts(child.pid))
        role: Literal["head", "worker"] = "head" if number == 0 and not self._options.join else "worker"
        begun = Started(role, child.pid, processes.started(child.pid) or "", str(log))
        self.cluster = replace(self.cluster, processes=(*self.cluster.processes, begun))
        state.save(self.cluster)  # at once: `stop` has to find it also if this process is killed

    def _log(self, number: int) -> Path:
        return state.private_folder("logs", self.cluster.name) / f"ray-start-{number}.log"


def missing_nodes(wanted: int, alive: Sequence[NodeRow]) -> str | None:
    """How many of `wanted` nodes are missing, which ranks if the nodes say theirs, and which are there.

    >>> missing_nodes(3, [NodeRow(node_ip="10.0.0.1", labels={RANK_LABEL: "0"}), NodeRow(node_ip="10.0.0.9")])
    '1 of 3 nodes; alive: 10.0.0.1 (rank 0), 10.0.0.9'
    >>> missing_nodes(3, [NodeRow(node_ip="10.0.0.1", labels={RANK_LABEL: "1"})])
    '2 of 3 nodes: ranks 0, 2; alive: 10.0.0.1 (rank 1)'
    """
    lacking = wanted - len(alive)
    if lacking <= 0:
        return None
    ranks = [node.labels.get(RANK_LABEL, "") for node in alive]
    absent = [str(rank) for rank in range(wanted) if str(rank) not in ranks]
    # A node without a rank may be any of the absent ones.
    which = f": rank{'s' * (lacking > 1)} {', '.join(absent)}" if any(ranks) and len(absent) == lacking else ""
    there = [f"{node.node_ip} (rank {rank})" if rank else node.node_ip for node, rank in zip(alive, ranks, strict=True)]
    return f"{lacking} of {wanted} nodes{which}" + (f"; alive: {', '.join(there)}" if wanted > 1 and there else "")


def why_no_dashboard(folder: Path, head_pid: int) -> str:
    """What the dashboard of a head with Ray's files in `folder` has failed with, by its log; empty: it has not.

    Its process may stand there all the same, and serve nobody.
    """
    for log in folder.glob(f"session_*_{head_pid}/logs/dashboard.log"):
        with suppress(OSError):
            _, failed, trace = log.read_text(errors="replace").rpartition(_FAILED)
            if failed and (found := _ERROR.findall(trace)):
                return str(found[-1])[:300]
    return ""


def why_failed(log: Path) -> str:
    """What `ray start` failed with, by its log: its last error, else the last line that says something."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        text = ""
    if errors := _ERROR.findall(text):
        return str(errors[-1]).strip()[:300]
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if any(map(str.isalpha, line))), "it printed nothing")[:300]
