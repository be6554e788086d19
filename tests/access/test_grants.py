"""What a token allows, over HTTP: models, actors, splits, and no word more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jormungandr import RemoteLearner
from jormungandr.columns import columns
from jormungandr.errors import Forbidden, ModelUnknown, Unauthenticated
from jormungandr.packed import pack
from jormungandr.service import learning
from jormungandr.service.access.hosts import Hosts
from jormungandr.service.access.keyring import FileKeyring
from jormungandr.service.access.tokens import ACTOR, Tokens
from jormungandr.service.app import create_app
from jormungandr.service.http.authentication import Authenticated
from jormungandr.service.http.grants import SCOPES
from jormungandr.spec import ModelSpec
from jormungandr.wire import MSGPACK
from tests.service.conftest import NoProcess
from tests.service.serving import QUIET, InMemory, experience, identity

Open = Callable[..., RemoteLearner]


@pytest.fixture
def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A service with models ``m`` and ``other``, without learner processes."""
    monkeypatch.setattr(learning, "LearnerProcess", NoProcess)
    keyring = FileKeyring(tmp_path, tmp_path / "operator-token")
    app = create_app(tmp_path, token=keyring, hosts=Hosts("127.0.0.1"))
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        token = Tokens(tmp_path).create("setup", SCOPES)
        for model_id in ("m", "other"):
            RemoteLearner(None, model_id, token, transport=InMemory(opened)).create(QUIET)
        yield opened


@pytest.fixture
def bearing(http: TestClient, tmp_path: Path) -> Open:
    """``bearing(["label"], split="train")``: a client of ``m`` with a token that allows that."""

    def build(scopes: Any, model_id: str = "m", **options: Any) -> RemoteLearner:
        name = f"t{len(Tokens(tmp_path).list())}"
        token = Tokens(tmp_path).create(name, scopes, **options)
        return RemoteLearner(None, model_id, token, transport=InMemory(http))

    return build


def rows(actor_id: str, split: str = "train", first: int = 0) -> list[dict[str, Any]]:
    """Return two transitions of an actor in a split, without labels."""
    both = [row for row in experience(2, 2, actor_id=actor_id) if row["split"] == split]
    for t, row in enumerate(both):
        row.update(timestep=first + t, terminated=False)
        row.pop("label", None)
    return both


def labels(actor_id: str, split: str = "train") -> list[dict[str, Any]]:
    """Return a label for the first of `rows`."""
    episode = "e0" if split == "train" else "e1"
    return [{**identity(actor_id, episode, 0), "label": 1}]


# -- actors -------------------------------------------------------------------------------------


def test_actor_prefix(bearing: Open) -> None:
    """A token sends under names that begin as it says; a batch with one other is refused."""
    mine, all_of_them = bearing(ACTOR, actor_prefix="desk-1/"), bearing(ACTOR)
    assert mine.add(rows("desk-1/a")).accepted == 2
    for other in ("desk-1", "desk-2/a", "Desk-1/b", "a/desk-1/"):
        with pytest.raises(Forbidden, match=r"actor_id: expected ids that begin with 'desk-1/'"):
            mine.add([*rows("desk-1/c"), *rows(other)])

    assert all_of_them.add(rows("desk-1/c")).accepted == 2  # nothing of what was refused is kept


def test_actor_prefix_of_labels(bearing: Open) -> None:
    """It labels what is of its actors, and does not learn whether others have it."""
    bearing(ACTOR).add([*rows("desk-1/a"), *rows("desk-2/a")])
    mine = bearing(["label"], actor_prefix="desk-1/")

    assert mine.label(labels("desk-1/a")).attached == 1
    for other in ("desk-2/a", "nobody"):
        with pytest.raises(Forbidden, match="actor_id"):
            mine.label([*labels("desk-1/b"), *labels(other)])


# -- splits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "other"), [("train", "validation"), ("validation", "train")])
def test_split(bearing: Open, split: str, other: str) -> None:
    """A token of one split sends that one alone; so an actor cannot choose what judges it."""
    mine = bearing(ACTOR, split=split)
    assert mine.add(rows("a", split)).accepted == 2
    with pytest.raises(Forbidden, match=r"transitions\.split"):
        mine.add([*rows("b", split), *rows("c", other)])
    assert bearing(ACTOR).add(rows("b", split)).accepted == 2


@pytest.mark.parametrize(("split", "other"), [("train", "validation"), ("validation", "train")])
def test_split_of_labels(bearing: Open, split: str, other: str) -> None:
    """It labels transitions of its split that are there: a label that waits has no split yet."""
    bearing(ACTOR).add([*rows("a", split), *rows("a", other)])
    mine = bearing(["label"], split=split)

    for wrong in (labels("a", other), labels("a", split) + labels("late", split)):
        with pytest.raises(Forbidden, match=rf"that was sent before, of split '{split}'"):
            mine.label(wrong)
    assert mine.label(labels("a", split)).attached == 1
    assert mine.label(labels("a", split)).duplicate == 1
    bearing(["label"]).label(labels("a", other))
    with pytest.raises(Forbidden):  # a duplicate is one of the other split all the same
        mine.label(labels("a", other))
    bearing(["label"]).label(labels("late", split))
    assert bearing(ACTOR).add(rows("late", split)).accepted == 2


