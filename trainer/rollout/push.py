"""One update of an engine's weights: bucket by bucket, while the next one is filled, and proved at the end.

Every rank of the group lays the same tensors into a bucket on its own device, for the tensor-parallel rank there; at
any time one tensor and two buckets are whole, never the model. What fails is raised after the last tensor: the other
groups gather it together with this one, and must not be left waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.errors import TrainerError, WeightMismatch
from trainer.rollout import wire
from trainer.rollout.bucket import Bucket, Filled, Filler, bytes_of
from trainer.rollout.handle import EngineDied, EngineHandle
from trainer.rollout.layout import Group
from trainer.rollout.sums import Sums
from trainer.rollout.wire import NAMED, Finding, Load, Look, Report, Slot, not_the_trainers, whole_sums


class Push:
    """An update of one group's engine. Every rank of the group makes one, and they walk through `run` together."""

    def __init__(
        self,
        group: Group,
        handles: Sequence[EngineHandle],
        peers: Any,
        device: torch.device,
        bucket_bytes: int,
        *,
        verify: bool = True,
    ) -> None:
        self.group = group
        self.handles = handles
        self.peers = peers
        self.device = device
        self.bucket_bytes = bucket_bytes
        self.verify = verify
        self.sent: dict[str, tuple[str, Sums]] = {}  # dtype and sums
        self._leads = dist.get_rank() == group.leader
        self._lanes = (_Lane(), _Lane())
        self._failure: TrainerError | None = None

    def run(self, tensors: Iterator[tuple[str, Tensor]], version: int, dtype: torch.dtype) -> bool:
        """Whether the engine has the weights; False if it died. Raises WeightMismatch, DeadlineError, EngineError."""
        filler = Filler(dtype, verify=self.verify)
        self._together(lambda: self.handles[0].call("begin_update"))
        following, count = next(tensors, None), 0
        try:
            while following is not None and self._failure is None:
                lane = self._lanes[count % 2]
                self._finish(lane)
                self._make_room(lane, bytes_of(following[1], dtype))
                filled, following = filler.fill(lane.open_bucket, tensors, following)
                self._start(lane, filled, version, first=count == 0)
                count += 1
            for _ in tensors:  # after a failure the others still gather the rest
                pass
            for lane in self._lanes:
                self._finish(lane)
            self._together(lambda: self._conclude(version))
        finally:
            self._close()
        if isinstance(self._failure, EngineDied):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _make_room(self, lane: _Lane, size: int) -> None:
        if lane.bucket is None or lane.bucket.size < size:
            lane.close()
            lane.bucket = Bucket(max(size, self.bucket_bytes), self.device)
            handles: list[Any] = [None] * len(self.group.ranks)
            dist.all_gather_object(handles, lane.bucket.handle(), group=self.peers)
            lane.handles = tuple(handles)

    def _start(self, lane: _Lane, filled: Filled, version: int, *, first: bool) -> None:
        slots = filled.summed()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what the engine maps must be written
        self._note(slots)
        # Not before every rank of the group has filled its own.
        dist.barrier(group=self.peers)
        if self._leads and self._failure is None:
            message = wire.encode(Load(version, slots, lane.handles, first))
            lane.answer = self.handles[0].ask("send", message)

    def _note(self, slots: Sequence[Slot]) -> None:
        self.sent |= {slot.name: (slot.dtype, slot.sums) for slot in slots if slot.sums is not None}

    def _finish(self, lane: _Lane) -> None:
        """Waits until the engine has taken what is in the bucket."""
        if lane.bucket is None:
            return

        def taken() -> None:
            if lane.answer is not None:
                answer, lane.answer = lane.answer, None
                reports = self.handles[0].wait(answer, "take weights")
                self._require_alive(all_reports(reports, self.handles))

        self._together(taken)

    def _require_alive(self, reports: Sequence[Report]) -> None:
        """A finding that is about no tensor means that nothing was taken."""
        failed = [finding for report in reports for finding in report.findings if not finding.name]
        if failed:
            raise mismatch(failed, self.group, self.handles[0])

    def _conclude(self, version: int) -> None:
        reports = self.look(version)
        findings = [finding for report in reports for finding in report.findings]
        findings += self._of_another_version(reports, version)
        if self.verify:
            findings += self._not_as_sent(reports)
        if findings:
            raise mismatch(findings, self.group, self.handles[0])
        self.handles[0].call("end_update")

    def look(self, version: int) -> tuple[Report, ...]:
        """What stands in the engine now, by rank."""
        reports = self.handles[0].call("send", wire.encode(Look(version)), doing="checksum its weights")
        return all_reports(reports, self.handles)

    def _of_another_version(self, reports: Sequence[Report], version: int) -> list[Finding]:
        """Of each rank of each replica: an engine may answer that all is well where a rank was passed over."""
        told = Counter(report.tp_rank for report in reports)
        ranks, each = range(len(self.group.ranks)), self.handles[0].spec.replicas
        silent = [Finding(rank, "", "did not report what it holds") for rank in ranks if told[rank] < each]
        return silent + [
            Finding(report.tp_rank, "", f"left it at version {report.version}, and {version} was sent")
            for report in reports
            if report.version != version
        ]

    def _not_as_sent(self, reports: Sequence[Report]) -> list[Finding]:
        whole, findings = whole_sums(reports)
        kept = {name: held.dtype for report in reports for name, held in report.standing.items()}
        wrong = [
            Finding(-1, name, f"stands as {whole[name]} over all ranks, was sent as {sums}")
            for name, (dtype, sums) in self.sent.items()
            if name in whole and kept[name] == dtype and whole[name] != sums
        ]
        absent = [Finding(-1, name, "was sent and stands nowhere") for name in self.sent if name not in whole]
        return [*findings, *wrong, *absent]

    def _together(self, act: Callable[[], Any]) -> None:
        """`act` on the leader; what it raises, every rank of the group knows."""
        outcome: list[Any] = [self._failure]
        if self._leads and self._failure is None:
            try:
                act()
            except TrainerError as error:
                outcome = [error]
        dist.broadcast_object_list(outcome, src=self.group.leader, group=self.peers)
        self._failure = outcome[0]

    def _close(self) -> None:
        for lane in self._lanes:
            lane.close()
        if self.device.type == "cuda":
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()


