"""The network between the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults import cluster
from tests.faults.cluster import Cluster, Job
from tests.faults.gallery import Clinic, fault
from tests.hosts.launching import eventually
from tests.pace import stretched

pytestmark = [pytest.mark.timeout(600), pytest.mark.ray]
DEAD_DNS = "nameserver 10.99.0.53\n"  # the switch routes nowhere: no answer ever comes
NO_COLLECTIVE = "--no-collective"


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster.up() as made:
        yield made


@pytest.fixture
def healed(three: Cluster) -> Iterator[Cluster]:
    """The cluster, whose network is mended after the test."""
    yield three
    three.lan.heal(1, 2)
    three.lan.loss(2, 0)
    three.lan.rate(1, 0)
    three.lan.link(1, up=True)


@pytest.fixture
def begin(healed: Cluster) -> Iterator[Callable[..., Job]]:
    """Starts a job."""
    begun: list[Job] = []

    def job(*, wait: bool = True) -> Job:
        begun.append(Job(healed, wait=wait))
        return begun[-1]

    yield job
    healed.lan.heal(1, 2)
    healed.lan.link(1, up=True)
    for each in begun:
        each.end()


@fault("Two workers lose each other while they train", "The run stands still. `ray status` shows all nodes alive.")
def test_a_partition_in_training(healed: Cluster, begin: Callable[..., Job], clinic: Clinic) -> None:
    begin()
    healed.lan.partition(1, 2)
    clinic.symptom()
    found = clinic.hang(healed.head, healed.environ)
    assert found["kind"] == "network", found
    assert "no data gets through between 10.77.0.2 and 10.77.0.3" in found["sentence"], found


@fault("Two workers can't reach each other when they meet", "The run stands still in `init_process_group`.")
def test_a_partition_at_the_start(healed: Cluster, begin: Callable[..., Job], clinic: Clinic) -> None:
    healed.lan.partition(1, 2)
    job = begin(wait=False)
    eventually(lambda: job.count_in("init") == 3, "the meeting of three ranks")
    clinic.symptom()
    found = clinic.hang(healed.head, healed.environ)
    assert found["kind"] == "network", found
    assert "no data gets through between 10.77.0.2 and 10.77.0.3" in found["sentence"], found


@fault("A partition between two workers, before the run", "Nothing: Ray's head reaches both.")
def test_a_partition_is_found_by_the_doctor(healed: Cluster, clinic: Clinic) -> None:
    healed.lan.partition(1, 2)
    clinic.symptom()
    found = clinic.doctor(healed.head, healed.environ, "pair-unreachable", code=1)
    assert found["what"] == "h1 and h2 can't connect to each other"


@fault("A link that loses a fifth of its packets", "Every step takes many times longer; the run is right.")
def test_loss(healed: Cluster, clinic: Clinic) -> None:
    healed.lan.loss(2, 20)
    clinic.symptom()
    found = clinic.doctor(healed.head, healed.environ, "packet-loss", NO_COLLECTIVE, code=0)
    assert "h2" in found["where"], found


@fault("A slow link", "Every step takes many times longer; the run is right.")
def test_slow_link(healed: Cluster, clinic: Clinic) -> None:
    healed.lan.rate(1, 20)
    clinic.symptom()
    found = clinic.doctor(healed.head, healed.environ, "pair-slow", NO_COLLECTIVE, code=0)
    assert "h1" in found["where"], found


@fault("A DNS server that does not answer", "Each rank takes ten seconds longer to join, and nobody knows why.")
def test_dead_dns(healed: Cluster, clinic: Clinic) -> None:
    before = healed.lan[2].run("cat", "/etc/resolv.conf").stdout
    healed.lan[2].write("/etc/resolv.conf", DEAD_DNS, "644")
    clinic.symptom()
    try:
        found = clinic.doctor(healed.head, healed.environ, "slow-lookup", code=0)
    finally:
        healed.lan[2].write("/etc/resolv.conf", before, "644")
    assert "on h2" in found["what"]


@fault("Large packets are lost (an MTU that differs)", "Connections open, then stand still with the first tensor.")
def test_mtu(healed: Cluster, clinic: Clinic) -> None:
    healed.lan.longest(2, 1000)
    clinic.symptom()
    try:
        found = clinic.doctor(healed.head, healed.environ, "node-silent", NO_COLLECTIVE, code=1)
    finally:
        healed.lan.longest(2, 0)
    assert found["what"] == "data sent to node h2 (10.77.0.3) does not arrive, although connections to it open"


@fault("A machine's cable is pulled while it trains", "The run stands still; Ray knows after a minute or two.")
def test_cable(healed: Cluster, begin: Callable[..., Job], clinic: Clinic) -> None:
    begin()
    healed.lan.link(1, up=False)
    clinic.symptom()
    found = clinic.hang(healed.head, healed.environ)
    assert found["kind"] in ("unreachable", "dead") and found["culprit"]["rank"] == 1, found
    assert "10.77.0.2" in found["sentence"], found


@fault("A machine is powered off while it trains", "The run stands still; Ray knows after a minute or two.")
def test_poweroff(clinic: Clinic) -> None:
    """On a cluster of its own: that machine does not come back, nor does the one before it where Ray gave it up."""
    with cluster.up() as own:
        job = Job(own)
        own.lan.poweroff(2)
        job.process.wait(stretched(120))
        clinic.symptom()
        said = clinic.first_error(own.head, own.environ)
        job.end()
    assert "10.77.0.3" in said, said
