"""What the launchers decide before they act: hosts, versions, orders, and who a machine is by its environment."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug.cluster_launch import RANK_LABEL, missing_nodes, why_no_dashboard
from devkit.debug.ray_start import ClusterOptions
from devkit.debug.rows import NodeRow
from devkit.errors import DevkitError, UnreachableError, UsageError
from devkit.launch import env_plan, host_boot, ssh_plan, ssh_session
from devkit.launch.base import Launcher
from devkit.launch.env import EnvLauncher
from devkit.launch.ssh import SshLauncher
from devkit.launch.ssh_plan import Facts, parse_hosts


def launchers(ssh: SshLauncher, env: EnvLauncher) -> tuple[Launcher, ...]:
    """For mypy: both are what the Protocol says."""
    return ssh, env


HERE = Facts("3.11.7", "2.60.0", "0.1.0", "aa", "/v/python", "10.0.0.1", 6379)
NAMES = st.from_regex(r"([a-z][a-z0-9]{0,5}@)?[a-z0-9][a-z0-9.\-]{0,12}", fullmatch=True)
WORLD = {"MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "6400", "WORLD_SIZE": "3", "RANK": "1"}
THERE = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5", "eth1": "10.1.0.5"}


class TestHosts:
    @given(st.lists(NAMES, min_size=1, unique=True))
    def test_a_list_and_a_file_say_the_same(self, names: list[str]) -> None:
        assert parse_hosts(",".join(names) + ",") == tuple(names)
        assert parse_hosts("# all\n" + "".join(f"  {name}  slots=8 # one\n\n" for name in names)) == tuple(names)

    @given(st.text(max_size=30))
    def test_what_is_no_host_never_gets_to_ssh(self, text: str) -> None:
        try:
            hosts = parse_hosts(text)
        except UsageError:
            return
        assert hosts and not any(host.startswith("-") or " " in host for host in hosts)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "contains no host"),
            ("# h1", "contains no host"),
            ("h1,h2,h1", "is listed twice"),
            ("h1 h2", "not a single host"),
            ("-oProxyCommand=touch,", "not a host"),
            ("me@-oX,", "not a host"),
            ("h1;reboot,", "not a host"),
        ],
    )
    def test_refused(self, text: str, problem: str) -> None:
        with pytest.raises(UsageError, match=problem):
            parse_hosts(text)


class TestVersions:
    def test_the_same_is_nothing_to_tell(self) -> None:
        assert ssh_plan.differences(HERE, {"h1": HERE, "h2": replace(HERE, executable="/w/python", ip="x")}) == ""

    @pytest.mark.parametrize(
        ("there", "told"),
        [
            (replace(HERE, python="3.11.8"), "h1 has python 3.11.8, here is 3.11.7"),
            (replace(HERE, ray="2.49.0"), "h1 has ray 2.49.0, here is 2.60.0"),
            (replace(HERE, ray=""), "h1 has no Ray for /v/python, here is 2.60.0"),
            (replace(HERE, code="bb"), "h1 has devkit 0.1.0 (sources bb), here is 0.1.0 (sources aa)"),
        ],
    )
    def test_each_difference_is_told_with_both_versions(self, there: Facts, told: str) -> None:
        assert ssh_plan.differences(HERE, {"h0": HERE, "h1": there}) == told

    def test_what_a_host_says_of_itself(self) -> None:
        facts = Facts.from_json(host_boot.facts("::ffff:10.9.9.9"))
        assert facts.ip == "10.9.9.9" and facts.executable == sys.executable and len(facts.code) == 8
        assert facts.python.count(".") == 2 and facts.ray and facts.devkit and facts.gcs_port


HOSTS = {"h1": HERE, "h2": replace(HERE, ip="10.0.0.2", gcs_port=7000)}


class TestOrders:
    def test_the_first_is_the_head_and_the_others_wait_for_it(self) -> None:
        orders = ssh_plan.orders(ClusterOptions(num_gpus=8, json=True), HOSTS, "token", {"RAY_AUTH_TOKEN": "s"})
        head, worker = (orders[host]["options"] for host in ("h1", "h2"))
        assert (head["port"], head["join"], head["node_ip"], head["wait_for"]) == (6379, None, "10.0.0.1", 2)
        assert (worker["port"], worker["join"], worker["node_ip"]) == (None, "10.0.0.1:6379", "10.0.0.2")
        assert worker["await_head"] and worker["head_is_ours"] and not head["await_head"]
        assert {head["num_gpus"], worker["num_gpus"]} == {8} and not head["json"]
        assert orders["h2"]["environ"] == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "s"}
        assert json.loads(json.dumps(orders)) is not None

    def test_a_token_is_no_word_of_a_command(self) -> None:
        words = ssh_session.command("h1", "/v/my python")
        assert words[0] == "ssh" and words[-3:-1] == ("--", "h1") and "BatchMode=yes" in words
        assert words[-1].startswith("'/v/my python' -c ")
        assert "token" not in " ".join(words).lower()

    def test_one_machine_twice_and_one_without_an_address(self) -> None:
        with pytest.raises(UsageError, match=r"h1 and h3 are the same machine, 10\.0\.0\.1"):
            ssh_plan.check_addresses({**HOSTS, "h3": HERE})
        with pytest.raises(UsageError, match=r"h1 and h3 are two machines, and both have 10\.0\.0\.1"):
            ssh_plan.check_addresses({**HOSTS, "h3": replace(HERE, boot="another")})
        with pytest.raises(UsageError, match="h3 has no address"):
            ssh_plan.check_addresses({**HOSTS, "h3": replace(HERE, ip="")})

    @pytest.mark.parametrize(
        ("code", "errors", "kind", "said", "hint"),
        [
            (255, "ssh: Could not resolve hostname h1: ...", UnreachableError, "no ssh to h1", ".ssh/config"),
            (255, "me@h1: Permission denied (publickey).", UnreachableError, "Permission denied", "ssh-copy-id h1"),
            (255, "ssh: connect to host h1 port 22: Connection timed out", UnreachableError, "timed out", "is it up"),
            (255, "", UnreachableError, "it said nothing", "`ssh h1 true`"),
            (127, "sh: 1: /v/python: not found", DevkitError, "h1 has no /v/python", "--python"),
            (1, "Traceback ...\nSyntaxError: invalid syntax", DevkitError, "SyntaxError", "-V has to work"),
        ],
    )
    def test_why_a_host_has_failed(self, code: int, errors: str, kind: type, said: str, hint: str) -> None:
        failure = ssh_plan.failure("h1", "/v/python", code, errors)
        assert type(failure) is kind and said in failure.message and hint in failure.hint


class TestEnvironment:
    def test_the_head_and_the_others(self) -> None:
        world = env_plan.read({**WORLD, "RANK": "0"})
        head = env_plan.options(world, ClusterOptions(), "10.0.0.5")
        assert (head.port, head.join, head.node_ip, head.wait_for) == (6400, None, "10.0.0.5", 3)
        other = env_plan.options(env_plan.read(WORLD), ClusterOptions(), None)
        assert (other.port, other.join, other.await_head, other.wait_for) == (None, "10.0.0.5:6400", True, 3)
        assert other.ray_arguments == (f"--labels={RANK_LABEL}=1",)

    @pytest.mark.parametrize(
        ("changed", "problem"),
        [
            ({"RANK": ""}, "RANK not set"),
            ({"MASTER_ADDR": "", "WORLD_SIZE": ""}, "MASTER_ADDR and WORLD_SIZE not set"),
            ({"RANK": "3"}, "RANK is 3 and WORLD_SIZE is 3"),
            ({"RANK": "-1"}, "RANK is '-1'"),
            ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE is 0"),
            ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
            ({"MASTER_PORT": "port of master node"}, "MASTER_PORT is 'port of master node'"),
            ({"MASTER_PORT": "70000"}, "MASTER_PORT"),
            ({"MASTER_ADDR": "ip of master node"}, "MASTER_ADDR is 'ip of master node'"),
            ({"MASTER_ADDR": "127.0.0.1"}, "is a different machine"),
            ({"LOCAL_RANK": "0"}, "counts processes"),
        ],
    )
    def test_refused(self, changed: dict[str, str], problem: str) -> None:
        with pytest.raises(UsageError, match=problem):
            env_plan.read({**WORLD, **changed})

    @given(st.dictionaries(st.sampled_from([*WORLD, "LOCAL_RANK"]), st.text(max_size=12)))
    def test_whatever_it_says_is_a_world_or_a_usage_error(self, environ: dict[str, str]) -> None:
        try:
            world = env_plan.read(environ)
        except UsageError:
            return
        assert 0 <= world.rank < world.size

    @pytest.mark.parametrize(
        ("nccl", "gloo", "chosen"),
        [
            ("", "", None),
            ("eth0", "eth0", "eth0"),
            ("eth", "", "eth0"),
            ("=eth1", "", "eth1"),
            ("^docker,lo", "", "eth0"),
            ("^=eth0,docker0,lo", "", "eth1"),
            ("eth", "eth1", "eth1"),
            ("", "ib0,eth1", "eth1"),
        ],
    )
    def test_the_interface(self, nccl: str, gloo: str, chosen: str | None) -> None:
        found = env_plan.interface({"NCCL_SOCKET_IFNAME": nccl, "GLOO_SOCKET_IFNAME": gloo}, THERE)
        assert found == ((chosen, THERE[chosen]) if chosen else None)

    def test_an_interface_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match=r"NCCL_SOCKET_IFNAME is ib0, .* eth0 \(10\.0\.0\.5\)"):
            env_plan.interface({"NCCL_SOCKET_IFNAME": "ib0"}, THERE)
        with pytest.raises(UsageError, match="means eth0 and GLOO_SOCKET_IFNAME means eth1"):
            env_plan.interface({"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth1"}, THERE)


@given(st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_the_ranks_that_are_missing_are_named(size: int, present: set[int]) -> None:
    alive = [NodeRow(node_ip=f"10.0.0.{rank}", labels={RANK_LABEL: str(rank)}) for rank in present if rank < size]
    absent = [rank for rank in range(size) if rank not in present]
    told = missing_nodes(size, alive)
    assert (told is None) == (not absent)
    if told and alive:
        assert told.startswith(f"{len(absent)} of {size} nodes: rank") and "; alive: 10.0.0." in told
        assert told.partition(";")[0].rpartition("rank")[2].lstrip("s ") == ", ".join(map(str, absent))


def test_what_the_dashboard_of_this_head_has_failed_with(tmp_path: Path) -> None:
    failed = "ERROR dashboard.py:1 -- The dashboard on node h0 failed with the following error:\n"
    for pid, log in {
        11: f"{failed}ValueError: of another head\n",
        12: f"OSError: before\n{failed}  x.y.MyError: a b\nx.y.MyError: c\n\n",
        14: "ERROR head.py:1 -- one request\nx.y.MyError: of which it has not died\n",
    }.items():
        (tmp_path / f"session_2026_{pid}/logs").mkdir(parents=True)
        (tmp_path / f"session_2026_{pid}/logs/dashboard.log").write_text(log)
    assert why_no_dashboard(tmp_path, 12) == "x.y.MyError: c"
    assert why_no_dashboard(tmp_path, 13) == why_no_dashboard(tmp_path, 14) == ""
