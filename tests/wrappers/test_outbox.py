"""Transitions on their way: batches, receipts, errors and limits."""

import pytest

from jormungandr.errors import InvalidType, InvalidValue, JormungandrError, Unavailable
from jormungandr.protocol import LIMITS
from jormungandr.wire import encode_transitions
from jormungandr_wrappers import Choice, Episode, Outbox

DOWN = Unavailable("service", "a connection", "none")


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


@pytest.mark.parametrize("size", [1, 4, 100, 5_000])
def test_every_request_is_within_the_published_limits(endpoint, size):
    """However long ids and numbers are, a request is under its bound, and not far under."""
    longest = "é" * 64
    outbox = Outbox(endpoint, 10_000)
    outbox.put(steps(5_000 if size < 100 else 300, size=size, actor_id=longest, episode_id=longest))
    outbox.flush()

    start = 0
    for count in endpoint.requests:
        body = encode_transitions(endpoint.rows[start : start + count])
        start += count
        assert count <= LIMITS["transitions_per_request"]
        assert len(body) <= LIMITS["json_body_bytes"]
    if len(endpoint.requests) > 1:
        first = encode_transitions(endpoint.rows[: endpoint.requests[0]])
        assert len(first) > LIMITS["json_body_bytes"] // 2


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
    assert issubclass(InvalidType, JormungandrError)
