"""Promotions: tried, decided on evidence or by an operator, recorded first, and then served."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.errors import (
    InvalidInput,
    PolicyGone,
    PolicyNotReady,
    PolicyVersionStale,
    PolicyVersionUnknown,
)
from jormungandr.heldout import HeldOutEpisode, kept_episodes
from jormungandr.service import answers as module
from jormungandr.service.child.channel import Garbage
from jormungandr.service.journal.writer import Journal
from jormungandr.service.shelf import KEEP_POLICIES
from tests.service.serving import SPEC, experience, state_message, until

GATED = {
    **SPEC,
    "promotion": {"serve": "champion", "min_episodes": 2, "candidate_every": 2},
}
PATH = "/v1/models/m/promotion"


class Story:
    """A model that promotes, its learner, and held-out episodes that end."""

    def __init__(self, app: Any, spec: dict[str, Any] = GATED) -> None:
        self.app, self.learner = app, Learner(spec)
        self._rows = iter(experience(200, 4))
        self._ended = 0

    def reopened(self, app: Any) -> Story:
        """Return the same story, told to another application."""
        self.app = app
        return self

    def publish(self, updates: int = 0) -> int:
        """Let the learner make so many updates and publish; return the version."""
        before = self.learner.update_count
        while self.learner.update_count < before + updates:
            self.learner.add([next(self._rows)])
        self.app.publish("m", self.learner)
        return self.learner.policy_version

    def play(self, *returns: float, version: int, pairs: bool = False) -> None:
        """Let episodes of a version end, each in a row of its own."""
        model, episodes = self.app.model("m"), []
        for k, total in enumerate(returns):
            self._ended += 1
            at = 1_000 + self._ended
            pair = f"p{k}" if pairs else None
            episodes.append(HeldOutEpisode(self._ended, version, at, at, total, pair))
        self.hear(model, episodes)

    def hear(self, model: Any, episodes: list[HeldOutEpisode], applied: int | None = None) -> None:
        """Report episodes as the learner process does, which has applied so much of the journal."""
        rows = [[e.number, e.version, e.first, e.last, e.total, e.pair] for e in episodes]
        message = state_message(self.learner)
        lsn = model.journal.counters.lsn if applied is None else applied
        info = {**message["info"], "applied_lsn": lsn}
        self.app.run(model.learning.hear, {**message, "info": info, "episodes": rows})

    def acts(self, policy: Any = None) -> int:
        """Return the version that acts."""
        return int(self.app.connect("m").act([[0, 0]], policy=policy).policy_version)

    @property
    def standing(self) -> dict[str, Any]:
        """What the service says of promotions."""
        return self.app.connect("m").promotion()

    @property
    def kinds(self) -> list[str]:
        """What was decided so far."""
        return [decision["kind"] for decision in self.standing["history"]]


@pytest.fixture
def story(app: Any) -> Story:
    """A model whose first policy is served."""
    app.connect("m").create(GATED)
    story = Story(app)
    story.publish()
    return story


def test_off_by_default(app: Any) -> None:
    """A model that serves the latest decides nothing, and has no other roles."""
    app.connect("m").create(SPEC)
    story = Story(app, SPEC)
    for _ in range(4):
        story.publish(2)
        assert story.acts() == story.acts("latest") == story.learner.policy_version
    story.play(1.0, 1.0, version=0)

    assert story.kinds == []
    assert story.standing["champion"] is None
    assert [row.kind for row in app.model("m").journal.decisions()] == []
    for role in ("champion", "candidate", "best"):
        with pytest.raises(InvalidInput, match="policy"):
            story.acts(role)
    with pytest.raises(InvalidInput, match=r"promotion\.serve"):
        app.connect("m").decide("promote", 0)


def test_the_first_policy_is_champion(story: Story) -> None:
    """It is recorded, and served until another one has shown more."""
    assert story.acts() == story.acts("champion") == 0
    assert story.kinds == ["champion"]
    assert story.publish(1) == 1
    assert (story.acts(), story.acts("latest"), story.acts("candidate")) == (0, 1, 0)
    assert story.app.connect("m").info()["policy_version"] == 1


def test_a_candidate_comes_after_so_many_updates(story: Story) -> None:
    """The newest policy is tried, one at a time."""
    story.publish(1)
    assert story.standing["candidate"] is None
    assert story.publish(1) == 2
    assert story.standing["candidate"] == 2
    story.publish(5)
    assert story.standing["candidate"] == 2
    assert (story.acts(), story.acts("candidate"), story.acts("latest")) == (0, 2, 7)
    assert story.kinds == ["champion", "candidate"]


@pytest.mark.parametrize("pairs", [True, False])
def test_promoted_on_evidence(story: Story, pairs: bool) -> None:
    """The row holds the evidence, and the candidate is served from there on."""
    story.publish(2)
    story.play(1.0, 1.5, version=0, pairs=pairs)
    story.play(3.0, version=2, pairs=pairs)
    assert story.acts() == 0
    evidence = story.standing["evidence"]
    assert (evidence["pairs"], evidence["low"]) == (1 if pairs else 0, None)
    story.play(9.0, 3.5, version=2, pairs=pairs) if pairs else story.play(3.5, version=2)

    assert story.acts() == story.acts("candidate") == 2
    decision = story.standing["history"][-1]
    assert (decision["kind"], decision["by"], decision["previous"]) == ("champion", "gate", 0)
    assert decision["evidence"]["method"] == ("paired" if pairs else "unpaired")
    assert decision["evidence"]["low"] > 0
    assert decision["evidence"]["estimate"] == 2.0


def test_refused_on_evidence(story: Story) -> None:
    """The champion stays, and the next candidate is tried on episodes of its own."""
    story.publish(2)
    story.play(1.0, 1.5, version=0)
    story.play(0.5, 1.0, version=2)
    assert story.acts() == 0
    refusal = story.standing["history"][-1]
    assert (refusal["kind"], refusal["version"], refusal["champion"]) == ("refusal", 2, 0)
    assert refusal["evidence"]["low"] < 0
    assert "is not above 0" in refusal["reason"]

    assert story.publish(2) == 4
    assert story.standing["evidence"]["champion"] == 0
    story.play(9.0, 9.5, version=4)
    story.play(9.0, 9.5, version=0)
    assert story.kinds[-2:] == ["candidate", "refusal"]


def test_episodes_count_once(story: Story) -> None:
    """A learner that was started again reports what it remembers; nothing counts twice."""
    story.publish(2)
    model = story.app.model("m")
    again = [HeldOutEpisode(k, 2, 1_000 + k, 1_000 + k, 5.0) for k in (1, 2)]
    for _ in range(3):
        story.hear(model, again[:1])
    story.hear(model, again)

    evidence = story.standing["evidence"]
    assert (evidence["candidate"], evidence["seen"]) == (2, 2)


def test_a_trial_without_enough_episodes_lapses(story: Story) -> None:
    """It is refused, so that one that nobody plays is not tried for ever."""
    story.publish(2)
    story.play(*[0.0] * kept_episodes(2), version=7)

    refusal = story.standing["history"][-1]
    assert (refusal["kind"], refusal["by"]) == ("refusal", "gate")
    assert refusal["reason"].startswith("lapsed")


def test_the_row_comes_first(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a decision commits, what was served before is served still."""
    seen = []
    commit = Journal.commit

    def watched(journal: Journal, draft: Any, rows: Any, controls: Any) -> None:
        gate = story.app.model("m").gate
        seen.extend((row.kind, gate.handed_version) for row in controls)
        commit(journal, draft, rows, controls)

    monkeypatch.setattr(Journal, "commit", watched)
    story.publish(2)
    story.play(1.0, 1.0, version=0)
    story.play(2.0, 2.0, version=2)

    assert seen == [("version", 0), ("candidate", 0), ("champion", 0)]
    assert story.acts() == 2


