"""``python -m benchmarks.speed.memory SIZE COUNT KIND``: bytes that a transition in replay takes.

A process of its own: it prints by how much its resident memory grew, and the bytes of the
transitions themselves. KIND is ``numbers``, SIZE of them, or ``image``, SIZE by SIZE by 4 bytes.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jormungandr.learner.replay import Replay
from jormungandr.numerics.compiled import kernels
from jormungandr.settings import Replay as ReplaySpec

CHUNK = 4_096
#: An int64 action, reward and discount.
BESIDE = 8 + 4 + 4


def main() -> None:
    """Fill a replay, and print."""
    size, count, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    shape = (size,) if kind == "numbers" else (size, size, 4)
    dtype: Any = np.float32 if kind == "numbers" else np.uint8
    rows = max(1, min(CHUNK, (16 << 20) // int(np.prod(shape) * np.dtype(dtype).itemsize)))
    shown = np.ones((rows, *shape), dtype)
    values = {
        "observation": shown,
        "action": np.zeros(rows, np.int64),
        "reward": np.ones(rows, np.float32),
        "next_observation": shown,
        "discount": np.ones(rows, np.float32),
        "label": np.full(rows, -1, np.int32),
        "next_action_mask": np.zeros((rows, 0), np.bool_),
    }
    kernels()  # what they are compiled by is no part of a transition
    gc.collect()
    before = resident()
    replay = Replay(ReplaySpec(capacity=count, alpha=0.6), shape, dtype, labelled=False)
    for start in range(0, count - count % rows, rows):
        replay._put(np.arange(start, start + rows), **values)
    held = count - count % rows
    each = (resident() - before) / held
    raw = 2 * shown[0].nbytes + BESIDE
    print(json.dumps({"bytes": each, "raw": raw, "held": held, "size": len(replay)}))


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
