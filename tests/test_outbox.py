"""Transitions on their way: batches, receipts, errors and limits."""

import pytest

from jormungandr import RemoteLearner
from jormungandr.episode import Choice, Episode
from jormungandr.errors import (
    BodyTooLarge,
    InvalidType,
    InvalidValue,
    JormungandrError,
    Unavailable,
)
from jormungandr.outbox import Outbox
from jormungandr.protocol import LIMITS
from tests.fake_endpoint import FakeEndpoint

DOWN = Unavailable("service", "a connection", "none")


class Narrow(FakeEndpoint):
    """Refuse, whole, a request in which the observations have more elements than `largest`."""

    def __init__(self, largest):
        super().__init__()
        self.largest, self.refused = largest, []

    def add(self, transitions):
        """Look at the size first, as a client does."""
        size = sum(len(row.observation) for row in transitions)
        if size > self.largest:
            self.refused.append(len(transitions))
            raise BodyTooLarge("body", f"at most {self.largest}", size)
        return super().add(transitions)


@pytest.fixture
def endpoint():
    """Return an empty endpoint in memory."""
    return FakeEndpoint()


def steps(count, *, size=1, actor_id="a", episode_id="e"):
    """Return the steps of one episode, with observations of so many awkward numbers."""
    episode = Episode(actor_id=actor_id, episode_id=episode_id, split="validation")
    wide = [-1.2345678901234567e-30] * size
    choice = Choice(0, 2**53 - 1, 1 / 3)
    return [
        episode.transition(wide, choice, -1e-30 / 3, wide, False, False, "n" * 64)
        for _ in range(count)
    ]


def test_a_batch_goes_when_it_is_full(endpoint):
    """Nothing is sent before there is a batch; then all there is."""
    outbox, rows = Outbox(endpoint, 4), steps(7)
    outbox.put(rows[:3])
    assert (endpoint.requests, outbox.unsent) == ([], tuple(rows[:3]))
    outbox.put(rows[3:])
    assert (endpoint.requests, outbox.unsent) == ([7], ())
    assert endpoint.rows == rows


def test_what_is_kept_waits_for_the_next_put(endpoint):
    """Keeping sends nothing, however much there is; an empty put then sends it in order."""
    outbox, rows = Outbox(endpoint, 2), steps(3)
    outbox.keep(rows[:1])
    outbox.keep(rows[1:])
    assert (endpoint.requests, outbox.unsent) == ([], tuple(rows))
    outbox.put(())
    assert (endpoint.rows, outbox.unsent) == (rows, ())


def test_receipts_add_up(endpoint):
    """Counts are added, the last lsn and version stand; nothing to send asks nothing."""
    outbox = Outbox(endpoint, 2)
    assert outbox.flush().accepted == 0
    outbox.put(steps(2))
    endpoint.version = 8
    outbox.put(steps(3))

    got = outbox.flush()

    assert (got.accepted, got.lsn, got.policy_version, got.generation) == (5, 2, 8, 1)
    assert endpoint.requests == [2, 3]


def test_an_error_keeps_what_has_no_receipt_and_a_retry_sends_it_in_order(endpoint):
    """Rows stay through the error, later ones queue behind them, and all arrive once, in order."""
    outbox, rows = Outbox(endpoint, 1), steps(3)
    endpoint.failures = [(DOWN, False)]
    with pytest.raises(Unavailable):
        outbox.put(rows[:2])
    assert outbox.unsent == tuple(rows[:2])

    outbox.put(rows[2:])

    assert endpoint.rows == rows
    assert (outbox.unsent, outbox.receipt.accepted) == ((), 3)


def test_a_partly_sent_outbox_keeps_the_rest_only(endpoint):
    """When the second of two requests fails, the first is not sent again."""
    rows = steps(LIMITS["transitions_per_request"] + 1, size=1)
    outbox = Outbox(endpoint, len(rows))
    endpoint.failures = [None, (DOWN, False)]
    with pytest.raises(Unavailable):
        outbox.put(rows)
    sent = endpoint.requests[0]
    assert outbox.unsent == tuple(rows[sent:])

    outbox.flush()
    assert [r.timestep for r in endpoint.rows] == list(range(len(rows)))