# -- operators ----------------------------------------------------------------------------------


def test_an_operator_promotes_and_rolls_back(story: Story) -> None:
    """At once, with a reason, and a trial ends with it."""
    story.publish(2)
    owner = story.app.connect("m")
    assert owner.decide("promote", reason="looks good")["champion"] == 2
    assert story.acts() == 2
    assert story.standing["candidate"] is None
    story.publish(1)
    assert owner.decide("promote", 3)["champion"] == 3
    assert owner.decide("rollback")["champion"] == story.acts() == 2
    assert owner.decide("rollback", reason="still bad")["champion"] == story.acts() == 0
    with pytest.raises(PolicyVersionUnknown, match="earlier champion"):
        owner.decide("rollback")
    assert owner.decide("rollback", 3)["champion"] == 3

    history = story.standing["history"]
    assert story.kinds == [
        *("champion", "candidate", "champion", "champion"),
        *("rollback", "rollback", "rollback"),
    ]
    assert [d["by"] for d in history if d["kind"] == "rollback"] == ["operator"] * 3
    assert history[5]["reason"] == "still bad"
    assert history[2]["evidence"]["candidate"] == 0


def test_an_operator_refuses(story: Story) -> None:
    """The next candidate comes after as many updates as ever."""
    owner = story.app.connect("m")
    with pytest.raises(PolicyVersionUnknown, match="candidate"):
        owner.decide("refuse")
    story.publish(2)
    assert owner.decide("refuse", reason="a known fault")["candidate"] is None
    story.publish(1)
    assert story.standing["candidate"] is None
    story.publish(1)
    assert story.standing["candidate"] == 4
    assert story.acts() == 0


