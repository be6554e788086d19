"""A loop of your own, without Gymnasium; with JORMUNGANDR_URL set it feeds a service instead."""

import os
import random

import jormungandr

SPEC = {
    "observation": {"features": ["inside", "outside"]},  # degrees Celsius
    "actions": [{"label": f"{kw} kW", "value": kw} for kw in (0.0, 1.5, 3.0)],
    "c51": {"gamma": 0.9, "hidden": 32},
    "pacing": {"learning_starts": 200, "updates_per_transition": 0.5},
}


def day(endpoint, split):
    inside, outside = random.uniform(12, 24), random.uniform(-5, 10)
    with endpoint.episode(split=split) as episode:
        for hour in range(24):
            power = episode.act([inside, outside]).value
            inside += 0.2 * (outside - inside) + 2 * power + random.gauss(0, 0.3)
            reward = -0.1 * abs(inside - 20) - 0.02 * power
            # Cut off, not over: the room stays, and tomorrow would have had a value too.
            episode.record(reward, [inside, outside], truncated=hour == 23)
    return episode


if "JORMUNGANDR_URL" in os.environ:
    endpoint = jormungandr.RemoteLearner(None, "thermostat")
    endpoint.create(SPEC)
else:
    endpoint = jormungandr.Learner(SPEC)
random.seed(0)
for days in (25, 25, 25):
    endpoint.wait([day(endpoint, "train").flush().lsn for _ in range(days)][-1])
    # For comparison: full power whenever it is below 20 degrees comes to -5.0 a day.
    held_out = [day(endpoint, "validation").total_reward for _ in range(20)]
    print(f"{days} more days: {sum(held_out) / 20:.2f} a day")
endpoint.close()
