"""The exception tree: codes, statuses, messages, and the way over the wire and back."""

from __future__ import annotations

import pickle
import re

import pytest

from jormungandr import errors
from jormungandr.errors import (
    BY_CODE,
    ActionRange,
    IdentityConflict,
    InternalError,
    JormungandrError,
    PendingLabelsFull,
)


def subclasses(cls: type[JormungandrError]) -> list[type[JormungandrError]]:
    """Return every class below `cls`, depth first."""
    return [c for child in cls.__subclasses__() for c in (child, *subclasses(child))]


ALL = subclasses(JormungandrError)


def test_tree_in_docstring_is_the_tree_of_classes() -> None:
    """The tree that errors.py opens with names every class, in order, with its status and code."""
    drawn = re.findall(r"[├└]── (\w+) +(?:(\d+)  )?(\w+)?", errors.__doc__ or "")
    status = {"": ""}
    for name, number, word in drawn:
        cls = getattr(errors, name)
        status[name] = number or status[cls.__base__.__name__]
        assert (name, str(cls.status)) == (name, status[name])
        if not cls.__subclasses__():
            assert (name, cls.code) == (name, word)

    assert [name for name, _, _ in drawn] == [cls.__name__ for cls in ALL]


def test_codes_are_unique() -> None:
    """No two classes share a wire code, so that the client can raise the learner's very class."""
    assert len({cls.code for cls in ALL}) == len(ALL)


def test_error_outside_the_tree_has_no_code_of_its_own() -> None:
    """The base has the code of an internal error, and the wire brings back InternalError for it."""
    assert BY_CODE["internal_error"] is InternalError


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_wire_round_trip(cls: type[JormungandrError]) -> None:
    """What crosses the wire comes back as the same class with the same words."""
    error = cls("transitions[3].action", "0..2", 7, "send an index")
    back = errors.from_dict(error.to_dict())

    assert type(back) is cls
    assert (str(back), back.to_dict()) == (str(error), error.to_dict())


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_pickle_round_trip(cls: type[JormungandrError]) -> None:
    """An error survives the pipe between processes."""
    error = cls("transitions[3].action", "0..2", 7, "send an index")
    back = pickle.loads(pickle.dumps(error))

    assert (type(back), back.to_dict()) == (cls, error.to_dict())


def test_message_says_where_expected_got_and_remedy() -> None:
    """The message has four parts, and leaves out those that are not known."""
    assert (
        str(ActionRange("transitions[3].action", "0..2", 7, "send an index"))
        == "transitions[3].action: expected 0..2, got 7; send an index"
    )
    assert str(ActionRange("action", "0..2")) == "action: expected 0..2"
    assert str(ActionRange("action", "0..2", 0)) == "action: expected 0..2, got 0"


def test_got_is_shortened() -> None:
    """A large input does not come back whole in its own error."""
    assert len(ActionRange("action", "0..2", "x" * 10_000).got) == 200


def test_integer_too_long_to_print() -> None:
    """An integer that Python refuses to print is described, rather than an error in our error."""
    assert ActionRange("action", "0..2", 10**5000).got == "an int too large to print"


def test_unknown_code_becomes_internal_error() -> None:
    """A newer server's code that this client does not know still says what the server said."""
    back = errors.from_dict({"code": "brand_new", "message": "nope", "where": "here"})

    assert (type(back), str(back)) == (InternalError, "here: expected nope")


@pytest.mark.parametrize("body", ["not found", None, 404, ["x"]])
def test_foreign_error_body(body: object) -> None:
    """The error of a proxy, in any shape, becomes an InternalError that shows it."""
    back = errors.from_dict(body)

    assert type(back) is InternalError
    assert str(body) in str(back)


def test_statuses_of_the_retry_contract() -> None:
    """Clients resend on 429 and 503 only, so conflicts and bad input must not have those."""
    assert IdentityConflict.status == 409
    assert ActionRange.status == 422
    assert PendingLabelsFull.status == 429
    assert errors.StorageFull.status == 503
