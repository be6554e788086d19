"""An endpoint in memory, and environments short enough to end often."""

import numpy as np
import pytest

from jormungandr import Learner
from jormungandr.protocol import ActionChoice, InferenceReply, LabelReceipt, Receipt


class FakeEndpoint:
    """Store what it is sent, by reference, and choose action ``sum of the observation's bits % 2``.

    `failures` holds, for the next requests, None or a pair (error, whether the rows arrived first).
    """

    def __init__(self):
        self.rows, self.requests, self.failures, self.asked = [], [], [], []
        self.version, self.actions = 7, 3

    def add(self, transitions):
        """Keep the rows, unless this request is to fail before."""
        error, arrived = (self.failures.pop(0) if self.failures else None) or (None, True)
        if arrived:
            self.rows.extend(transitions)
            self.requests.append(len(transitions))
        if error is not None:
            raise error
        return Receipt(
            accepted=len(transitions),
            duplicate=0,
            stale_dropped=0,
            lsn=len(self.requests),
            policy_version=self.version,
            generation=1,
        )

    def act(self, observations, deterministic=False, epsilon=None):
        """Choose by the observation, so that a test knows what was chosen."""
        self.asked.append((np.array(observations), deterministic, epsilon))
        indices = [int(abs(float(x.sum())) * 1e4) % 2 for x in np.asarray(observations)]
        return InferenceReply(
            policy_version=self.version,
            generation=1,
            actions=[ActionChoice(index=i, label=f"A{i}", value=10 * i) for i in indices],
            expected_values=[[0.0] * self.actions for _ in indices],
            behavior_prob=[0.25 + 0.5 * i for i in indices],
        )

    def label(self, labels):
        """Take no labels."""
        return LabelReceipt(attached=0, pending=0, duplicate=0, target_evicted=0, lsn=0)

    def wait(self, lsn):
        """Everything is applied."""
        return {"applied_lsn": lsn}

    def episodes(self):
        """Return the rows by episode id, in the order in which they came."""
        found = {}
        for row in self.rows:
            found.setdefault(row.episode_id, []).append(row)
        return found


@pytest.fixture
def endpoint():
    """Return an empty endpoint in memory."""
    return FakeEndpoint()


@pytest.fixture(scope="session")
def make_endpoint():
    """Return the class, for tests that need several."""
    return FakeEndpoint


@pytest.fixture
def learner():
    """Return a learner of OUSpread that never updates."""
    return Learner(
        {
            "observation": {"shape": [4]},
            "actions": 3,
            "auxiliary": {"classes": ["DOWN", "FLAT", "UP"]},
            "split_scope": "episode",
            "c51": {"hidden": 8, "atoms": 5},
            "pacing": {"learning_starts": 100_000},
        }
    )
