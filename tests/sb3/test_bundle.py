"""`C51Policy.from_bundle`: an exported bundle as a policy of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.bundle import write_bundle
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.sb3 import C51Policy


@pytest.fixture
def bundle(small: Callable[..., ModelSpec], tmp_path: Path) -> Path:
    """A bundle of a policy with the features x and y, far from 0."""
    policy = Learner(small()).snapshot()
    moments = {"mean": np.array([100.0, -5.0]), "var": np.array([4.0, 0.01])}
    write_bundle(tmp_path / "b", replace(policy, **moments))
    return tmp_path / "b"


def test_acts_as_the_bundle_does(bundle: Path) -> None:
    """The same values and actions, with the moments inside."""
    policy, want = C51Policy.from_bundle(bundle, ["x", "y"], "cpu"), PolicySnapshot.open(bundle)
    rng = np.random.default_rng(0)
    x = np.float32([100, -5] + rng.normal(size=(30, 2)) * [4, 0.2])
    values = policy.q_net(policy.obs_to_tensor(x)[0]).detach().numpy()

    np.testing.assert_allclose(values, want.values(x), atol=1e-5)
    np.testing.assert_array_equal(policy.predict(x)[0], want.greedy(x))
    assert len(set(want.greedy(x))) > 1


def test_other_features_are_refused(bundle: Path) -> None:
    """Features in another order are refused by name, before anything acts on them."""
    with pytest.raises(InvalidValue, match=r"features\[0\]: expected 'x', got 'y'"):
        C51Policy.from_bundle(bundle, features=["y", "x"])


def test_only_bundles(bundle: Path) -> None:
    """A damaged bundle is refused, and so is a folder without a description."""
    data = bytearray((bundle / "policy.safetensors").read_bytes())
    data[-1] ^= 1
    (bundle / "policy.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors: expected SHA-256"):
        C51Policy.from_bundle(bundle)

    (bundle / "bundle.json").unlink()
    with pytest.raises(CheckpointError, match=r"a folder with bundle\.json"):
        C51Policy.from_bundle(bundle)
