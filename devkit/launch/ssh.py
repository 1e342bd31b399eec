"""ssh: `devkit debug-cluster --hosts h1,h2`, from a laptop. The first host is the head.

    connect to all hosts -> compare versions -> start all at once (the others wait for the head) -> leave all

One ssh per host does all of it. A host that fails, Ctrl-C or the deadline hangs up on all of them, and each ends what
it has begun; so does a laptop that is shut.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from devkit.debug import gcs, launched, tokens
from devkit.debug.cluster_records import AuthRecord, DebugCluster, DebugMode, HostRecord, NodeRecord
from devkit.debug.gcs import GcsAddress
from devkit.debug.launched import Launched, LaunchedHost
from devkit.debug.ray_start import ClusterOptions
from devkit.debug.tokens import MODE, TOKEN, AuthMode
from devkit.errors import DeadlineError, DevkitError, UnreachableError, UsageError
from devkit.launch import host_boot, ssh_plan, ssh_session
from devkit.launch.base import Down, LaunchNode, Ran, Say
from devkit.launch.ssh_plan import Facts
from devkit.launch.ssh_session import Message, Session

HANG_UP_S = 20.0  # for a host to end what it has begun: Ray needs three seconds, and five more if it is killed
REPORT_S = 10.0  # after the deadline, for a host to say what it had been waiting for: a look may take five
Fact = TypeVar("Fact")


class SshLauncher:
    """A cluster on hosts that this machine reaches by ssh."""

    name = "ssh"

    def __init__(self, hosts: Sequence[str], python: str | None, options: ClusterOptions) -> None:
        self._hosts = tuple(hosts)
        self._python = python or sys.executable
        self._options = options
        self._launched: Launched | None = None

    @classmethod
    def of(cls, known: Launched) -> SshLauncher:
        """The launcher of a cluster that is up."""
        made = cls([host.name for host in known.hosts], known.python, ClusterOptions())
        made._launched = known
        return made

    def up(self, say: Say, timeout: float) -> DebugCluster:
        """Brings the cluster up within `timeout` seconds; whatever it raises, it leaves nothing running."""
        check(self._options)
        until = time.monotonic() + timeout
        auth, environ, source = _credentials(self._options, say)
        with _connected(self._hosts, self._python) as sessions:
            conversation = _Conversation(sessions, self._python, say, timeout)
            facts = self._compared(conversation, until)
            orders = ssh_plan.orders(replace(self._options, timeout=timeout), facts, auth, environ)
            for session in sessions:
                started = orders[session.destination]
                started["options"]["timeout"] = max(1.0, float(int(until - time.monotonic())))
                session.send(started)
            records = conversation.ask_all("up", until + REPORT_S, what="its node")
            self._launched = _remember(self._hosts, facts, records, self._python, auth)
            launched.save(self._launched)
            with ExitStack() as unfinished:
                unfinished.callback(launched.forget, self._launched.name)
                for session in sessions:
                    session.send({"do": "leave"})
                conversation.ask_all("left", until + REPORT_S, what="its farewell")
                unfinished.pop_all()
        return _record(self._launched, records[self._hosts[0]], source, conversation.notes)

    def nodes(self) -> tuple[LaunchNode, ...]:
        """The machines, the head first."""
        if self._launched is None:
            head, *rest = self._hosts
            return (LaunchNode(head, "head"), *(LaunchNode(host, "worker") for host in rest))
        return tuple(
            LaunchNode(host.name, "head" if host.role == "head" else "worker", host.ip, host.node_id)
            for host in self._launched.hosts
        )

    def exec(self, node: LaunchNode, command: Sequence[str], *, stdin: str = "", timeout: float) -> Ran:
        """Runs a command on one of them, with the PATH and the token that its Ray has, for at most `timeout` s."""
        auth, environ, _ = _credentials(self._options, lambda note: None)
        environ = {MODE: auth, **environ}
        order = {"do": "run", "words": [*command], "stdin": stdin, "timeout": timeout, "environ": environ}
        with _connected([node.name], self._python) as sessions:
            conversation = _Conversation(sessions, self._python, lambda note: None, timeout)
            until = time.monotonic() + timeout + ssh_session.CONNECT_S
            conversation.ask_all("python", until, what="ssh")
            sessions[0].send(order)
            done = conversation.ask_all("code", until, what=command[0], whole=True)[node.name]
        return Ran(node.name, done["code"], done["out"], done["err"])

    def down(self, timeout: float, *, keep_logs: bool = False) -> tuple[Down, ...]:
        """Ends what `up` started, on every host; one that cannot be reached is told in its `problem`."""
        if self._launched is None:
            return ()
        orders = {host.name: {**_stop_order(host), "keep_logs": keep_logs} for host in self._launched.hosts}
        answers, problems = self._each(orders, timeout)
        left = tuple(
            Down(host, (answers.get(host) or {}).get("processes", 0), problems.get(host, "")) for host in self._hosts
        )
        if not problems:
            launched.forget(self._launched.name)
        return left

    def status(self, timeout: float) -> DebugCluster:
        """As it is now, as its head says; `problem` names the hosts where it is not as it was."""
        known = self._launched
        assert known is not None
        token = tokens.find_token() if known.auth == "token" else None
        environ = {MODE: known.auth, **({TOKEN: token.value} if token else {})}
        orders = {
            host.name: {"do": "status", "name": host.cluster, "environ": environ, "key": "status"}
            for host in known.hosts
        }
        answers, problems = self._each(orders, timeout)
        for host in known.hosts:
            if host.name not in problems and not answers.get(host.name):
                problems[host.name] = "what was started there has exited"
            elif found := answers.get(host.name):
                problems.update({host.name: found["problem"]} if found["problem"] else {})
        head = answers.get(known.hosts[0].name) or {"nodes": [], "join_command": ""}
        shown = _record(known, head, token.source if token else "", ())
        told = "; ".join(f"{host}: {problem}" for host, problem in problems.items())
        hosts = tuple(replace(host, problem=problems.get(host.name, "")) for host in shown.hosts)
        return replace(shown, problem=told, hosts=hosts)

    def _compared(self, conversation: _Conversation, until: float) -> dict[str, Facts]:
        """What the hosts are, once nothing in the way has been found. Raises DevkitError with all that differs."""
        said = conversation.ask_all("python", until, what="ssh", whole=True, patient=True)
        found = {host: Facts.from_json(said[host]) for host in self._hosts}
        here = Facts.from_json(host_boot.facts(""))
        if told := ssh_plan.differences(here, found):
            raise DevkitError(told, hint="install the same version there, or choose another interpreter with --python")
        ssh_plan.check_addresses(found)
        return found

    def _each(self, orders: Mapping[str, Message], timeout: float) -> tuple[dict[str, Any], dict[str, str]]:
        """One order for each host: the answers, and why a host gave none."""
        with _connected(list(orders), self._python) as sessions:
            conversation = _Conversation(sessions, self._python, lambda note: None, timeout)
            conversation.forgiving = True
            until = time.monotonic() + timeout
            conversation.ask_all("python", until, what="ssh", patient=True)
            answers: dict[str, Any] = {}
            for session in sessions:
                session.send(orders[session.destination])
            for key in {order["key"] for order in orders.values()}:
                answers |= conversation.ask_all(key, until, what="its answer", patient=True)
            return answers, conversation.problems


@dataclass
class _Conversation:
    """What is asked of all hosts at once, and the first thing that went wrong."""

    sessions: Sequence[Session]
    python: str
    say: Say
    timeout: float
    forgiving: bool = False  # a host that fails is noted in `problems`, and the others go on
    notes: tuple[str, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)

    def ask_all(
        self, key: str, until: float, *, what: str, whole: bool = False, patient: bool = False
    ) -> dict[str, Any]:
        """Each host's answer under `key`, or all of that message if `whole`.

        Raises the first failure, with its host; if `patient`, once all have answered, all of them. Raises
        DeadlineError that says whose `what` is missing.
        """
        awaited = {session.destination for session in self.sessions} - set(self.problems)
        answers: dict[str, Any] = {}
        failures: dict[str, DevkitError] = {}
        for session, message in ssh_session.messages(self.sessions, until):
            host = session.destination
            if host not in awaited:
                continue
            if message is not None and key in message:
                answers[host] = message if whole else message[key]
                awaited.discard(host)
            elif message is not None and "note" in message:
                self._note(host, message["note"])
            elif problem := self._failure(session, message):
                failures[host] = problem
                awaited.discard(host)
                if not patient and not isinstance(problem, DeadlineError):
                    break  # at the deadline all have something to say
            if not awaited:
                break
        else:
            if awaited:
                failures |= self._late([host for host in self._names if host in awaited], what)
        self._settle({host: failures[host] for host in self._names if host in failures})
        return answers

    @property
    def _names(self) -> list[str]:
        return [session.destination for session in self.sessions]

    def _late(self, hosts: Sequence[str], what: str) -> dict[str, DevkitError]:
        """One problem for all of them, under the first; each has it where each is looked at by itself."""
        problem = DeadlineError(
            f"{self.timeout:g} s have passed; still missing: {what} of {', '.join(hosts)}",
            hint="wait longer with --timeout",
        )
        return dict.fromkeys(hosts if self.forgiving else hosts[:1], problem)

    def _settle(self, failures: Mapping[str, DevkitError]) -> None:
        if self.forgiving:
            self.problems |= {host: problem.message for host, problem in failures.items()}
        elif failures:
            problems = list(failures.values())
            # Beside a cause, those that have waited for it in vain are no news.
            worst = next((problem for problem in problems if not isinstance(problem, DeadlineError)), problems[0])
            message = "; ".join(dict.fromkeys(problem.message for problem in problems))
            raise type(worst)(message, hint=worst.hint)

    def _failure(self, session: Session, message: Message | None) -> DevkitError | None:
        host = session.destination
        if message is None:
            return ssh_plan.failure(host, self.python, *session.ending())
        if "failed" not in message:
            return None
        problem = message["failed"]
        kinds = {kind.exit_code: kind for kind in (DevkitError, UsageError, UnreachableError, DeadlineError)}
        kind = kinds.get(problem["exit_code"], DevkitError)
        return kind(f"{host}: {problem['error']}", hint=f"on {host}: {problem['hint']}")

    def _note(self, host: str, note: str) -> None:
        self.notes = (*self.notes, f"{host}: {note}")
        self.say(f"{host}: {note}")


def check(options: ClusterOptions) -> None:
    """Raises UsageError for options that say something of one machine."""
    for name, given in (
        ("--join", options.join is not None),
        ("--nodes", options.nodes != 1),
        ("--node-ip", options.node_ip is not None),
    ):
        if given:
            raise UsageError(f"{name} and --hosts cannot be combined", hint=f"remove {name}: each host is one node")


@contextmanager
def _connected(hosts: Sequence[str], python: str) -> Iterator[list[Session]]:
    """A session with each host. At the end all are hung up on, and have time to end what they had begun."""
    sessions: list[Session] = []
    try:
        for host in hosts:
            sessions.append(Session(host, python))
        yield sessions
    finally:
        for session in sessions:
            session.hang_up()
        for _ in ssh_session.messages(sessions, time.monotonic() + HANG_UP_S):
            pass  # until they have ended
        for session in sessions:
            session.close()


def _credentials(options: ClusterOptions, say: Say) -> tuple[AuthMode, dict[str, str], str]:
    """Ray's mode, the variables with the token, and where the token is here."""
    import os

    auth = tokens.auth_mode(options.auth, os.environ)
    if auth == "disabled":
        return auth, {}, ""
    token, made = tokens.ensure_token()
    if made:
        say(f"made a token for your Ray clusters, in {token.source}")
    return auth, {TOKEN: token.value}, token.source


