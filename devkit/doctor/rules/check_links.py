"""Rules about what is between nodes: reach, speed, loss, and the all-reduce over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from devkit.doctor.onnode.driver import SLOW_MB_PER_S  # a gigabit Ethernet carries 118
from devkit.doctor.onnode.facts import Collective, Pair
from devkit.doctor.records import Finding, Severity
from devkit.doctor.rules.check_network import SLOW_LOOKUP_S
from devkit.doctor.scene import Scene, names, speed

SLOW_SHARE = 0.25  # of what the others carry
FAR_MS = 10.0
LOSS, LOSS_LEAST = 0.05, 10  # a busy receiver drops a percent or two on a sound network
_ALIVE = "the head sees both as alive, but NCCL and gloo connect every rank to the others: training would hang"


def check(scene: Scene) -> Iterator[Finding]:
    yield from _unreachable(scene)
    yield from _speed(scene)
    yield from _loss(scene)
    for collective in scene.collectives:
        yield from _collective(scene, collective)
        yield from _transport(scene, collective)


def _unreachable(scene: Scene) -> Iterator[Finding]:
    cut = {(pair.source, pair.target): pair for pair in scene.pairs if pair.error}
    for target in dict.fromkeys(target for _, target in cut):
        sources = [pair.source for pair in scene.pairs if pair.target == target]
        if len(sources) > 1 and all((source, target) in cut for source in sources):
            pairs = [cut.pop((source, target)) for source in sources]
            for source in sources:
                if (back := cut.pop((target, source), None)) is not None:
                    pairs.append(back)
            name = scene.name(target)
            what = f"no other node can connect to {name} ({pairs[0].address})"
            yield _cut(
                scene,
                (name,),
                what,
                pairs,
                f"allow all TCP ports to {pairs[0].address}: check the firewall and the route",
            )
    while cut:
        (source, target), pair = next(iter(cut.items()))
        back = cut.pop((target, source), None)
        del cut[source, target]
        one, other = scene.name(source), scene.name(target)
        what = f"{one} and {other} can't connect to each other" if back else f"{one} can't connect to {other}"
        ends = f"{_address(scene, source)} and {pair.address}"
        fix = f"allow all TCP ports between {ends}: check firewalls, security groups and routes"
        yield _cut(scene, (one, other), what, [pair, *([back] if back else [])], fix)


def _cut(scene: Scene, where: tuple[str, ...], what: str, pairs: list[Pair], fix: str) -> Finding:
    said = tuple(f"{scene.name(pair.source)} to {pair.address}: {pair.error}" for pair in pairs)
    return Finding("pair-unreachable", where, what, _ALIVE, fix, said)


def _address(scene: Scene, node_id: str) -> str:
    return next((node.ip for node in scene.nodes if node.node_id == node_id), node_id[:8])


def _between_machines(scene: Scene) -> list[Pair]:
    return [pair for pair in scene.pairs if not scene.share_a_machine(pair.source, pair.target)]


def _speed(scene: Scene) -> Iterator[Finding]:
    pairs = _between_machines(scene)
    rates = {(pair.source, pair.target): pair.mb_per_s for pair in pairs if pair.mb_per_s is not None}
    for pair in pairs:
        ends = (scene.name(pair.source), scene.name(pair.target))
        rate = pair.mb_per_s
        others = [value for key, value in rates.items() if key != (pair.source, pair.target)]
        usual = median(others) if len(others) > 2 else 0.0
        if rate is not None and (rate < SLOW_MB_PER_S or rate < SLOW_SHARE * usual):
            beside = f"; the others carry {speed(usual)} MB/s in the median" if usual else ""
            yield Finding(
                "pair-slow",
                ends,
                f"{ends[0]} to {ends[1]} carries {speed(rate)} MB/s",
                "each step sends all gradients through the slowest connection",
                f"on {ends[0]}: ethtool the interface (speed, errors); ip route get {pair.address}",
                (f"one TCP connection, {speed(rate)} MB/s acknowledged{beside}",),
            )
        if pair.latency_ms is not None and pair.latency_ms >= FAR_MS:
            what = f"a round trip from {ends[0]} to {ends[1]} takes {pair.latency_ms:.1f} ms"
            why = "a collective takes many round trips; the nodes may be far apart, or the link overloaded"
            said = f"the best of several round trips of one byte: {pair.latency_ms:.1f} ms"
            yield Finding("pair-far", ends, what, why, f"on {ends[0]}: traceroute {pair.address}", (said,))


def _loss(scene: Scene) -> Iterator[Finding]:
    for pair in _between_machines(scene):
        if pair.retransmitted >= LOSS_LEAST and pair.retransmitted >= LOSS * pair.segments:
            ends = (scene.name(pair.source), scene.name(pair.target))
            share = pair.retransmitted / pair.segments
            yield Finding(
                "packet-loss",
                ends,
                f"{share:.0%} of what {ends[0]} sends to {ends[1]} is retransmitted",
                "TCP slows to a crawl: some steps take seconds longer",
                f"on both: ip -s link (errors, dropped); ping -c 100 -i 0.2 {pair.address}",
                (f"{pair.retransmitted} of {pair.segments} segments were retransmitted",),
            )


def _collective(scene: Scene, collective: Collective) -> Iterator[Finding]:
    odd = tuple(scene.name(node) for node in collective.odd)
    over = (
        f"the {collective.backend} all-reduce over {collective.ranks} {'nodes' if scene.gcs_address else 'processes'}"
    )
    if collective.status == "failed":
        what = f"{over} failed on {names(odd)}"
        fix = "fix the problems above, then run devkit doctor --timeout 60"
        yield Finding(
            "collective-failed", odd, what, "training does the same in its first seconds", fix, _said(collective)
        )
    elif collective.status == "late":
        slow = any(look.seconds >= SLOW_LOOKUP_S for _, facts in scene.seen for look in facts.network.lookups)
        severity: Severity | None = "note" if slow else None
        why = (
            "reverse DNS lookups are slow there, and torch waits for them"
            if slow
            else "training would hang in its first seconds"
        )
        what = f"{over} did not end on {names(odd)}"
        yield Finding("collective-late", odd, what, why, "devkit doctor --timeout 60", _said(collective), severity)

    elif collective.status == "unready":
        what = f"{over} could not start on {names(odd)}"
        why = "the check is not finished: the machine may be busy, or importing torch is slow"
        yield Finding("collective-unfinished", odd, what, why, "devkit doctor --timeout 60", _said(collective))


def _said(collective: Collective) -> tuple[str, ...]:
    return (collective.detail or f"{collective.backend} said nothing",)


def _transport(scene: Scene, collective: Collective) -> Iterator[Finding]:
    if collective.backend != "nccl" or "NET/Socket" not in collective.transport:
        return
    ports = [(name, facts.devices.infiniband) for name, facts in scene.seen if facts.devices.infiniband]
    off = [name for name, facts in scene.seen if facts.environment.get("NCCL_IB_DISABLE", "0") not in ("0", "")]
    where = tuple(name for name, _ in ports) or tuple(name for name, _ in scene.seen)
    evidence: tuple[str, ...] = (f"NCCL: via {collective.transport}, {speed(collective.mb_per_s)} MB/s",)
    evidence += tuple(f"{name}: {names(active)}" for name, active in ports)
    evidence += tuple(f"{name}: NCCL_IB_DISABLE is set" for name in off)
    fix = (
        "unset NCCL_IB_DISABLE before `ray start`"
        if off
        else "in a container: --device=/dev/infiniband --ulimit memlock=-1"
    )
    if ports:
        what = "NCCL uses sockets, not InfiniBand"
        yield Finding("nccl-sockets", where, what, "it is ten times slower and loads the CPUs", fix, evidence)
    else:
        what = f"NCCL uses sockets with {speed(collective.mb_per_s)} MB/s"
        why = "no node has an active InfiniBand port: gradients share Ethernet with everything else"
        yield Finding(
            "nccl-sockets", where, what, why, "prefer few large nodes; see NCCL_SOCKET_IFNAME", evidence, "note"
        )
