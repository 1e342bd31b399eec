"""A reward that every one of its arguments decides: whichever is wrong, the score is another one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    told = json.dumps([data_source, solution_str, ground_truth, dict(extra_info)], sort_keys=True)
    return zlib.crc32(told.encode()) / 2**32
