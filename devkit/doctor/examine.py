"""Every rule on a scene. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from devkit.doctor.records import SEVERITIES, DoctorFinding, Finding
from devkit.doctor.rules import (
    check_cluster,
    check_gpus,
    check_install,
    check_links,
    check_network,
    check_plan,
    check_retriever,
    check_system,
    check_versions,
)
from devkit.doctor.rules.table import RULES
from devkit.doctor.scene import Scene, names
from devkit.logs import redact

_CHECKS = (
    check_cluster.check,
    check_links.check,
    check_plan.check,
    check_retriever.check,
    check_versions.check,
    check_gpus.check,
    check_network.check,
    check_system.check,
    check_install.check,
)


def examine(scene: Scene) -> tuple[DoctorFinding, ...]:
    """What there is to say of it, errors first; within a severity what stops a run earliest comes first."""
    found = [_shown(finding) for check in _CHECKS for finding in check(scene)]
    return tuple(sorted(_together(found), key=lambda finding: SEVERITIES.index(finding.severity)))


def _together(found: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """What is the same on several nodes is said once, with all of them in it."""
    groups: dict[tuple[str, ...], list[DoctorFinding]] = {}
    for number, finding in enumerate(found):
        sentence = _without_name(finding)
        alone = () if sentence else (str(number),)
        key = (finding.rule, finding.severity, sentence or finding.what, finding.why, finding.fix, *alone)
        groups.setdefault(key, []).append(finding)
    return [_merged(key[2], group) if len(group) > 1 else group[0] for key, group in groups.items()]


def _without_name(finding: DoctorFinding) -> str:
    """The sentence with a blank for the one node that it speaks of; empty where that is not its form."""
    if len(finding.where) != 1:
        return ""
    sentence, count = re.subn(rf"(?<![\w.-]){re.escape(finding.where[0])}(?![\w-])", "\0", finding.what)
    return sentence if count == 1 else ""


def _merged(sentence: str, group: Sequence[DoctorFinding]) -> DoctorFinding:
    where = tuple(dict.fromkeys(name for finding in group for name in finding.where))
    evidence = (
        said if said.startswith(finding.where[0]) else f"{finding.where[0]}: {said}"
        for finding in group
        for said in finding.evidence
    )
    return replace(group[0], where=where, what=sentence.replace("\0", names(where)), evidence=tuple(evidence))


def _shown(finding: Finding) -> DoctorFinding:
    return DoctorFinding(
        rule=finding.rule,
        severity=finding.severity or RULES[finding.rule].severity,
        where=finding.where,
        what=_one_line(finding.what),
        why=_one_line(finding.why),
        fix=_one_line(finding.fix),
        evidence=tuple(_one_line(said) for said in finding.evidence),
    )


def _one_line(text: str) -> str:
    """It may quote a command, a URL or what somebody's program said, without their secrets."""
    return redact.text(" ".join(text.split()))