def test_a_request_has_no_more_rows_than_the_limit(endpoint):
    """As many as are published, and the rest in another."""
    rows = steps(LIMITS["transitions_per_request"] + 3)
    Outbox(endpoint, 1).put(rows)
    assert endpoint.requests == [LIMITS["transitions_per_request"], 3]


def test_what_is_too_large_goes_in_halves_once_and_in_order():
    """Wide observations: the size is found by halving, and remembered."""
    endpoint, rows = Narrow(largest=30), steps(25, size=10)
    outbox = Outbox(endpoint, 20)
    outbox.put(rows[:20])

    assert (endpoint.refused, endpoint.requests) == ([20, 10, 5], [2] * 10)
    outbox.put(rows[20:])
    outbox.flush()
    assert endpoint.refused == [20, 10, 5]
    assert endpoint.rows == rows
    assert (outbox.unsent, outbox.receipt.accepted) == ((), 25)


def test_a_single_row_that_is_too_large_is_an_error():
    """What went before it has its receipt; it stays, first in line, and nothing is sent twice."""
    endpoint = Narrow(largest=30)
    outbox, rows = Outbox(endpoint, 10), [*steps(3, size=10), *steps(1, size=31), *steps(1)]
    outbox.keep(rows)
    for _ in range(2):
        with pytest.raises(BodyTooLarge, match="at most 30, got 31"):
            outbox.flush()
        assert (endpoint.rows, outbox.unsent) == (rows[:3], tuple(rows[3:]))


def test_a_remote_endpoint_says_what_is_too_large():
    """The client looks at the body before it travels: 4 rows of 5,000 numbers are over 1 MiB."""

    class Nowhere:
        sizes: list[int] = []  # noqa: RUF012

        def request(self, method, path, body, headers, timeout):
            self.sizes.append(len(body))
            raise ConnectionRefusedError

    endpoint = RemoteLearner(None, "m", transport=Nowhere(), patience=0, columns_from=None)
    outbox = Outbox(endpoint, 10)
    rows = steps(4, size=5_000)
    outbox.keep(rows)
    with pytest.raises(Unavailable):
        outbox.flush()

    assert len(Nowhere.sizes) == 1
    assert LIMITS["json_body_bytes"] / 4 < Nowhere.sizes[0] <= LIMITS["json_body_bytes"]
    assert outbox.unsent == tuple(rows)


def test_discard_gives_up_and_returns_what_is_unsent(endpoint):
    """What an endpoint refuses for good can be taken out, and the next rows go."""
    outbox, rows = Outbox(endpoint, 1), steps(2)
    endpoint.failures = [(InvalidValue("transitions[0]", "something else"), False)]
    with pytest.raises(InvalidValue):
        outbox.put(rows[:1])
    assert outbox.discard() == tuple(rows[:1])
    outbox.put(rows[1:])
    assert endpoint.rows == rows[1:]


@pytest.mark.parametrize(
    ("error", "sent"),
    [(None, 1), (ValueError("env"), 1), (DOWN, 0), (KeyboardInterrupt(), 0)],
)
def test_flush_after_an_error_depends_on_whose_it_is(endpoint, error, sent):
    """An environment's error still sends; an endpoint's, or an interrupt, does not wait for it."""
    outbox = Outbox(endpoint, 10)
    outbox.put(steps(1))
    outbox.flush_after(error)
    assert (len(endpoint.rows), len(outbox.unsent)) == (sent, 1 - sent)


def test_arguments_are_checked(endpoint):
    """What is no endpoint, and a batch of nothing, are refused at once."""
    with pytest.raises(InvalidType, match=r"endpoint: expected an Endpoint.*got dict"):
        Outbox({}, 1)
    with pytest.raises(InvalidValue, match="batch_size"):
        Outbox(endpoint, 0)
    for given in ("x", 1.5, float("nan"), True, None):
        with pytest.raises(InvalidType, match="batch_size: expected an integer"):
            Outbox(endpoint, given)
    assert issubclass(InvalidType, JormungandrError)
