"""Rules about limits, shared memory, disks, caches and ports."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.doctor.onnode.facts import Disk, NodeFacts
from devkit.doctor.records import Finding
from devkit.doctor.scene import Scene, names

GIB = 1 << 30
SHM_LEAST, SHM_HOPELESS = GIB, GIB // 4  # bytes
FILES_LEAST, FILES_WANTED = 4096, 65535
FULL, ALMOST_NOTHING = 0.95, GIB  # 0.95: Ray stops spilling objects


def check(scene: Scene) -> Iterator[Finding]:
    for name, facts in scene.seen:
        yield from _shm(name, facts)
        yield from _files(name, facts)
    yield from _disks(scene)
    yield from _cache(scene)
    yield from _ports(scene)


def _shm(name: str, facts: NodeFacts) -> Iterator[Finding]:
    total, free = facts.limits.shm_total, facts.limits.shm_free
    if not total:
        return
    evidence = (f"/dev/shm: {_size(total)}, {_size(free)} free",)
    if total < SHM_LEAST:
        hopeless = total < SHM_HOPELESS and len(facts.devices.gpus) > 1
        yield Finding(
            "shm-small",
            (name,),
            f"/dev/shm on {name} has {_size(total)}",
            "NCCL, data loaders and Ray's object store pass data through it: expect a bus error, or slow files instead",
            "docker run --ipc=host, or --shm-size=16g; there: mount -o remount,size=50% /dev/shm",
            evidence,
            "error" if hopeless else None,
        )
    elif free < total / 10:
        yield Finding(
            "shm-full",
            (name,),
            f"/dev/shm on {name} has {_size(free)} of {_size(total)} free",
            "NCCL, data loaders and Ray's object store pass data through it",
            "on that node: ls -lt /dev/shm; remove what an earlier run left behind",
            evidence,
        )


def _files(name: str, facts: NodeFacts) -> Iterator[Finding]:
    soft, hard = facts.limits.open_files, facts.limits.open_files_hard
    if 0 < soft < FILES_LEAST:
        more = FILES_WANTED if hard < 0 or hard >= FILES_WANTED else hard
        fix = f"ulimit -n {more} before `ray start`"
        if 0 < hard < FILES_LEAST:
            fix = f"raise the hard limit: docker run --ulimit nofile={FILES_WANTED}, or /etc/security/limits.conf"
        what = f"a process on {name} may open only {soft} files"
        why = "each Ray worker needs dozens of connections; with many ranks: 'Too many open files'"
        yield Finding("open-files", (name,), what, why, fix, (f"ulimit -n: {soft}, hard limit {hard}",))


def _disks(scene: Scene) -> Iterator[Finding]:
    for name, facts in scene.seen:
        spoken: set[tuple[int, int]] = set()
        for disk in facts.disks:
            if disk.error:
                what = f"{disk.role} on {name} can't be written: {disk.path}"
                why = "the run fails at its first write there"
                evidence = (f"{disk.path}: {disk.error}",)
                yield Finding(
                    "disk-refuses",
                    (name,),
                    what,
                    why,
                    f"on that node: ls -ld {disk.path}; choose another folder",
                    evidence,
                )
            elif disk.total and (disk.total, disk.free) not in spoken and _is_full(disk):
                spoken.add((disk.total, disk.free))
                yield _full(name, disk)


def _is_full(disk: Disk) -> bool:
    return disk.free < ALMOST_NOTHING or disk.free < (1 - FULL) * disk.total


def _full(name: str, disk: Disk) -> Finding:
    what = f"the disk for {disk.role} on {name} has {_size(disk.free)} of {_size(disk.total)} free"
    why = "Ray stops spilling objects at 95 %, and a checkpoint that does not fit aborts the run"
    fix = f"on that node: du -xh {disk.path} | sort -h | tail"
    severity = "error" if disk.free < ALMOST_NOTHING else None
    evidence = (f"{disk.path} ({disk.kind or 'unknown'}): {_size(disk.free)} free",)
    return Finding("disk-full", (name,), what, why, fix, evidence, severity)  # type: ignore[arg-type]


def _cache(scene: Scene) -> Iterator[Finding]:
    if scene.machines < 2:
        return
    found = [(name, facts, disk) for name, facts in scene.seen for disk in facts.disks if disk.role == "HF_HOME"]
    if len({disk.identity for _, _, disk in found}) > 1:
        offline = [name for name, facts, _ in found if facts.environment.get("HF_HUB_OFFLINE", "0") not in ("0", "")]
        why = "each node downloads its own copy; a model that only one node has fails on the others"
        if offline:
            why = f"HF_HUB_OFFLINE is set on {names(offline)}: models that are only on another node are not found"
        yield Finding(
            "cache-not-shared",
            tuple(name for name, _, _ in found),
            f"{names(name for name, _, _ in found)} don't share HF_HOME",
            why,
            "export HF_HOME=/a/folder/shared/by/all/nodes before `ray start` on each node",
            tuple(f"{name}: {disk.path} ({disk.kind or 'unknown'})" for name, _, disk in found),
            "warning" if offline else None,
        )


def _ports(scene: Scene) -> Iterator[Finding]:
    for name, facts in scene.seen:
        for port in facts.network.ports:
            is_rays = port.role != "MASTER_PORT"
            what = f"port {port.port} on {name} ({port.role}) is in use"
            why = (
                "starting Ray with its default ports fails; devkit debug-cluster picks others"
                if is_rays
                else ("rank 0 can't listen there: 'Address already in use', and the others wait for it")
            )
            fix = f"on that node: ss -ltnp 'sport = :{port.port}'"
            fix += "" if is_rays else "; stop what is left over, or set another MASTER_PORT on each node"
            evidence = (f"listens on {port.port}: {port.holder or 'a hidden process'}",)
            yield Finding("port-taken", (name,), what, why, fix, evidence, "note" if is_rays else None)


def _size(count: int) -> str:
    """
    >>> _size(64 << 20), _size(5 << 30)
    ('64 MiB', '5.0 GiB')
    """
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"
