"""``python -m benchmarks.off_policy``: estimates of 20 policies, held against the truth.

Each policy is evaluated twice, from held-out episodes of its own and from those of an earlier
policy of the same training, both with exploration. ``--quick`` is five policies, about a minute of
one core, and writes nothing. Choices in the method were made on seeds from 100 on.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.off_policy.cases import Case, logged, trained, truth
from jormungandr.off_policy import evaluate_off_policy
from jormungandr.version import __version__

RESULTS = Path(__file__).parents[1] / "results" / "off_policy.jsonl"
LOGS = ("own", "earlier")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first policy")
    parser.add_argument("--policies", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=60, help="held out")
    parser.add_argument("--epsilon", type=float, default=0.3, help="of whoever was logged")
    parser.add_argument("--paths", type=int, default=10_000, help="on which the truth is measured")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.policies, given.paths = 5, 2_000
    print("| seed | steps | log | truth | estimate | interval | fit alone | agree | effective |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for case in trained(range(given.seed, given.seed + given.policies)):
        exact, error = truth(case.policy, given.paths)
        for log in LOGS:
            row = measured(case, log, given.episodes, given.epsilon)
            row |= {"truth": exact, "truth_error": error, "paths": given.paths}
            row["covered"] = row["interval_95"][0] <= exact <= row["interval_95"][1]
            rows.append(row)
            print(line(row), flush=True)
            if not given.quick:
                given.results.parent.mkdir(exist_ok=True)
                with given.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print()
    for log in LOGS:
        print(summary(log, [row for row in rows if row["log"] == log]))


def measured(case: Case, log: str, episodes: int, epsilon: float) -> dict[str, Any]:
    """Return what the held-out episodes of a log say of a policy."""
    behavior = case.policy if log == "own" else case.earlier
    held = logged(behavior, epsilon, episodes, 2 * case.seed + LOGS.index(log))
    figures = evaluate_off_policy(case.policy, held, gamma=1.0).to_dict()
    del figures["warnings"]
    return {
        "seed": case.seed,
        "trained": case.steps,
        "log": log,
        "epsilon": epsilon,
        **figures,
        "versions": {
            "jormungandr": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    low, high = row["interval_95"]
    inside = "" if row["covered"] else " ✗"
    return (
        f"| {row['seed']} | {row['trained']:,} | {row['log']} | {row['truth']:.2f}"
        f" | {row['value']:.2f} | [{low:.2f}, {high:.2f}]{inside} | {row['fitted']:.2f}"
        f" | {row['agreement']:.0%} | {row['effective_steps']:,.0f} of {row['steps']:,} |"
    )


def summary(log: str, rows: list[dict[str, Any]]) -> str:
    """Return coverage, bias and width over the policies."""
    truths = np.array([row["truth"] for row in rows])
    low, high = np.array([row["interval_95"] for row in rows]).T
    parts = []
    for name, key in (("estimate", "value"), ("fit alone", "fitted")):
        off = np.array([row[key] for row in rows]) - truths
        parts.append(
            f"{name} off by {off.mean():+.2f} on average, {(off**2).mean() ** 0.5:.2f} rms"
        )
    halves = (high - low) / 2
    covered = sum(row["covered"] for row in rows)
    return (
        f"{log}: the 95 % interval covers the truth for {covered} of {len(rows)} policies;"
        f" half width {np.median(halves):.2f} in the middle, {halves.max():.2f} at most; "
        + "; ".join(parts)
    )


if __name__ == "__main__":
    main()
