"""The doctor's page: the nodes, what is between them, the plan, and the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from devkit.doctor.onnode.facts import NodeFacts
from devkit.doctor.plan import Placed, Plan
from devkit.doctor.records import SEVERITIES, DoctorFinding, DoctorNode, DoctorRecord
from devkit.doctor.scene import speed
from devkit.logs import redact
from devkit.palette import CAUTION, NAME

_STYLE = {"error": "bold red", "warning": f"bold {CAUTION}", "note": f"bold {NAME}"}
_GIB = 1 << 30
HEADINGS = ("node", "ip", "Python", "ray", "torch", "GPUs", "CPUs", "memory", "shm", "disk free")
HARDWARE = HEADINGS.index("GPUs")
GAP = 2  # columns between two cells
MATRIX_NODES = 8  # for more, the pairs are summed up


def lines(record: DoctorRecord, width: int | None = None) -> Iterator[RenderableType]:
    """In `width` columns, as far as that is possible; None: as wide as it gets."""
    yield Text(_headline(record), style="bold")
    yield from _nodes(record, width)
    yield Text()
    if record.pairs:
        yield from _pairs(record)
        yield Text()
    if record.collectives:
        yield from _collectives(record)
        yield Text()
    for plan in record.plans:
        yield from _plan(plan)
        yield Text()
    for finding in record.findings:
        yield from _finding(finding)
        yield Text()
    yield summary(record)


def _headline(record: DoctorRecord) -> str:
    return f"cluster {record.gcs_address}" if record.gcs_address else "this machine"


def _nodes(record: DoctorRecord, width: int | None) -> Iterator[RenderableType]:
    """One table, or two where its lines would be broken: what is installed, and what the node has."""
    headings = HEADINGS + ("clock",) * any(node.clock_offset is not None for node in record.nodes)
    rows = [tuple(_row(node)) for node in record.nodes]
    if width is None or _natural_width([headings, *rows]) <= width:
        yield _table(headings, rows)
        return
    yield _table(headings[:HARDWARE], [row[:HARDWARE] for row in rows])
    if told := [row[:1] + row[HARDWARE:] for row in rows if row[HARDWARE:]]:
        yield Text()
        yield _table(headings[:1] + headings[HARDWARE:], told)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _natural_width(rows: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return sum(widths) + GAP * (len(widths) - 1)


def _row(node: DoctorNode) -> Iterator[str]:
    yield node.name + (" (head)" if node.head and node.node_id else "")
    yield node.ip
    if not node.alive or node.facts is None:
        yield "dead" if not node.alive else "no answer"
    else:
        yield from _cells(node, node.facts)


def _cells(node: DoctorNode, facts: NodeFacts) -> Iterator[str]:
    packages = facts.software.packages
    yield facts.software.python
    yield packages.get("ray", "none")
    yield packages.get("torch", "none")
    yield _gpus(node, facts)
    yield f"{node.free_cpus:g} of {node.cpus:g}"
    yield _gib(facts.limits.memory_total)
    yield _gib(facts.limits.shm_total)
    yield _gib(min((disk.free for disk in facts.disks if disk.total), default=0))
    if node.clock_offset is not None:
        yield f"{node.clock_offset:+.3f} s"


def _gpus(node: DoctorNode, facts: NodeFacts) -> str:
    gpus = facts.devices.gpus
    if not gpus:
        return f"{node.gpus:g}" if not facts.devices.problem else "no answer"
    free = min(gpu.memory_mib - gpu.used_mib for gpu in gpus) / 1024
    return f"{node.free_gpus:g} of {node.gpus:g} x {gpus[0].name}, {free:.0f} GiB free"


def _gib(size: int) -> str:
    return f"{size / _GIB:.0f} GiB"


def _pairs(record: DoctorRecord) -> Iterator[RenderableType]:
    names = {node.node_id: node.name for node in record.nodes if node.alive}
    if len(names) > MATRIX_NODES:
        cut = sum(bool(pair.error) for pair in record.pairs)
        rates = sorted(pair.mb_per_s for pair in record.pairs if pair.mb_per_s is not None)
        carry = f"; one connection carries {speed(rates[0])} to {speed(rates[-1])} MB/s" if rates else ""
        yield Text(f"{len(record.pairs)} pairs, {cut} unreachable{carry}")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("from \\ to: round trip, MB/s", no_wrap=True)
    for name in names.values():
        table.add_column(name, no_wrap=True)
    seen = {(pair.source, pair.target): pair for pair in record.pairs}
    for source, name in names.items():
        cells = []
        for target in names:
            pair = seen.get((source, target))
            cells.append(_link(pair.error, pair.latency_ms, pair.mb_per_s) if pair else "-")
        table.add_row(name, *cells)
    yield table


def _link(error: str, latency: float | None, rate: float | None) -> str:
    if error:
        return "no connection"
    carried = f", {rate:.0f}" if rate is not None else ""
    return f"{latency:.2f} ms{carried}" if latency is not None else "connected"


def _collectives(record: DoctorRecord) -> Iterator[Text]:
    for each in record.collectives:
        text = f"{each.backend} all-reduce over {each.ranks} ranks: "
        if each.status == "done":
            through = f" through {each.transport}" if each.transport else ""
            text += f"{speed(each.mb_per_s)} MB/s{through}, connected in {each.init_s:.1f} s"
        else:
            text += {"skipped": "not tried", "unready": "not finished", "late": "did not end", "failed": "failed"}[
                each.status
            ]
            text += f" ({redact.text(each.detail)})" if each.detail else ""
        yield Text(text)


def _plan(plan: Plan) -> Iterator[RenderableType]:
    demand = plan.demand
    kind = "GPUs" if demand.gpus else "CPUs"
    yield Text(f"{demand.command} ({demand.place}): {demand.nodes} x {demand.per_node} {kind}", style="bold")
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "on", "ranks", "tensor-parallel groups", "GPUs free", "CPUs free", ""):
        table.add_column(heading, no_wrap=True)
    for node in plan.nodes:
        table.add_row(*_placed(node))
    yield table


def _placed(node: Placed) -> Iterator[str]:
    last = node.first_rank + node.ranks - 1
    yield str(node.number)
    yield node.node or "none"
    yield f"{node.first_rank}-{last}" if node.ranks > 1 else str(last)
    yield ", ".join(node.groups) or "-"
    yield f"{node.gpus:g} of {node.all_gpus:g}" if node.node else ""
    yield f"{node.cpus:g} of {node.all_cpus:g}" if node.node else ""
    short = [(node.gpus_short, "GPU"), (node.cpus_short, "CPU")]
    said = ", ".join(f"{count} {what}{'s' if count > 1 else ''} short" for count, what in short if count)
    yield said if node.node else "missing"


def _finding(finding: DoctorFinding) -> Iterator[Text]:
    style = _STYLE[finding.severity]
    yield Text.assemble((f"{finding.severity}: ", style), finding.what, (f" [{finding.rule}]", "dim"))
    for said in finding.evidence:
        yield Text.assemble((" found: ", "bold"), said)
    yield Text.assemble(("   why: ", "bold"), finding.why)
    yield Text.assemble(("   fix: ", "bold"), finding.fix)


def summary(record: DoctorRecord) -> Text:
    counts = [(record.count(severity), severity) for severity in SEVERITIES]
    said = ", ".join(f"{count} {severity}{'s' if count > 1 else ''}" for count, severity in counts if count)
    living = sum(node.alive for node in record.nodes)
    where = f"{living} {'nodes' if living != 1 else 'node'}" if record.gcs_address else "this machine"
    return Text(f"doctor: {said or 'no problems found'} ({where}, {record.seconds:.1f} s)")