class _Lane:
    """A bucket, and the engine's answer to what is in it."""

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        self.handles: tuple[str, ...] = ()
        self.answer: Any = None

    @property
    def open_bucket(self) -> Bucket:
        assert self.bucket is not None
        return self.bucket

    def close(self) -> None:
        if self.bucket is not None:
            self.bucket.close()
        self.bucket = None


def all_reports(first: tuple[Report, ...], handles: Sequence[EngineHandle]) -> tuple[Report, ...]:
    """The reports of every node's ranks; `first` are those of the first node's."""
    others = [report for handle in handles[1:] for report in handle.call("reports", doing="report")]
    return (*first, *others)


def combined(handles: Sequence[EngineHandle], group: Group, version: int) -> dict[str, Sums]:
    """The sums of each whole tensor that an engine holds. Raises WeightMismatch if its ranks don't agree."""
    reports = handles[0].call("send", wire.encode(Look(version)), doing="checksum its weights")
    whole, findings = whole_sums(all_reports(reports, handles))
    if findings:
        raise mismatch(findings, group, handles[0])
    return whole


def mismatch(findings: Sequence[Finding], group: Group, handle: EngineHandle) -> WeightMismatch:
    """One error from what all ranks found."""
    told = []
    for finding in findings[:NAMED]:
        of_rank = f" on rank {group.ranks[finding.tp_rank]}" if finding.tp_rank >= 0 else ""
        told.append(f"{finding.name or 'the update'}{of_rank} {finding.what}")
    return not_the_trainers(str(handle), told, len(findings))
