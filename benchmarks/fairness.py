"""What staleness rules do to actors of very different speed.

Run from the repository: ``python benchmarks/fairness.py``. Eight fast actors send a stretch of 32
transitions every tick, each with the policy of the tick before. Another one needs a hundred ticks
for its stretch, and all of it was acted with the policy that was the newest when it began. A tenth
one is as fast as the eight and never asks for another policy than its first. Time is counted in
ticks, so every run gives the same figures; one takes about a minute.

For each of three rules, prints what was sent, accepted and dropped of each kind of actor, its share
of what was sent and of what the replay holds at the end, how much of the replay was stale when it
came, and what the learner warns about.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from jormungandr import Learner

FAST, SLOWNESS, STRETCH, TICKS = 8, 100, 32, 600
MAX_LAG = 50
RULES: dict[str, dict[str, Any]] = {
    "accept": {"max_policy_lag": MAX_LAG, "mode": "accept"},
    "drop, stale_share 0": {"max_policy_lag": MAX_LAG, "mode": "drop", "stale_share": 0},
    "drop, stale_share 0.25": {"max_policy_lag": MAX_LAG, "mode": "drop"},
}
#: Place of an actor's number and of its lag in an observation.
WHO, LAG = 0, 1


def main() -> None:
    """Run the same actors under every rule."""
    for name, rule in RULES.items():
        print(f"\n{name}")
        report(run(rule))


def run(rule: dict[str, Any]) -> Learner:
    """Return a learner that the actors have sent to."""
    learner = Learner(
        {
            "observation": {"shape": [2], "normalize": False},
            "actions": 2,
            "c51": {"hidden": 8, "atoms": 11, "batch_size": 8},
            "replay": {"capacity": 20_000, "alpha": 0},
            "pacing": {"learning_starts": 1_000, "updates_per_transition": 0.03},
            "staleness": rule,
        }
    )
    stuck, slow = FAST, FAST + 1
    acts_with = dict.fromkeys(range(FAST + 2), 0)
    for tick in range(TICKS):
        sending = [*range(FAST), stuck] + ([slow] if tick % SLOWNESS == SLOWNESS - 1 else [])
        for who in sending:
            learner.add(stretch(who, tick, acts_with[who], learner.policy_version))
        for who in sending:
            if who != stuck:
                acts_with[who] = learner.policy_version
    return learner


def stretch(who: int, tick: int, version: int, newest: int) -> list[dict[str, Any]]:
    """Return what one actor sends at once: an episode that shows who it is and how late."""
    shown = [float(who), float(newest - version)]
    return [
        {
            "actor_id": kind(who) if who >= FAST else f"fast-{who}",
            "episode_id": f"e{tick}",
            "timestep": t,
            "split": "train",
            "policy_version": version,
            "observation": shown,
            "action": 0,
            "reward": 0.0,
            "next_observation": shown,
            "terminated": t == STRETCH - 1,
            "truncated": False,
        }
        for t in range(STRETCH)
    ]


def kind(who: int) -> str:
    """Return what kind of actor it is."""
    return "fast" if who < FAST else ("stuck", "slow")[who - FAST]


def report(learner: Learner) -> None:
    """Print what became of each kind of actor."""
    held = learner.replay.newest(len(learner.replay))["observation"]
    resident = [kind(int(who)) for who in held[:, WHO]]
    each = learner.metrics()["actors"]["each"]
    total = sum(a["train"] + a["stale_dropped"] for a in each)
    print(f"{'':8}{'sent':>9}{'accepted':>10}{'dropped':>9}{'of sent':>9}{'of replay':>11}")
    for name in ("fast", "slow", "stuck"):
        mine = [a for a in each if a["actor_id"].startswith(name)]
        accepted, dropped = (sum(a[k] for a in mine) for k in ("train", "stale_dropped"))
        print(
            f"{name:8}{accepted + dropped:>9,}{accepted:>10,}{dropped:>9,}"
            f"{(accepted + dropped) / total:>9.2%}{resident.count(name) / len(resident):>11.2%}"
        )
    stale = float(np.mean(held[:, LAG] > MAX_LAG))
    print(f"stale in the replay {stale:.1%}; policies made {learner.policy_version:,}")
    for warning in learner.warnings():
        print(warning)


if __name__ == "__main__":
    main()
