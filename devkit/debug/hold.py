"""`devkit debug-cluster --block`: it stays as long as its nodes do, and ends them when it is told to end.

For whoever starts a node as a part of something else: a step of a batch system, the first process of a container.
These end what a command leaves behind, and take its end for the end of the node.
"""

from __future__ import annotations

import time

from devkit import console
from devkit.debug import cluster, state
from devkit.debug.cluster_records import DebugCluster
from devkit.records import ErrorRecord
from devkit.signals import undisturbed

LOOK_S = 0.5  # between two looks at the nodes; a look reads one file per node


def hold(started: DebugCluster) -> int:
    """0 once SIGTERM or Ctrl-C has come and the nodes are ended; 1 if one of them ended by itself, which ends the rest.

    It does not raise: its caller has printed the one document of `--json` before.
    """
    found = next((each for each in state.clusters() if each.name == started.name), None)
    try:
        while found and len(found.living) == len(found.processes):
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        _end(started.name)
        return 0
    _end(started.name, keep_logs=True)
    problem = ErrorRecord(f"Ray has exited on this node ({started.gcs_address})", f"see its logs: {started.logs}", 1)
    console.report_error(problem, {}, as_json=False)
    return problem.exit_code


def _end(name: str, *, keep_logs: bool = False) -> None:
    """Ends it in peace: who is told to end twice would leave the half of it."""
    with undisturbed():
        if any(each.name == name for each in state.clusters()):
            cluster.stop(name, keep_logs=keep_logs)