def test_columns_on_the_wire(http: TestClient, tmp_path: Path) -> None:
    """The bulk form is no way around: actors and splits are asked for there too."""
    spec = ModelSpec.from_dict(QUIET)
    token = Tokens(tmp_path).create("a", ACTOR, actor_prefix="a/", split="train")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": MSGPACK}

    def send(given: list[dict[str, Any]]) -> int:
        body = pack(columns(given, spec))
        return http.post("/v1/models/m/experience/add", content=body, headers=headers).status_code

    assert send(rows("a/1")) == 200
    assert send([*rows("a/2"), *rows("b")]) == 403
    assert send(rows("a/2", "validation")) == 403


# -- models -------------------------------------------------------------------------------------


def test_models(bearing: Open) -> None:
    """A token of some models gets the same answer about another, whether it exists or not."""
    for model_id in ("other", "nothing"):
        with pytest.raises(Forbidden, match="models like"):
            bearing(SCOPES, model_id, models=["m", "m-?"]).info()
    assert bearing(SCOPES, "m", models=["m", "m-?"]).info()["model_id"] == "m"
    with pytest.raises(ModelUnknown):
        bearing(SCOPES, "m-1", models=["m", "m-?"]).info()
    with pytest.raises(Forbidden):
        bearing(SCOPES, "m-12", models=["m", "m-?"]).info()


def test_creation(bearing: Open) -> None:
    """Who may operate some models creates those, and no other."""
    assert bearing(["operate"], "n-1", models=["n-*"]).create(QUIET)["model_id"] == "n-1"
    with pytest.raises(Forbidden):
        bearing(["operate"], "o-1", models=["n-*"]).create(QUIET)
    with pytest.raises(Forbidden):
        bearing(["operate"], "m", models=["n-*"]).create(QUIET)  # it exists: that is not said


def test_list_of_models(http: TestClient, tmp_path: Path) -> None:
    """The list has the models that the token is for."""
    token = Tokens(tmp_path).create("o", ["observe"], models=["o*"])
    found = http.get("/v1/models", headers={"Authorization": f"Bearer {token}"}).json()

    assert [model["model_id"] for model in found["models"]] == ["other"]


# -- revocation ---------------------------------------------------------------------------------


def test_revoked_between_two_requests(bearing: Open, tmp_path: Path) -> None:
    """A connection that is open does not keep a token alive."""
    client = bearing(ACTOR)
    assert client.add(rows("a")).accepted == 2
    Tokens(tmp_path).revoke(Tokens(tmp_path).list()[-1].name)

    with pytest.raises(Unauthenticated):
        client.add(rows("a", first=2))


def test_revoked_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    """A stream ends with its token; an answer that has said its length is finished."""
    (tmp_path / "models").mkdir()
    tokens = Tokens(tmp_path)
    token = tokens.create("a", ["observe"])

    def parts(length: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bool]]:
        sent: list[tuple[bytes, bool]] = []

        async def endpoint(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
            tokens.revoke("a")
            await send({"type": "http.response.body", "body": b"2", "more_body": True})
            await send({"type": "http.response.body", "body": b"3"})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.append((message["body"], message.get("more_body", False)))

        async def receive() -> Any:
            raise AssertionError

        keyring = FileKeyring(tmp_path, tmp_path / "operator-token")
        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "path": "/v1/x", "headers": headers}
        asyncio.run(Authenticated(endpoint, keyring)(scope, receive, send))
        return sent

    assert parts([]) == [(b"1", True), (b"", False)]
    token = tokens.create("a", ["observe"])
    assert parts([(b"content-length", b"3")]) == [(b"1", True), (b"2", True), (b"3", False)]


# -- what answers say ---------------------------------------------------------------------------


def test_a_page_of_another_site(http: TestClient, tmp_path: Path) -> None:
    """A browser is told nothing that would let a page of another site send or read anything."""
    token = Tokens(tmp_path).create("a", SCOPES)
    asked = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    for given in ({}, {"Authorization": f"Bearer {token}"}):
        for method in ("OPTIONS", "GET", "POST"):
            got = http.request(method, "/v1/models/m/inference", headers={**asked, **given})
            assert not [name for name in got.headers if name.startswith("access-control")]
            assert "set-cookie" not in got.headers
    rebound = {"Authorization": f"Bearer {token}", "Host": "evil.example"}
    assert http.get("/v1/models", headers=rebound).status_code == 403


def test_tokens_are_not_echoed(
    http: TestClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither answers nor the log repeat what was given as a token, right or wrong."""
    caplog.set_level("DEBUG")
    right = Tokens(tmp_path).create("a", ["label"])
    for token in (right, "wrong-" + "x" * 40):
        for given in (f"Bearer {token}", f"Basic {token}", token):
            for path in ("/v1/info", "/v1/models", "/v1/models/m/inference", "/v1/nothing"):
                got = http.get(path, headers={"Authorization": given})
                assert token not in got.text
                assert token not in str(got.headers)
        assert token not in caplog.text
