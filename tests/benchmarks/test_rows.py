"""What rows measure is the work that they say."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.bare import forward as bare_forward
from benchmarks.speed.kit import Kit
from benchmarks.speed.peer.data import experience
from benchmarks.speed.peer.host import _answer
from benchmarks.speed.peers import Peer, Peers, PeersMissing
from benchmarks.speed.rows.act import forward
from benchmarks.speed.rows.environment import bare, single, vector
from benchmarks.speed.rows.inference import arrays
from benchmarks.speed.rows.ingest import bodies, commits
from benchmarks.speed.rows.kernels import choices, compiled
from benchmarks.speed.rows.models import fill, learner, specification
from benchmarks.speed.rows.replay import replay
from benchmarks.speed.rows.update import update
from benchmarks.speed.timing import interleaved
from jormungandr.columns import columns
from jormungandr.packed import unpack
from jormungandr.spec import ModelSpec
from jormungandr.wire import decode_object

SMALL = specification(capacity=500)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """A quick look, with no peers' environment and no leave to make one."""
    return Kit(True, tmp_path, Peers(allowed=False, folder=tmp_path / "none"))


def test_a_filled_model_is_ready_to_update() -> None:
    """It holds what was asked for, has made no update, and then makes them."""
    model = learner(300, SMALL)

    assert (len(model.replay), model.update_count) == (300, 0)
    model.update(3)
    assert model.update_count == 3
    fill(model, 5_000)
    assert len(model.replay) == 500


def test_limits_choose_what_we_choose(tmp_path: Path) -> None:
    """The NumPy limit of acting, and the bare server's, give the greedy actions of the policy."""
    model = learner(300, SMALL)
    model.update(20)
    policy = replace(model.snapshot(), mean=np.array([2.0, -3.0, 0.0, 1.0]))
    seen = experience(50, 4, 3)["observation"]
    expected = policy.greedy(seen)
    np.savez(tmp_path / "w.npz", *arrays(policy))
    said = bare_forward(str(tmp_path / "w.npz"))(
        json.dumps({"observations": seen.tolist()}).encode()
    )

    assert (forward(policy)(seen) == expected).all()
    assert json.loads(said)["actions"] == expected.tolist()
    assert np.allclose(json.loads(said)["expected_values"], policy.values(seen), atol=1e-5)


def test_both_forms_of_a_body_say_the_same() -> None:
    """As columns and as JSON, the transitions of one request are equal."""
    spec = ModelSpec.from_dict(specification())
    text, packed = bodies(5)
    read = columns(decode_object(text)["transitions"], spec)
    other = unpack(packed, spec, 1)

    assert (read.episodes, len(read)) == (other.episodes, 5)
    assert read.terminated.tolist() == [False] * 4 + [True]
    for name in ("observation", "action", "reward", "next_observation", "timestep", "terminated"):
        assert np.array_equal(getattr(read, name), getattr(other, name)), name


def test_bare_commits_are_there(tmp_path: Path) -> None:
    """Each commit of the limit is a row, with an identity for each transition."""
    import apsw

    commits(tmp_path / "a.db", 3)(2)
    found = apsw.Connection(str(tmp_path / "a.db"))

    assert list(found.execute("SELECT count(*), sum(length(payload)) FROM journal")) == [(2, 32768)]
    assert list(found.execute("SELECT count(*) FROM ledger")) == [(6,)]


def test_environments_play_whole_episodes() -> None:
    """Each loop does: one environment, many, and the limit."""
    for play in (single(), vector(3, "sync"), vector(3, "vector_entry_point"), bare(3)):
        play(1)


def test_without_peers_rows_say_so(kit: Kit) -> None:
    """The row of updates has ours, and in words why others are absent."""
    case = next(update(kit))

    assert [one.name for one in case.contenders] == list(choices())
    assert case.absent["SB3 DQN"] == "the peers' environment is not made yet"
    found, failed = interleaved(case.contenders, 1)
    assert not failed
    assert all(one.values[0] > 0 for one in found)
    assert next(replay(kit)).absent["cpprb, gathered"] == "the peers' environment is not made yet"


def test_without_the_compiled_loops_nobody_has_them() -> None:
    """What is run plain finds no loops anywhere, and finds them again afterwards."""
    from jormungandr.learner import batches, room
    from jormungandr.numerics import projection, sum_tree

    homes, before = (batches, room, projection, sum_tree), sum_tree.kernels
    with compiled(False):
        assert [home.kernels() for home in homes] == [None] * 4
    with compiled(True):
        assert all(home.kernels is before for home in homes)
    assert all(home.kernels is before for home in homes)


def test_a_peer_that_cannot_be_built_says_why() -> None:
    """The process of the peers answers what went wrong, and goes on."""
    peer = Peer(Path(sys.executable))
    try:
        assert peer.versions()["numpy"] == np.__version__
        with pytest.raises(RuntimeError, match="KeyError: 'nobody'"), peer.loop("nobody", {}):
            pass
    finally:
        peer.close()


def test_a_peer_runs_what_was_built() -> None:
    """A loop is run so many times and timed; one that fails is told in words, and may be freed."""
    done: list[int] = []
    built: dict[str, Callable[[int], object]] = {"a": done.append, "b": lambda n: 1 // (n - n)}

    assert set(_answer({"run": "a", "count": 3}, built)) == {"own", "wall"}
    assert done == [3]
    assert _answer({"run": "b", "count": 1}, built)["error"].startswith("ZeroDivisionError")
    assert _answer({"drop": "a"}, built) == {"ok": True}
    assert list(built) == ["b"]


def test_a_process_that_ends_is_an_error(tmp_path: Path) -> None:
    """So is an environment that is not there."""
    with pytest.raises(PeersMissing, match="not made yet"):
        Peers(allowed=False, folder=tmp_path)._python()
    peer = Peer(Path("/bin/true"))
    with pytest.raises(RuntimeError, match="has ended"):
        peer.versions()
    peer.close()
