"""What a smoke run leaves on disk: JUnit XML for CI, and a folder for people. All of it is made from the record."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from devkit.errors import DevkitError
from devkit.logs import redact
from devkit.records import CheckResult, SmokeRecord, StepRecord
from trainer.curve import svg_curve

SUITE = "devkit.smoke"
# XML 1.0 has no way to write these, not even escaped.
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(record: SmokeRecord) -> str:
    """One test case for each check; the phases stand among the properties."""
    counts = {
        "tests": len(record.checks),
        "failures": record.count("fail"),
        "skipped": record.count("skip"),
        "errors": 0,
    }
    attributes = {name: str(count) for name, count in counts.items()} | {"time": f"{record.seconds:.3f}"}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **attributes})
    properties = ElementTree.SubElement(suite, "properties")
    for name, seconds in record.phases.items():
        ElementTree.SubElement(properties, "property", {"name": f"seconds: {name}", "value": f"{seconds:.3f}"})
    for check in record.checks:
        suite.append(_test_case(check))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test_case(check: CheckResult) -> ElementTree.Element:
    case = ElementTree.Element("testcase", {"classname": SUITE, "name": check.name, "time": f"{check.seconds:.3f}"})
    detail = NOT_XML.sub("\ufffd", check.detail)
    if check.status == "fail":
        ElementTree.SubElement(case, "failure", {"message": detail}).text = detail
    elif check.status == "skip":
        ElementTree.SubElement(case, "skipped", {"message": detail})
    else:
        ElementTree.SubElement(case, "system-out").text = detail
    return case


def write_junit(record: SmokeRecord, path: Path) -> SmokeRecord:
    """Write the JUnit file, and name it among the record's artifacts."""
    with_artifact = replace(record, artifacts={**record.artifacts, "junit": str(path)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(junit_xml(with_artifact), encoding="utf-8")
    except OSError as error:
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint="choose another file with --junit") from error
    return with_artifact


def write_report(
    record: SmokeRecord, directory: Path, *, logs: Mapping[str, Path] | None = None, title: str = "devkit smoke --tiny"
) -> SmokeRecord:
    """Write the report folder, and name its parts among the record's artifacts.

    `index.html` stands alone; beside it `reward.svg`, `metrics.jsonl` (one line for each step), `smoke.json` (the
    record) and `logs/`, into which each of `logs` (name in the report -> file) is copied without its secrets.
    """
    parts = {"report": "index.html", "reward_curve": "reward.svg", "metrics": "metrics.jsonl", "record": "smoke.json"}
    paths = {name: directory / file for name, file in parts.items()}
    copies = {f"logs/{name}": path for name, path in (logs or {}).items()}
    if copies:
        paths["logs"] = directory / "logs"
    with_artifacts = replace(
        record, artifacts={**record.artifacts, **{name: str(path) for name, path in paths.items()}}
    )
    texts = {
        "report": index_html(with_artifacts, title=title, logs=sorted(copies)),
        "reward_curve": reward_curve(record.steps),
        "metrics": metrics_jsonl(record.steps),
        "record": json.dumps(with_artifacts.to_json(), indent=2, allow_nan=False) + "\n",
    }
    try:
        for name, text in texts.items():
            directory.mkdir(parents=True, exist_ok=True)
            paths[name].write_text(text, encoding="utf-8")
        for name, source in copies.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            text = redact.text(source.read_text(encoding="utf-8", errors="replace"))
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "choose another folder with --report"
        raise DevkitError(f"cannot write the report to {directory}: {error.strerror}", hint=hint) from error
    return with_artifacts


def reward_curve(steps: Sequence[StepRecord]) -> str:
    """Mean reward by step, as an image."""
    return svg_curve([(float(step.step), step.reward_mean) for step in steps])


def metrics_jsonl(steps: Sequence[StepRecord]) -> str:
    """One JSON document a line, one line a step."""
    return "".join(json.dumps(step.to_json(), allow_nan=False) + "\n" for step in steps)


def index_html(record: SmokeRecord, *, title: str, logs: Sequence[str] = ()) -> str:
    """The report's page: verdict, checks, curve and phases, with nothing to load but itself."""
    links = ["metrics.jsonl", "smoke.json", "reward.svg", *logs]
    return PAGE.substitute(
        title=escape(title),
        verdict=record.verdict,
        summary=escape(summary(record)),
        checks="\n".join(map(_check_row, record.checks)),
        curve=reward_curve(record.steps),
        settings="\n".join(_setting_rows(record)),
        phases="\n".join(_phase_row(name, seconds, record.seconds) for name, seconds in record.phases.items()),
        links="\n".join(f'<li><a href="{escape(link)}">{escape(link)}</a></li>' for link in links),
    )


def summary(record: SmokeRecord) -> str:
    """The verdict's line, without the verdict: counts, and the names of what failed.

    >>> summary(SmokeRecord(14.21, {}, (CheckResult("masks", "fail", "1 token too long", 0.1),), ()))
    '14.2 s: 0 passed, 1 failed (masks)'
    """
    counts = [f"{record.count('pass')} passed"]
    if record.failed:
        counts.append(f"{len(record.failed)} failed ({', '.join(record.failed)})")
    if record.count("skip"):
        counts.append(f"{record.count('skip')} skipped")
    return f"{record.seconds:.1f} s: {', '.join(counts)}"


def _check_row(check: CheckResult) -> str:
    cells = [f'<span class="{check.status}">{check.status}</span>', escape(check.name), escape(check.detail)]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + f'<td class="n">{check.seconds:.2f} s</td></tr>'


def _setting_rows(record: SmokeRecord) -> list[str]:
    kept = [(key, value, "as in the full run") for key, value in record.kept.items()]
    cut = [(cut.key, cut.tiny, f"for {cut.full}: {cut.why}") for cut in record.cut]
    return ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in kept + cut]


