"""What is refused over HTTP is refused in process, and as early: arguments of the wrong kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import EpisodeRecorder, Learner, PolicySnapshot
from jormungandr.episode import Episode
from jormungandr.errors import CheckpointError, InvalidInput, InvalidType
from tests.service.serving import QUIET


@pytest.mark.parametrize("name", ["deterministic", "distribution"])
@pytest.mark.parametrize("value", ["no", "", 1, 0, None, [], np.float32(1)])
def test_options_are_booleans(name: str, value: Any) -> None:
    """A truthy or falsy something is no option."""
    learner = Learner(QUIET)
    with pytest.raises(InvalidType, match=name):
        learner.act([[0.0, 0.0]], **{name: value})
    with pytest.raises(InvalidType, match="deterministic"):
        learner.snapshot().predict(np.zeros(2), deterministic="no")  # type: ignore[arg-type]

    assert learner.act([[0.0, 0.0]], **{name: np.True_}).policy_version == 0


@pytest.mark.parametrize("path", [None, 3, [], b"bytes", object()], ids=lambda p: type(p).__name__)
def test_no_path(path: Any) -> None:
    """What is no path is named."""
    with pytest.raises(InvalidType, match="path"):
        PolicySnapshot.open(path)


@pytest.mark.parametrize("path", ["\0", "a\0b", "/tmp/\0/x", "", "x" * 5_000])
def test_a_path_of_no_file(path: str) -> None:
    """A path that can be none, and one of no policy, are our error, not the system's."""
    with pytest.raises(CheckpointError):
        PolicySnapshot.open(path)
    with pytest.raises(CheckpointError):
        PolicySnapshot.open(Path(path))


@pytest.mark.parametrize("value", ["", "a\n", "a\x00", "a\x7f", "é" * 65, "\udcff", 3, None, b"a"])
def test_ids_are_checked_when_a_recorder_is_made(value: Any) -> None:
    """An id that no service takes is refused before anything is recorded under it."""
    learner = Learner(QUIET)
    with pytest.raises(InvalidInput, match="actor_id"):
        EpisodeRecorder(learner, actor_id=value)
    with pytest.raises(InvalidInput, match="actor_id"):
        Episode(actor_id=value, episode_id="e", split="train")
    with pytest.raises(InvalidInput, match="episode_id"):
        Episode(actor_id="a", episode_id=value, split="train")
    if value is not None:  # which draws one
        with pytest.raises(InvalidInput, match="episode_id"):
            EpisodeRecorder(learner, actor_id="a", episode_id=value)