def _stop_order(host: LaunchedHost) -> Message:
    return {"do": "stop", "name": host.cluster, "key": "stopped"}


def _remember(
    hosts: Sequence[str],
    facts: Mapping[str, Facts],
    records: Mapping[str, Mapping[str, Any]],
    python: str,
    auth: AuthMode,
) -> Launched:
    head = records[hosts[0]]
    ids = {node["ip"]: node["node_id"] for node in head["nodes"] if node["alive"]}
    return Launched(
        name=launched.free_name(f"ssh-{hosts[0].rpartition('@')[2]}".replace("/", "")),
        launcher="ssh",
        gcs_address=head["gcs_address"],
        dashboard_url=head["dashboard_url"],
        mode=head["debug"]["mode"],
        auth=auth,
        python=python,
        hosts=tuple(
            LaunchedHost(
                name=host,
                role="worker" if number else "head",
                ip=facts[host].ip,
                cluster=records[host]["name"],
                logs=records[host]["logs"],
                node_id=ids.get(facts[host].ip, ""),
            )
            for number, host in enumerate(hosts)
        ),
        created=time.time(),
    )


def _record(known: Launched, head: Mapping[str, Any], source: str, notes: Sequence[str]) -> DebugCluster:
    """The same record as of a cluster on this machine, with its hosts."""
    hosts = tuple(
        HostRecord(host.name, host.role, host.ip, host.node_id, f"{host.name}:{host.logs}") for host in known.hosts
    )
    return DebugCluster(
        gcs_address=known.gcs_address,
        dashboard_url=known.dashboard_url,
        nodes=tuple(NodeRecord(**node) for node in head["nodes"]),
        debug=DebugMode(known.mode, post_mortem=True),
        join_command=head["join_command"],
        name=known.name,
        auth=AuthRecord(known.auth, source),
        logs=hosts[0].logs,
        notes=(*notes, *_reach(known)),
        hosts=hosts,
    )


def _reach(known: Launched) -> tuple[str, ...]:
    """What to do where the dashboard cannot be reached from here, though ssh can."""
    url = GcsAddress.parse(known.dashboard_url.partition("://")[2])
    if gcs.is_up(url, 2.0):
        return ()
    tunnel = f"ssh -N -L {url.port}:{url} {known.hosts[0].name}"
    return (f"the dashboard cannot be reached from here: {tunnel}, then --address http://127.0.0.1:{url.port}",)
