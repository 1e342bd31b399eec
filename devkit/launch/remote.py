"""`devkit debug-cluster --hosts`, and its `status` and `stop` for the clusters that it brought up on other machines."""

from __future__ import annotations

from os.path import expanduser, isfile
from typing import Any

from devkit import console, patience
from devkit.debug import launched
from devkit.debug.cluster_records import DebugCluster, Stopped
from devkit.debug.cluster_view import show_started
from devkit.debug.ray_start import ClusterOptions
from devkit.errors import UsageError
from devkit.launch import ssh_plan
from devkit.launch.ssh import SshLauncher
from devkit.launch.ssh_plan import HOSTS_HINT, parse_hosts
from devkit.reading import read_regular
from devkit.signals import interrupting

# Other than on one machine: the dashboard has to be reached from here.
DEFAULTS: dict[str, Any] = {"dashboard_host": ssh_plan.ALL_ADDRESSES}
LARGEST = 1_000_000  # bytes of a file of hosts
ANSWER_S = 30.0  # for all hosts together, to say how they are or to end


def up_main(hosts: str, python: str | None, options: ClusterOptions) -> int:
    """Brings a cluster up on these hosts; 0 when all of its nodes are alive."""
    talk = console.talk()
    launcher = SshLauncher(read_hosts(hosts), python, options)
    with interrupting():
        started = launcher.up(lambda note: talk.print(note, soft_wrap=True), options.timeout)
    if not options.json:
        for note in started.notes:
            talk.print(note, soft_wrap=True)
    show_started(started, json=options.json)
    return 0


def read_hosts(given: str) -> tuple[str, ...]:
    """The hosts of `h1,h2`, or of the file with that name. Raises UsageError for what is neither."""
    path = expanduser(given)
    try:
        if isfile(path):
            return parse_hosts(read_regular(path, LARGEST).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hosts {given} cannot be read: {error}", hint=HOSTS_HINT) from None
    if "/" in given and "://" not in given:
        raise UsageError(f"--hosts {given}: no such file", hint=HOSTS_HINT)
    return parse_hosts(given if "," in given else f"{given},")


def status() -> tuple[DebugCluster, ...]:
    """How each of them is, asked through ssh."""
    return tuple(SshLauncher.of(known).status(patience.seconds(ANSWER_S)) for known in launched.all_launched())


def stop(target: str | None, *, keep_logs: bool = False) -> tuple[Stopped, ...]:
    """Ends all of them, or the one with that name or address. One with a problem is still known afterwards."""
    chosen = [
        known
        for known in launched.all_launched()
        if target in (None, known.name, known.gcs_address, known.dashboard_url)
    ]
    ended = []
    for known in chosen:
        left = SshLauncher.of(known).down(patience.seconds(ANSWER_S), keep_logs=keep_logs)
        problem = "; ".join(f"{host.node}: {host.problem}" for host in left if host.problem)
        ended.append(Stopped(known.name, known.gcs_address, sum(host.processes for host in left), 0, problem))
    return tuple(ended)
