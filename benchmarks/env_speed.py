"""Print environment steps per second of OUSpread-v0, resets included.

Run: python benchmarks/env_speed.py
"""

import time

import gymnasium as gym
import numpy as np

import jormungandr_envs  # noqa: F401  (registers OUSpread-v0)

EPISODES, REPEATS = 40, 7


def steps_per_second(num_envs: int, mode: str, episodes: int) -> list[float]:
    """Return one rate per repeat, stepping with prepared random actions."""
    envs = gym.make_vec("OUSpread-v0", num_envs=num_envs, vectorization_mode=mode)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, (64, num_envs))
    steps = 49 * episodes  # in NEXT_STEP mode the reset is a call of its own
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for step in range(steps):
            envs.step(actions[step % 64])
        rates.append(48 * episodes * num_envs / (time.perf_counter() - start))
    return rates


def main() -> None:
    """Print the best and the median of the repeats; resetting calls are not counted as steps."""
    for num_envs, mode, episodes in (
        (64, "vector_entry_point", 5 * EPISODES),
        (4096, "vector_entry_point", EPISODES // 5),
        (64, "sync", EPISODES // 5),
    ):
        rates = steps_per_second(num_envs, mode, episodes)
        name = "SyncVectorEnv" if mode == "sync" else "OUSpreadVectorEnv"
        print(
            f"{name:>17}({num_envs}): {max(rates) / 1e6:6.2f} M steps/s at best, "
            f"{np.median(rates) / 1e6:6.2f} M median of {REPEATS}"
        )


if __name__ == "__main__":
    main()
