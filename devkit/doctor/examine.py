"""Every rule on a scene. Pure."""

from __future__ import annotations

from devkit.doctor.records import SEVERITIES, DoctorFinding, Finding
from devkit.doctor.rules import (
    check_cluster,
    check_gpus,
    check_install,
    check_links,
    check_network,
    check_plan,
    check_system,
    check_versions,
)
from devkit.doctor.rules.table import RULES
from devkit.doctor.scene import Scene

_CHECKS = (
    check_cluster.check,
    check_links.check,
    check_plan.check,
    check_versions.check,
    check_gpus.check,
    check_network.check,
    check_system.check,
    check_install.check,
)


def examine(scene: Scene) -> tuple[DoctorFinding, ...]:
    """What there is to say of it, errors first; within a severity what stops a run earliest comes first."""
    found = [_shown(finding) for check in _CHECKS for finding in check(scene)]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _shown(finding: Finding) -> DoctorFinding:
    return DoctorFinding(
        rule=finding.rule,
        severity=finding.severity or RULES[finding.rule].severity,
        where=finding.where,
        what=_one_line(finding.what),
        why=_one_line(finding.why),
        mend=_one_line(finding.mend),
        evidence=tuple(_one_line(said) for said in finding.evidence),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
