"""Models over HTTP: created, found, listed, deleted, and created again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr import Learner, ModelSpec
from jormungandr.errors import InvalidValue, ModelUnknown
from tests.service.serving import QUIET, SPEC, experience, policy_message, state_message


def create(app: Any, model_id: Any, spec: Any) -> Any:
    """Return the answer to a creation."""
    return app.request("POST", "/v1/models", {"model_id": model_id, "spec": spec})


def test_create(app: Any) -> None:
    """A new model is 201, with its specification resolved and all of its figures at zero."""
    response = create(app, "m", QUIET)
    info = response.json()

    assert response.status_code == 201
    assert info["spec"] == ModelSpec.from_dict(QUIET).to_dict()
    assert {k: info[k] for k in ("model_id", "generation", "policy_version", "update_count")} == {
        "model_id": "m",
        "generation": 1,
        "policy_version": 0,
        "update_count": 0,
    }
    assert (info["applied_lsn"], info["journal_lsn"]) == (0, 0)
    assert info["transitions"] == {"train": 0, "validation": 0}
    assert info["replay"] == {"size": 0, "capacity": 4}
    assert info["validation"] == {"size": 0, "capacity": 16}
    assert info["normalizer"] == {"count": 0}
    assert info["learner"]["state"] == "idle"
    assert info["warnings"] == []


def test_create_again(app: Any) -> None:
    """The same creation again is 200 and changes nothing; so is one that leaves fields out."""
    first = create(app, "m", QUIET).json()

    for spec in (QUIET, first["spec"], {}, {"seed": 0}, {"c51": {"atoms": 11}}):
        response = create(app, "m", spec)
        assert (response.status_code, response.json()) == (200, first)


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"seed": 1}, "seed"),
        ({"c51": {"lr": 0.5, "atoms": 11}}, "c51.lr"),
        ({"c51": {"lr": 0.5}, "replay": {"capacity": 5}}, "c51.lr, replay.capacity"),
        ({"observation": {"features": ["y", "x"]}}, "observation.features"),
        ({"actions": 3}, "actions"),
        ({"auxiliary": None}, "auxiliary"),
        ({"split_scope": "episode"}, "split_scope"),
    ],
)
def test_create_otherwise(shared: Any, given: dict[str, Any], paths: str) -> None:
    """Another specification under the same id is 409, and names what differs."""
    response = create(shared, "m", given)

    assert response.status_code == 409
    assert response.json()["error"]["code"] == "model_conflict"
    assert response.json()["error"]["got"] == f"differences at {paths}"


@pytest.mark.parametrize(
    "model_id",
    ["", "M", "_m", "-m", "a" * 64, "a b", "a/b", "..", ".", "a.b", "é", "m\n", "a\x00", "%6d"],
)
def test_bad_id(shared: Any, model_id: str) -> None:
    """An id outside the grammar is refused: it is part of paths, and of folder names."""
    response = create(shared, model_id, QUIET)

    assert response.status_code == 422
    assert response.json()["error"]["where"] == "model_id"
    assert [p.name for p in (shared.path / "models").iterdir()] == ["m.1"]


@pytest.mark.parametrize("model_id", ["0", "a" * 63, "a-b_c-", "9_"])
def test_good_id(app: Any, model_id: str) -> None:
    """What the grammar allows works all the way."""
    assert create(app, model_id, QUIET).status_code == 201
    assert app.connect(model_id).info()["model_id"] == model_id


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({}, "observation"),
        ({**QUIET, "c52": {}}, "c52"),
        ({**QUIET, "c51": {"atoms": 1}}, "c51.atoms"),
        ({**QUIET, "seed": 2**63}, "seed"),
        ({**QUIET, "preset": "other"}, "preset"),
        ({**QUIET, "observation": {"shape": [2, 0]}}, "observation.shape"),
    ],
)
def test_bad_spec(shared: Any, spec: dict[str, Any], where: str) -> None:
    """A specification that is not acceptable is refused by field, and nothing is made."""
    response = create(shared, "new", spec)

    assert (response.status_code, response.json()["error"]["where"]) == (422, where)
    assert [p.name for p in (shared.path / "models").iterdir()] == ["m.1"]


def test_preset(app: Any) -> None:
    """A preset and what overrides it are a specification."""
    info = create(app, "m", {"preset": "ou-note", "seed": 7}).json()

    assert info["spec"] == ModelSpec.preset("ou-note", seed=7).to_dict()


def test_created_at_the_same_time(app: Any) -> None:
    """Of several creations at once one makes the model, and the others find it."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: create(app, "m", QUIET).status_code, range(8)))

    assert sorted(answers) == [200] * 7 + [201]