def test_an_operator_pins(story: Story) -> None:
    """A pinned champion stays, and nothing is tried, until it is let go."""
    owner = story.app.connect("m")
    story.publish(2)
    assert owner.decide("pin")["pinned"]
    assert story.standing["candidate"] is None
    story.publish(8)
    assert story.standing["candidate"] is None
    assert not owner.decide("unpin")["pinned"]
    assert story.acts() == 0
    story.publish(1)
    assert story.standing["candidate"] == 11


@pytest.mark.parametrize(
    ("order", "status", "code"),
    [
        ({}, 422, "missing_field"),
        ({"action": "crown"}, 422, "invalid_value"),
        ({"action": "promote", "version": -1}, 422, "invalid_value"),
        ({"action": "promote", "version": "2"}, 422, "invalid_type"),
        ({"action": "promote", "why": "x"}, 422, "unknown_field"),
        ({"action": "promote", "reason": "x" * 501}, 422, "invalid_value"),
        ({"action": "refuse", "version": 2}, 422, "invalid_value"),
        ({"action": "promote"}, 409, "policy_version_unknown"),
        ({"action": "promote", "version": 99}, 409, "policy_version_unknown"),
        ({"action": "rollback", "version": 0}, 409, "policy_version_unknown"),
    ],
)
def test_refused_orders(story: Story, order: dict[str, Any], status: int, code: str) -> None:
    """Nothing is decided by what cannot be done."""
    got = story.app.request("POST", PATH, order)

    assert (got.status_code, got.json()["error"]["code"]) == (status, code)
    assert story.kinds == ["champion"]


def test_orders_before_there_is_a_policy(app: Any) -> None:
    """There is no champion to take over from yet."""
    app.connect("m").create(GATED)

    got = app.request("POST", PATH, {"action": "pin"})
    assert (got.status_code, got.json()["error"]["code"]) == (503, "policy_not_ready")


# -- files and restarts -------------------------------------------------------------------------


def kept(app: Any) -> list[int]:
    """Return the versions whose files are kept."""
    folder = app.path / "models" / "m.1" / "policies"
    return sorted(int(path.stem) for path in folder.glob("*.safetensors"))


def test_who_stands_is_kept(story: Story) -> None:
    """The files of champion and candidate stay however many newer policies there are."""
    story.publish(2)
    for _ in range(KEEP_POLICIES + 3):
        story.publish(1)

    assert kept(story.app)[:3] == [0, 2, 6]
    assert (story.acts(), story.acts("candidate"), story.acts(2)) == (0, 2, 2)
    with pytest.raises(PolicyGone):
        story.acts(3)
    with pytest.raises(PolicyGone):
        story.app.connect("m").decide("promote", 4)
    with pytest.raises(PolicyVersionUnknown):
        story.acts(99)


def test_a_restart_serves_the_same(open_app: Any, tmp_path: Path) -> None:
    """Champion, trial and history are what the journal says, and the evidence comes again."""
    with open_app(tmp_path) as app:
        app.connect("m").create(GATED)
        story = Story(app)
        story.publish()
        story.publish(2)
        story.play(1.0, 1.0, version=0)
        story.play(2.0, 2.0, version=2)
        story.publish(2)
        story.play(1.0, version=4)
        before, reply = story.standing, app.connect("m").act([[1, 1]], deterministic=True)
    with open_app(tmp_path) as app:
        story = story.reopened(app)
        assert app.connect("m").act([[1, 1]], deterministic=True) == reply
        after = story.standing
        assert [after[k] for k in ("champion", "candidate")] == [2, 4]
        assert after["history"] == before["history"]
        assert story.acts("candidate") == 4
        # None counted, which is not the same as none played; nor is a part of them all.
        pairs = [after["evidence"], app.connect("m").info()["promotion"]["pairs"]]
        story.hear(app.model("m"), [], applied=1)
        assert [*pairs, story.standing["evidence"]] == [None, None, None]
        # The learner process remembers all that counted before, and reports it again.
        story._ended = 4
        story.play(1.0, version=4)
        assert story.standing["evidence"] == before["evidence"]
        assert app.connect("m").info()["promotion"]["pairs"] == 0


