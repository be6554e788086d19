"""Endpoints for the recorders: one in memory, and a learner."""

import pytest

from jormungandr import Learner
from tests.fake_endpoint import FakeEndpoint


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