def test_creation_that_fails_can_be_repeated(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation that failed half-way leaves nothing in the way of the next one."""
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)

    assert create(app, "m", QUIET).status_code == 503
    assert create(app, "m", QUIET).status_code == 201
    assert app.connect("m").info()["generation"] == 1


def test_list(app: Any) -> None:
    """The list has every model, in order of ids, with the figures of each."""
    assert app.request("GET", "/v1/models").json() == {"models": []}
    for model_id in ("b", "a"):
        create(app, model_id, QUIET)

    models = app.request("GET", "/v1/models").json()["models"]
    assert [m["model_id"] for m in models] == ["a", "b"]
    assert models[0] == app.connect("a").info()


def test_delete(app: Any) -> None:
    """A deleted model is gone with everything about it, and deleting again is 404."""
    create(app, "m", QUIET)
    create(app, "other", QUIET)
    app.connect("m").add(experience(1, 3))
    response = app.request("DELETE", "/v1/models/m")

    assert (response.status_code, response.content) == (204, b"")
    assert "content-length" not in response.headers
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/metrics")):
        response = app.request(method, f"/v1/models/m{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_unknown")
    with pytest.raises(ModelUnknown):
        app.connect("m").add(experience(1, 3))
    models = app.request("GET", "/v1/models").json()["models"]
    assert [m["model_id"] for m in models] == ["other"]


def test_create_after_delete(app: Any) -> None:
    """A new generation starts empty, and its version numbers go on past all of the old ones."""
    create(app, "m", SPEC)
    client = app.connect("m")
    client.add(experience(1, 3))
    learner = Learner(SPEC)
    learner.add(experience(8, 4))
    app.publish("m", learner)
    old = client.info()["policy_version"]
    client.delete()
    info = client.create(SPEC)

    assert old == learner.policy_version > 0
    assert (info["generation"], info["policy_version"]) == (2, old + 1)
    assert info["accepted"] == {"train": 0, "validation": 0}
    receipt = client.add(experience(1, 3))
    assert (receipt.accepted, receipt.generation, receipt.policy_version) == (3, 2, old + 1)


def test_versions_go_on_after_a_restart(open_app: Any, tmp_path: Path) -> None:
    """Deletion is remembered: neither generation nor version numbers are used again later."""
    with open_app(tmp_path) as app:
        for _ in range(2):
            create(app, "m", QUIET)
            model = app.model("m")
            versions = {"generation": model.generation, "first_version": model.published_version}
            app.publish("m", Learner(QUIET, **versions))
            app.connect("m").delete()
    with open_app(tmp_path) as app:
        assert app.request("GET", "/v1/models").json() == {"models": []}
        info = create(app, "m", QUIET).json()

    assert (info["generation"], info["policy_version"]) == (3, 2)


def test_deleted_data_is_dropped(app: Any) -> None:
    """Of a deleted model only the record of it stays on the disk."""
    create(app, "m", QUIET)
    app.publish("m", Learner(QUIET))
    client = app.connect("m")
    client.add(experience(2, 3))
    client.delete()

    folder = app.path / "models" / "m.1"
    connection = apsw.Connection(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)
    kinds = [row[0] for row in connection.execute("SELECT kind FROM journal ORDER BY lsn")]
    tables = ("episode", "ledger", "pending_label")
    left = [connection.execute(f"SELECT count(*) FROM {t}").fetchone() for t in tables]
    connection.close()
    assert kinds == ["create", "version", "delete"]
    assert left == [(0,), (0,), (0,)]
    assert not (folder / "policies").exists()


def test_models_are_apart(app: Any) -> None:
    """The same identities in two models are two things."""
    for model_id in ("a", "b"):
        create(app, model_id, QUIET)

    assert app.connect("a").add(experience(1, 3)).accepted == 3
    assert app.connect("b").add(experience(1, 3)).accepted == 3
    app.connect("a").delete()
    assert app.connect("b").add(experience(1, 3)).duplicate == 3


def test_barrier_answers_after_its_time(app: Any) -> None:
    """A barrier that is not reached answers with what there is when its time is over."""
    create(app, "m", QUIET)
    lsn = app.connect("m").add(experience(1, 3)).lsn
    info = app.request("GET", f"/v1/models/m?applied_lsn={lsn}&wait=0.05").json()

    assert (info["applied_lsn"], info["journal_lsn"]) == (0, lsn)


def test_barrier_answers_when_it_is_reached(app: Any) -> None:
    """A barrier is answered once the learner has reported what it waits for."""
    create(app, "m", QUIET)
    lsn = app.connect("m").add(experience(1, 3)).lsn
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(app.connect("m").wait, lsn)
        app.publish("m", Learner(QUIET), lsn=lsn)

        assert answer.result(60)["applied_lsn"] == lsn


def test_barrier_waits_for_the_policy(app: Any) -> None:
    """What is applied counts as such only when the policy made of it is served."""
    create(app, "m", SPEC)
    learner = Learner(SPEC)
    learner.add(experience(8, 4))
    model = app.model("m")
    app.run(model.learning.hear, state_message(learner, 7))
    assert app.connect("m").info()["applied_lsn"] == 0
    app.run(model.learning.hear, policy_message(learner.snapshot(), 7))

    assert app.connect("m").info()["applied_lsn"] == 7
    assert app.connect("m").info()["policy_version"] == learner.policy_version


def test_barrier_of_a_deleted_model_ends(app: Any) -> None:
    """Nobody waits for a model that is gone."""
    create(app, "m", QUIET)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(app.request, "GET", "/v1/models/m?applied_lsn=99&wait=60")
        app.connect("m").delete()

        assert answer.result(30).status_code in (200, 404)


def test_client_raises_what_the_service_says(app: Any) -> None:
    """The client's calls about models raise the service's classes."""
    client = app.connect("m")
    with pytest.raises(ModelUnknown):
        client.info()
    with pytest.raises(InvalidValue):
        app.connect("NO").create(QUIET)


def test_figures_do_not_go_back(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that was started again catches up: until then its figures are the old ones."""
    client = app.connect("m")
    client.create(QUIET)
    old, again = Learner(QUIET), Learner(QUIET)
    rows = experience(1, 8)
    lsn = [client.add([row]).lsn for row in rows][-1]
    old.add(rows)
    forgiven: list[int] = []
    monkeypatch.setattr(app.model("m").learning.process, "progressed", lambda: forgiven.append(1))
    app.publish("m", old, lsn)
    assert client.wait(lsn)["normalizer"]["count"] == 16
    for k, row in enumerate(rows):  # redone, which is no progress
        again.add([row])
        app.run(app.model("m").learning.hear, state_message(again, k + 1))

    found = client.wait(lsn)
    assert (found["normalizer"]["count"], found["applied_lsn"]) == (16, lsn)
    assert len(forgiven) == 1
