"""The files of the tests that failed when pytest ran last, on one line; exit code 1 if more than LIMIT tests failed.

Whole files: tests of one cluster may build on each other. Usage: failed_tests.py LIMIT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CACHE = Path(".pytest_cache/v/cache/lastfailed")


def failed_files(limit: int, cache: Path = CACHE) -> list[str]:
    """Sorted; none where more than `limit` tests failed, or pytest did not come so far as to note any."""
    try:
        failed = json.loads(cache.read_text())
    except FileNotFoundError:
        return []
    return sorted({name.partition("::")[0] for name in failed}) if len(failed) <= limit else []


if __name__ == "__main__":
    print(" ".join(files := failed_files(int(sys.argv[1]))))
    sys.exit(not files)
