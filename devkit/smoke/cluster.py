"""A Ray of the smoke test's own: a few simulated nodes, and nothing of it left afterwards.

It has its own ports, its own temp folder and its own token, writes no address that another Ray would follow, and
runs without what a smoke test has no use for (API server, autoscaler, log monitor). Ray has no public way to leave
those out; this module is the one place that uses its private `Node`.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from devkit.debug.inworker import private
from devkit.errors import DeadlineError

OBJECT_STORE_BYTES = 100 * 1024**2
SHORT = 16  # characters
TOO_LATE = "timed out during startup"  # Ray's words
WARM_SOCKET = "DEVKIT_WARM_SOCKET"


class SmokeCluster:
    """`nodes` Ray nodes with `slots` CPU slots each. `start`, then `connect` the driver, then `stop`."""

    def __init__(self, nodes: int, slots: int) -> None:
        self.nodes = nodes
        self.slots = slots
        self.folder = Path(tempfile.mkdtemp(prefix="devkit-ray-", dir=short_temporary_folder()))
        self._running: list[Any] = []
        self._begun = False  # before that, Ray may be half imported
        isolate()

    def start(self, warm_socket: str | None) -> None:
        """Starts the nodes; workers are forked by the process behind `warm_socket`, if there is one."""
        import ray  # noqa: F401 - whole, before its parts: `stages` is importing it in another thread
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        class LeanNode(Node):
            """A node without the API server."""

            def start_api_server(self, **_options: object) -> None:
                pass

        if warm_socket:
            os.environ[WARM_SOCKET] = warm_socket
        client = str(Path(__file__).with_name("warm_client.py"))
        workers: dict[str, Any] = {"worker_path": client, "setup_worker_path": client} if warm_socket else {}
        self._begun = True
        for number in range(self.nodes):
            head = number == 0
            address: dict[str, Any] = {} if head else {"gcs_address": self.address}
            params = RayParams(
                num_cpus=self.slots,
                num_gpus=0,
                object_store_memory=OBJECT_STORE_BYTES,
                temp_dir=str(self.folder),
                include_dashboard=False,
                include_log_monitor=False,  # type: ignore[arg-type]  # Ray's annotation says str, its code takes a bool
                no_monitor=True,
                min_worker_port=0,
                max_worker_port=0,
                dashboard_agent_listen_port=0,
                **address,
                **workers,
            )
            options = {"head": head, "shutdown_at_exit": False, "spawn_reaper": True}
            self._running.append(self._patiently(lambda: LeanNode(copy(params), **options)))  # noqa: B023 - called at once

    def _patiently(self, start: Callable[[], Any]) -> Any:
        """A node, tried once more: Ray gives one 30 s to register, and a busy machine may need more.

        What the first try left ends before the second: it might yet come up. Raises DeadlineError.
        """
        logging.getLogger("ray._private.node").setLevel(logging.WARNING)  # else a line for each second of the wait
        before = set(self._processes())
        for again in (True, False):
            try:
                return start()
            except Exception as error:  # Ray has no type for it
                if TOO_LATE not in str(error):
                    raise
                if not again:
                    raise DeadlineError(
                        "Ray did not start: its node had not registered after 30 s, twice",
                        hint="the machine may be overloaded: check it with devkit doctor --here",
                    ) from error
            _kill(set(self._processes()) - before)

    @property
    def address(self) -> str:
        return str(self._running[0].gcs_address)

    def connect(self) -> None:
        import ray

        terminate = signal.getsignal(signal.SIGTERM)
        ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        signal.signal(signal.SIGTERM, terminate)  # Ray has put its own there

    def stop(self) -> None:
        """Ends every process of this Ray and removes its folder. May be called at any time, also twice."""
        if self._begun:
            self._stop_nodes()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop_nodes(self) -> None:
        import ray

        ray.shutdown()
        processes = self._processes()  # while their parents live
        while self._running:
            node = self._running.pop()
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        _kill(processes)

    def _processes(self) -> list[Any]:
        """What this process started for this Ray, with all that it started in turn.

        A node's agents may outlive it by a minute; and a node that was interrupted while it came up is not in
        `_running`.
        """
        import psutil  # Ray's own, which is found once Ray is imported

        found = []
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                if any(str(self.folder) in word for word in child.cmdline()):
                    found += [*child.children(recursive=True), child]
        return found


def _kill(processes: Iterable[Any]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def short_temporary_folder() -> str:
    """The user's, or /tmp; one in which nobody else can replace what is there, if it can be.

    Ray's sockets live 88 characters below it, and a socket's path may have 107.
    """
    own = private.temporary()
    return own if len(own) <= SHORT or not os.path.isdir("/tmp") else "/tmp"


def isolate() -> None:
    """Sets the environment that nodes and workers inherit.

    Ray's libraries read parts of it when they are loaded: call this before Ray is imported, here and in a process
    that is to become a worker.
    """
    for name in ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_ID"):
        os.environ.pop(name, None)
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        RAY_USAGE_STATS_ENABLED="0",
        # Ray writes its nodes' complaints, such as that a rank was killed, to the driver's stdout, which is data here.
        RAY_DEDUP_LOGS="1",
        RAY_DEDUP_LOGS_SKIP_REGEX=".",
        # If this process is killed, agents look for the cluster's head this long before they end; Ray's limit is 60. A
        # machine that is too busy for the head to answer within it ends the test.
        RAY_gcs_rpc_server_reconnect_timeout_s="20",
        # One thread per worker: more fight over the cores, and the bits of a sum would depend on the machine.
        OMP_NUM_THREADS="1",
        # One question of those that Ray asks for 30 s until a node has registered: it lets no signal in meanwhile.
        RAY_raylet_start_wait_time_s="1",
    )
