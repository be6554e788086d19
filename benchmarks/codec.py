"""Print transitions per second through the two forms of `experience/add`, JSON and columns.

Decoding is what the service does between the bytes of a body and checked arrays; encoding is what
the client does between rows and bytes.

Run: python benchmarks/codec.py
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jormungandr import ModelSpec
from jormungandr.columns import columns
from jormungandr.packed import pack, unpack
from jormungandr.wire import decode_object, encode_transitions

REPEATS, SECONDS = 7, 0.1
#: (what, shape of an observation, dtype, transitions in a request); images in JSON are base64.
CASES = (
    ("4 numbers", [4], "float32", 16),
    ("4 numbers", [4], "float32", 256),
    ("4 numbers", [4], "float32", 4_096),
    ("64 numbers", [64], "float32", 256),
    ("84 x 84 x 4 bytes", [84, 84, 4], "uint8", 13),
)


def transitions(shape: list[int], dtype: str, count: int) -> list[dict[str, Any]]:
    """Return transitions of four actors, as a recorder sends them: observations are arrays."""
    rng = np.random.default_rng(0)
    shown = (rng.standard_normal((count + 1, *shape)) * 50).astype(dtype)
    return [
        {
            "actor_id": f"actor-{t % 4}",
            "episode_id": f"episode-{t // 50}",
            "timestep": t,
            "split": "train" if t % 5 else "validation",
            "policy_version": 12,
            "observation": shown[t],
            "action": int(rng.integers(3)),
            "reward": float(rng.normal()),
            "next_observation": shown[t + 1],
            "terminated": False,
            "truncated": False,
            "behavior_prob": 0.93,
            "label": 1,
        }
        for t in range(count)
    ]


def rate(call: Callable[[], Any], count: int) -> float:
    """Return transitions per second at best of the repeats."""
    best = 0.0
    for _ in range(REPEATS):
        done, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < SECONDS:
            call()
            done += count
        best = max(best, done / took)
    return best


def main() -> None:
    """Print one line per case: bytes, and rates at best."""
    print(f"{'observation':>18} {'rows':>5} {'bytes: JSON':>12} {'columns':>9}", end="")
    print("   decode/s: JSON  columns  ratio   encode/s: JSON  columns  ratio")
    for name, shape, dtype, count in CASES:
        spec = ModelSpec.from_dict(
            {
                "observation": {"shape": shape, "dtype": dtype},
                "actions": 3,
                "auxiliary": {"classes": ["DOWN", "FLAT", "UP"], "weight": 0.1},
            }
        )
        rows = transitions(shape, dtype, count)
        text, packed = encode_transitions(rows), pack(columns(rows, spec), 1)

        def read_json(text: bytes = text, spec: ModelSpec = spec) -> Any:
            return columns(decode_object(text)["transitions"], spec)

        def read_columns(packed: bytes = packed, spec: ModelSpec = spec) -> Any:
            return unpack(packed, spec, 1)

        def write_json(rows: list[Any] = rows) -> bytes:
            return encode_transitions(rows)

        def write_columns(rows: list[Any] = rows, spec: ModelSpec = spec) -> bytes:
            return pack(columns(rows, spec), 1)

        print(f"{name:>18} {count:>5} {len(text):>12,} {len(packed):>9,}", end="")
        for pair, room in (((read_json, read_columns), 17), ((write_json, write_columns), 17)):
            slow, fast = (rate(call, count) for call in pair)
            print(f"{slow / 1e6:>{room}.3f}{fast / 1e6:>9.3f}{fast / slow:>7.1f}", end="")
        print()


if __name__ == "__main__":
    main()
