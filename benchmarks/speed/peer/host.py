"""A process that runs workloads of the peers' environment: a JSON line in, a JSON line out.

``{"build": "sb3_dqn", "as": "a", "with": {…}}`` answers ``{"ok": true}`` or ``{"error": "…"}``;
``{"run": "a", "count": 100}`` answers ``{"own": seconds, "wall": seconds}``;
``{"drop": "a"}`` frees it; ``{"versions": true}`` answers what is installed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

#: Workloads by name: the module here, and the function that makes a loop of it.
WORKLOADS = {
    "sb3_dqn": ("sb3", "dqn"),
    "sb3_qrdqn": ("sb3", "qrdqn"),
    "sb3_act": ("sb3", "act"),
    "tianshou_c51": ("tianshou_c51", "update"),
    "tianshou_act": ("tianshou_c51", "act"),
    "tianshou_replay": ("tianshou_c51", "replay"),
    "cpprb_replay": ("cpprb_replay", "replay"),
    "numba_replay": ("numba_tree", "replay"),
    "torchrl_c51": ("torchrl_c51", "update"),
    "torchrl_act": ("torchrl_c51", "act"),
    "eager_torch": ("eager_torch", "update"),
    "compiled_torch": ("compiled_torch", "update"),
    "closed_form": ("closed_form", "update"),
}
PACKAGES = (
    *(
        "torch",
        "numpy",
        "numba",
        "stable-baselines3",
        "sb3-contrib",
        "tianshou",
        "torchrl",
        "cpprb",
    ),
    *("fastapi", "starlette"),
)


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    # Libraries print; what they print is not for whoever reads the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    built: dict[str, Callable[[int], object]] = {}
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), built)), file=answers, flush=True)


def _answer(asked: dict[str, Any], built: dict[str, Callable[[int], object]]) -> dict[str, Any]:
    try:
        if "versions" in asked:
            return {"versions": dict(_versions())}
        if "build" in asked:
            module, name = WORKLOADS[asked["build"]]
            home = importlib.import_module(f"benchmarks.speed.peer.{module}")
            built[asked["as"]] = getattr(home, name)(**asked["with"])
            return {"ok": True}
        if "drop" in asked:
            built.pop(asked["drop"], None)
            gc.collect()
            return {"ok": True}
        call = built[asked["run"]]
        wall, own = time.perf_counter(), time.process_time()
        call(asked["count"])
        return {"own": time.process_time() - own, "wall": time.perf_counter() - wall}
    except Exception as error:  # the other side names it, and goes on without
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _versions() -> Any:
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


if __name__ == "__main__":
    main()