def _phase_row(name: str, seconds: float, whole: float) -> str:
    share = min(100.0, 100 * seconds / whole) if whole else 0.0
    bar = f'<div class="bar" style="width:{share:.1f}%"></div>'
    return f'<tr><td>{escape(name)}</td><td class="n">{seconds:.2f} s</td><td class="wide">{bar}</td></tr>'


PAGE = string.Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title: $verdict</title>
<style>
  :root { --ink: #1f2430; --soft: #667085; --rule: #e4e7ec; --paper: #fff; --blue: #2563eb;
          --pass: #067647; --fail: #b42318; --skip: #667085; color-scheme: light dark; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e6e8ee; --soft: #98a2b3; --rule: #333a47; --paper: #14171d; --blue: #7aa2ff;
            --pass: #47cd89; --fail: #f97066; --skip: #98a2b3; } }
  body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
         max-width: 60rem; margin: 2.5rem auto; padding: 0 1.25rem; }
  h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 2.2rem 0 .6rem; }
  .soft { color: var(--soft); margin: .2rem 0 0; }
  table { border-collapse: collapse; width: 100%; }
  td { padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--rule); vertical-align: top;
       overflow-wrap: anywhere; }
  td:first-child { white-space: nowrap; }
  td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
  td.wide { width: 55%; vertical-align: middle; }
  .bar { background: var(--blue); height: .6rem; border-radius: .3rem; min-width: 2px; }
  .pass, .fail, .skip { font-weight: 600; }
  .pass { color: var(--pass); } .fail { color: var(--fail); } .skip { color: var(--skip); }
  svg { max-width: 100%; height: auto; } a { color: var(--blue); } ul { padding-left: 1.2rem; }
</style>
<h1>$title: <span class="$verdict">$verdict</span></h1>
<p class="soft">$summary</p>
<h2>Checks</h2>
<table>
$checks
</table>
<h2>Reward</h2>
$curve
<h2>Time</h2>
<table>
$phases
</table>
<h2>Settings</h2>
<table>
$settings
</table>
<h2>Files</h2>
<ul>
$links
</ul>
</html>
""")