def test_a_lost_champion_is_not_replaced_by_another(open_app: Any, tmp_path: Path) -> None:
    """Nothing else is handed out in its place, the operator is told, and can help."""
    with open_app(tmp_path) as app:
        app.connect("m").create(GATED)
        story = Story(app)
        story.publish()
        story.publish(1)
    (tmp_path / "models" / "m.1" / "policies" / f"{0:020d}.safetensors").write_bytes(b"x")
    with open_app(tmp_path) as app:
        story = story.reopened(app)
        owner = app.connect("m", patience=0)
        with pytest.raises(PolicyNotReady, match="policy 0"):
            owner.act([[0, 0]])
        assert owner.act([[0, 0]], policy="latest").policy_version == 1
        assert any(text.startswith("champion_lost") for text in owner.info()["warnings"])
        story.publish(3)
        assert story.standing["candidate"] is None
        owner.decide("promote", 1, reason="the other one is lost")
        assert story.acts() == 1
        assert "champion_lost" not in str(owner.info()["warnings"])


def test_a_lost_candidate_is_refused(open_app: Any, tmp_path: Path) -> None:
    """There is nothing to be promoted."""
    with open_app(tmp_path) as app:
        app.connect("m").create(GATED)
        story = Story(app)
        story.publish()
        story.publish(2)
    (tmp_path / "models" / "m.1" / "policies" / f"{2:020d}.safetensors").unlink()
    with open_app(tmp_path) as app:
        story = story.reopened(app)
        story.play(1.0, version=0)
        assert (story.kinds[-1], story.standing["history"][-1]["by"]) == ("refusal", "service")


def test_a_lost_candidate_that_was_better(open_app: Any, tmp_path: Path) -> None:
    """The reason of its refusal is that it is lost, and not what would have promoted it."""
    with open_app(tmp_path) as app:
        app.connect("m").create(GATED)
        story = Story(app)
        story.publish()
        story.publish(2)
    (tmp_path / "models" / "m.1" / "policies" / f"{2:020d}.safetensors").unlink()
    with open_app(tmp_path) as app:
        story = story.reopened(app)
        played = [(0, 1.0), (0, 1.0), (2, 2.0), (2, 2.0)]
        story.hear(
            app.model("m"),
            [HeldOutEpisode(k + 1, v, 1_000 + k, 1_000 + k, t) for k, (v, t) in enumerate(played)],
        )
        refusal = story.standing["history"][-1]

    assert (refusal["kind"], refusal["by"]) == ("refusal", "service")
    assert refusal["reason"].startswith("the candidate's file is damaged or gone, although ")
    assert "is above 0" in refusal["reason"]


# -- what else hands out a policy ---------------------------------------------------------------


def test_policies_over_http(story: Story) -> None:
    """The champion where nothing else is asked for; any other one is newer to its follower."""
    story.publish(2)

    def got(query: str) -> tuple[int, str, str]:
        answer = story.app.request("GET", f"/v1/models/m/policy{query}")
        heads = answer.headers
        return (
            answer.status_code,
            heads["jormungandr-policy-version"],
            heads["jormungandr-policy-role"],
        )

    assert got("") == (200, "0", "champion")
    assert got("?newer_than=0") == (304, "0", "champion")
    assert got("?policy=latest&newer_than=0") == (200, "2", "latest")
    assert got("?policy=candidate") == (200, "2", "candidate")
    story.app.connect("m").decide("promote", 2)
    assert got("?newer_than=0") == (200, "2", "champion")
    story.app.connect("m").decide("rollback")
    assert got("?newer_than=2") == (200, "0", "champion")
    assert got("?policy=latest&newer_than=2") == (304, "2", "latest")
    assert story.app.request("GET", "/v1/models/m/policy?policy=best").status_code == 422


