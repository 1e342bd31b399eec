"""How long `devkit hang` takes to judge a large job: two samples of simulated ranks, from their bytes to the sentence.

    python benchmarks/hang.py [--ranks 256] [--runs 9] [--limit 2.0]

Beside it stands its floor: the same bytes, read as JSON and looked at no further. The two run in turn. What the samples
themselves take on a real job is not in it: each rank makes its own, and all are asked at once. Exit code 1 when the
slowest verdict is above the limit, in seconds, or names another rank than the one that sleeps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from devkit.hang.answers import read_sample
from devkit.hang.diagnose import diagnose
from devkit.hang.gather import Diagnosis
from devkit.hang.records import Verdict
from devkit.hang.view import page
from tests.hang import jobs

GROUPS = 8  # further groups that each rank is in, as with tensor, data and pipeline parallelism


def samples(ranks: int, odd: int) -> tuple[bytes, bytes]:
    """Two answers of the hub, two seconds apart; rank `odd` sleeps, the others wait for it."""
    documents = jobs.simulated(ranks, odd)
    for document in documents:
        mine = document["facts"]["groups"]
        entries = [jobs.entry(seq) for seq in range(1, 9)]
        first = document["identity"]["rank"] // GROUPS * GROUPS
        members = range(first, min(first + GROUPS, ranks))
        mine += [jobs.group(entries, members, f"{number}-{first}", f"tp{number}") for number in range(1, GROUPS + 1)]
    return tuple(json.dumps(jobs.answer(documents, jobs.NOW + at)).encode() for at in (0.0, 2.0))  # type: ignore[return-value]


def judge(raw: tuple[bytes, bytes]) -> Verdict:
    """What `devkit hang` does with two answers, up to the printed page."""
    first, last = (json.loads(each) for each in raw)
    before, now = read_sample(first), read_sample(last)
    verdict = diagnose(before, now)
    assert page(Diagnosis(verdict, before, now, last)).plain.startswith(verdict.sentence)
    return verdict


def floor(raw: tuple[bytes, bytes]) -> None:
    for each in raw:
        json.loads(each)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--limit", type=float, default=2.0, help="seconds")
    options = parser.parse_args()
    odd = options.ranks * 3 // 5
    raw = samples(options.ranks, odd)
    verdict = judge(raw)
    pairs = [(seconds(lambda: judge(raw)), seconds(lambda: floor(raw))) for _ in range(options.runs)]
    ours, least = zip(*pairs, strict=True)
    size = sum(map(len, raw)) / 2**20
    print(f"{options.ranks} ranks, {GROUPS + 1} groups each, {size:.1f} MiB: {verdict.sentence}")
    print(f"verdict  median {statistics.median(ours):.3f} s, slowest {max(ours):.3f} s (limit {options.limit:g} s)")
    print(f"floor    median {statistics.median(least):.3f} s: the same bytes read as JSON")
    print(f"ratio    median {statistics.median(mine / low for mine, low in pairs):.1f}")
    right = verdict.culprit is not None and verdict.culprit.rank == odd
    return 0 if right and max(ours) <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
