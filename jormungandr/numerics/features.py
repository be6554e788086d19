"""Random features: a few numbers of a state, in which what it is worth is close to linear."""

import math

import numpy as np
import numpy.typing as npt

__all__ = ["RandomFeatures", "by_action"]

Floats = npt.NDArray[np.float64]

#: Length scales lie within this factor of the middle one, on either side: broad and sharp features.
SPREAD = 2.0
#: Standardised observations are clipped here, so that an outlier does not rule the linear part.
CLIP = 5.0


class RandomFeatures:
    """Features of an observation: one, its elements, and cosines of random directions in it.

    Rahimi and Recht (2007), "Random Features for Large-Scale Kernel Machines". Elements are
    standardised first. A cosine has the frequency ``n / l`` with n standard normal and l around
    √D, which is a typical distance between two standardised observations.

    Args:
        observation: (N, D) finite numbers, N ≥ 1; what elements are standardised by.
        cosines: number of them, ≥ 1.
        seed: of the directions.
    """

    def __init__(self, observation: Floats, *, cosines: int, seed: int) -> None:
        self._mean = observation.mean(axis=0)
        spread = observation.std(axis=0)
        # Of a constant, rounding may leave a spread that would blow up the last bit.
        constant = spread <= 1e-9 * np.maximum(1.0, np.abs(self._mean))
        self._spread = np.where(constant, 1.0, spread)
        rng, size = np.random.default_rng(seed), observation.shape[1]
        length = math.sqrt(size) * SPREAD ** rng.uniform(-1.0, 1.0, cosines)
        self._direction = rng.standard_normal((size, cosines)) / length  # (D, cosines)
        self._phase = rng.uniform(0.0, 2.0 * math.pi, cosines)
        self.size = 1 + size + cosines

    def __call__(self, observation: Floats) -> Floats:
        """Return (N, F) features of (N, D) observations, F = 1 + D + cosines."""
        x = np.clip((observation - self._mean) / self._spread, -CLIP, CLIP)
        features = np.empty((len(x), self.size))
        features[:, 0] = 1.0
        # Half a unit: the linear part is penalised about as much as all cosines together.
        features[:, 1 : 1 + x.shape[1]] = 0.5 * x
        waves = features[:, 1 + x.shape[1] :]
        np.cos(x @ self._direction + self._phase, out=waves)
        waves *= math.sqrt(2.0 / len(self._phase))
        return features


def by_action(features: Floats, choice: Floats) -> Floats:
    """Return features of states and actions, (N, (1 + A) F): a shared block, then one per action.

    What no step of one action says is taken from those of the others: a penalty on both blocks
    prefers to explain by the state what the state explains.

    Args:
        features: (N, F) of states.
        choice: (N, A) probability of each action; one 1 a row for an action that was taken.
    """
    blocks = choice[:, :, None] * features[:, None, :]  # (N, A, F)
    return np.concatenate([features, blocks.reshape(len(features), -1)], axis=1)