def test_a_local_policy_follows_a_rollback(story: Story) -> None:
    """It takes the older policy that is served again."""
    story.publish(2)
    owner = story.app.connect("m")
    with story.app.connect("m", placement="local", poll=0.05) as local:
        assert local.act([[0, 0]]).policy_version == 0
        owner.decide("promote", 2)
        follow(local, 2)
        owner.decide("rollback")
        follow(local, 0)
        with pytest.raises(InvalidInput, match="policy"):
            local.act([[0, 0]], policy="candidate")


def test_clients_of_a_role(story: Story) -> None:
    """One that was made for a role asks for it, or follows it, and may ask for another."""
    story.publish(2)
    with story.app.connect("m", policy="latest") as remote:
        assert remote.act([[0, 0]]).policy_version == 2
        assert remote.act([[0, 0]], policy="champion").policy_version == 0
        story.publish(1)
        assert remote.act([[0, 0]]).policy_version == 3
    for role, version in (("latest", 3), ("candidate", 2), ("champion", 0)):
        with story.app.connect("m", placement="local", poll=0.05, policy=role) as local:
            assert local.act([[0, 0]]).policy_version == version


def follow(local: Any, version: int) -> None:
    """Wait until a local policy is of a version."""
    until(lambda: local.act([[0, 0]]).policy_version == version, f"policy {version}")


def test_an_export_is_of_the_champion(story: Story, tmp_path: Path) -> None:
    """What is handed out is what is exported."""
    story.publish(2)
    story.app.connect("m").export(tmp_path / "policy")

    assert PolicySnapshot.open(tmp_path / "policy").version == 0


def test_requests_of_one_moment(story: Story) -> None:
    """Those that ask for different policies at once are answered each by its own."""
    story.publish(2)
    model = story.app.model("m")

    async def ask(wanted: Any) -> int:
        reply = await model.answers.act(
            [[0, 0]],
            deterministic=True,
            epsilon=None,
            action_masks=None,
            distribution=False,
            wanted=wanted,
        )
        return int(reply.policy_version)

    async def all_at_once() -> list[int]:
        roles = [None, "candidate", "candidate", None, "latest", "champion", 2, 0]
        return list(await asyncio.gather(*map(ask, roles)))

    assert story.app.run(all_at_once) == [0, 2, 2, 0, 2, 0, 2, 0]


def test_lag_is_behind_what_is_handed_out(app: Any) -> None:
    """Whoever plays the champion is up to date, however many newer policies there are."""
    spec = {**GATED, "staleness": {"max_policy_lag": 1, "mode": "reject"}}
    app.connect("m").create(spec)
    story = Story(app, spec)
    story.publish()
    story.publish(5)
    sent = [{**row, "policy_version": 0} for row in experience(1, 3, actor_id="z")]
    receipt = app.connect("m").add(sent)

    assert (receipt.accepted, receipt.policy_version) == (3, 0)
    app.connect("m").decide("promote", 5)
    with pytest.raises(PolicyVersionStale):
        app.connect("m").add([{**row, "episode_id": "f"} for row in sent])


def test_waits_for_the_first_champion(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a policy, a request waits, and says so in the end."""
    monkeypatch.setattr(module, "FIRST_POLICY", 0.05)
    app.connect("m").create(GATED)
    with pytest.raises(PolicyNotReady):
        app.connect("m", patience=0).act([[0, 0]])


def test_figures(story: Story) -> None:
    """A model's figures and those for Prometheus say who stands and what was decided."""
    story.publish(2)
    info = story.app.connect("m").info()["promotion"]
    assert (info["serve"], info["champion"], info["candidate"]) == ("champion", 0, 2)
    text = story.app.request("GET", "/metrics").text
    assert 'jormungandr_champion_version{model="m"} 0' in text
    assert 'jormungandr_candidate_version{model="m"} 2' in text
    assert 'jormungandr_promotion_decisions_total{model="m",decision="candidate"} 1' in text


def test_garbage_of_a_learner(story: Story) -> None:
    """Episodes that are none end the learner process, and decide nothing."""
    story.publish(2)
    for row in ([1, 2, 3], [1, 2, 3, 4, float("nan"), None], [0, 2, 3, 4, 1.0, None], "x"):
        message = {**state_message(story.learner), "episodes": [row]}
        with pytest.raises(Garbage):
            story.app.run(story.app.model("m").learning.hear, message)
    assert story.standing["evidence"]["seen"] == 0
