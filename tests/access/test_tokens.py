"""Further tokens: what they may say, their file, and whoever changes it at the same time."""

from __future__ import annotations

import json
import multiprocessing
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from jormungandr.errors import DataDirError, InvalidValue, Unauthenticated
from jormungandr.service.access import tokens as module
from jormungandr.service.access import watched
from jormungandr.service.access.keyring import FileKeyring, Keyring, OneToken
from jormungandr.service.access.tokens import FILE, PATTERN, Tokens, read_tokens
from jormungandr.service.http.grants import OPERATOR, Grant
from jormungandr.spec import MODEL_ID

OPERATORS = "the-operator's-token"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory, with an operator's token that is known."""
    (tmp_path / "models").mkdir()
    (tmp_path / "operator-token").write_text(OPERATORS)
    (tmp_path / "operator-token").chmod(0o600)
    return tmp_path


def keyring_of(data_dir: Path) -> FileKeyring:
    """Return the keyring of a data directory."""
    return FileKeyring(data_dir, data_dir / "operator-token")


# -- the file -----------------------------------------------------------------------------------


def test_create(data_dir: Path) -> None:
    """The file holds the digest, never the token, and is its owner's alone."""
    token = Tokens(data_dir).create("a", ["ingest", "act"], models=["m-*"], actor_prefix="a/")
    (kept,) = read_tokens(data_dir / FILE)

    assert token.startswith("jrm_")
    assert len(token) == 4 + 43
    assert kept.sha256 == sha256(token.encode()).hexdigest()
    assert token[4:] not in (data_dir / FILE).read_text()
    assert stat.S_IMODE((data_dir / FILE).stat().st_mode) == 0o600
    grant = Grant("a", frozenset({"act", "ingest"}), ("m-*",), "a/", None)
    assert kept.grant() == grant
    assert keyring_of(data_dir).grant(token.encode()) == grant


def test_list_and_revoke(data_dir: Path) -> None:
    """Tokens are listed in the order in which they were made; a name is free when it is revoked."""
    tokens = Tokens(data_dir)
    assert tokens.list() == ()
    for name in ("b", "a", "c"):
        tokens.create(name, ["act"])
    tokens.revoke("a")
    tokens.create("a", ["label"])

    assert [token.name for token in tokens.list()] == ["b", "c", "a"]


def test_a_name_is_of_one_token(data_dir: Path) -> None:
    """Two tokens of one name could not be told apart when one is to be revoked."""
    tokens = Tokens(data_dir)
    tokens.create("a", ["act"])

    with pytest.raises(InvalidValue, match="one that no token has"):
        tokens.create("a", ["act"])
    with pytest.raises(InvalidValue, match="known: a"):
        tokens.revoke("b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "A"},
        {"name": "a b"},
        {"name": "../a"},
        {"name": "operator"},
        {"name": "a" * 64},
        {"scopes": []},
        {"models": []},
        {"models": [""]},
        {"models": ["[a-z]"]},
        {"models": ["m/../n"]},
        {"models": ["M"]},
        {"actor_prefix": "x" * 128},
        {"actor_prefix": "é" * 64},
        {"actor_prefix": "a\n"},
        {"actor_prefix": "\ud800"},
    ],
)
def test_what_no_token_says(data_dir: Path, wrong: dict[str, Any]) -> None:
    """A token that could never match, or would match more than it seems to, is not made."""
    given: dict[str, Any] = {"name": "a", "scopes": ["act"], **wrong}

    with pytest.raises(InvalidValue):
        Tokens(data_dir).create(**given)
    assert not (data_dir / FILE).exists()


def test_every_model_has_a_pattern() -> None:
    """A model's id is a pattern of itself: whatever an id may have, a pattern may."""
    assert MODEL_ID.fullmatch("a0_-")
    assert PATTERN.fullmatch("a0_-")


def test_no_data_directory(tmp_path: Path) -> None:
    """A mistyped directory does not get a file of tokens that no server reads."""
    with pytest.raises(DataDirError, match="a data directory of a service"):
        Tokens(tmp_path)


def damaged(path: Path, case: str) -> None:
    """Damage a file of tokens in some way."""
    said = json.loads(path.read_text())
    text = path.read_text()
    if case == "cut":
        text = text[:-20]
    elif case == "empty":
        text = ""
    elif case == "bytes":
        text = "\udcff" + text
    elif case == "deep":
        text = "[" * 100_000
    elif case == "twice":
        text = json.dumps({**said, "tokens": said["tokens"] * 2})
    elif case == "format":
        text = json.dumps({**said, "format": 2})
    elif case == "field":
        text = json.dumps({**said, "tokens": [{**said["tokens"][0], "all": True}]})
    elif case == "scope":
        text = json.dumps({**said, "tokens": [{**said["tokens"][0], "scopes": ["root"]}]})
    elif case == "digest":
        text = json.dumps({**said, "tokens": [{**said["tokens"][0], "sha256": "00"}]})
    path.write_text(text, errors="surrogateescape")
    if case == "mode":
        path.chmod(0o644)
    elif case == "folder":
        path.unlink()
        path.mkdir()


DAMAGES = (
    *("cut", "empty", "bytes", "deep", "twice", "format"),
    *("field", "scope", "digest", "mode", "folder"),
)


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_file(
    data_dir: Path, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server goes on with what it knew, a start and a command refuse; nobody else gets in."""
    monkeypatch.setattr(watched, "YOUNG", 0)
    token = Tokens(data_dir).create("a", ["act"]).encode()
    running = keyring_of(data_dir)
    damaged(data_dir / FILE, case)

    assert running.grant(token).name == "a"
    assert running.grant(OPERATORS.encode()) is OPERATOR
    with pytest.raises(Unauthenticated):
        running.grant(b"another")
    (record,) = caplog.records
    assert FILE in record.getMessage()
    assert token.decode() not in record.getMessage()
    with pytest.raises(DataDirError):
        keyring_of(data_dir)
    with pytest.raises(DataDirError):
        Tokens(data_dir).create("b", ["act"])


# -- keyrings -----------------------------------------------------------------------------------


def one(_: Path) -> Keyring:
    """A keyring with one token."""
    return OneToken(OPERATORS)


@pytest.mark.parametrize("build", [one, keyring_of])
def test_keyring_contract(data_dir: Path, build: Any) -> None:
    """The operator's token is known, whole and exactly; nothing else is."""
    keyring = build(data_dir)

    assert keyring.grant(OPERATORS.encode()) is OPERATOR
    for wrong in ("", OPERATORS[:-1], OPERATORS + "x", OPERATORS.upper(), "\0" * 32):
        with pytest.raises(Unauthenticated) as raised:
            keyring.grant(wrong.encode())
        assert not wrong or wrong not in str(raised.value)


def test_changes_are_seen_at_once(data_dir: Path) -> None:
    """A running server knows a token when it has been made, and not when it has been revoked."""
    keyring, tokens = keyring_of(data_dir), Tokens(data_dir)
    for n in range(100):
        token = tokens.create(f"t{n}", ["act"]).encode()
        assert keyring.grant(token).name == f"t{n}"
        tokens.revoke(f"t{n}")
        with pytest.raises(Unauthenticated):
            keyring.grant(token)


def test_operators_token_is_replaced(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new one holds, the old one does not; one that is gone or open changes nothing."""
    keyring, path = keyring_of(data_dir), data_dir / "operator-token"
    path.write_text("another-of-the-operator")
    assert keyring.grant(b"another-of-the-operator") is OPERATOR
    with pytest.raises(Unauthenticated):
        keyring.grant(OPERATORS.encode())

    path.write_text("a-third-of-the-operator")
    path.chmod(0o644)
    assert keyring.grant(b"another-of-the-operator") is OPERATOR
    path.unlink()
    assert keyring.grant(b"another-of-the-operator") is OPERATOR
    with pytest.raises(Unauthenticated):
        keyring.grant(b"a-third-of-the-operator")
    assert "mode 0600" in caplog.text
    assert "No such file" in caplog.text
    assert "of-the-operator" not in caplog.text


def test_expiry(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is good until its time, not from then on; its bearer is told."""
    now = [1_000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    token = Tokens(data_dir).create("a", ["act"], seconds=10).encode()
    keyring = keyring_of(data_dir)
    now[0] = 1_009.9
    assert keyring.grant(token).name == "a"
    now[0] = 1_010.0

    with pytest.raises(Unauthenticated, match="one whose time is over"):
        keyring.grant(token)


# -- several at once ----------------------------------------------------------------------------


def churn(data_dir: Path, name: str, start: Any) -> None:
    """Make twenty tokens and revoke every second one."""
    start.wait()
    tokens = Tokens(data_dir)
    for n in range(20):
        tokens.create(f"{name}-{n}", ["act"])
        if n % 2:
            tokens.revoke(f"{name}-{n - 1}")


def test_many_commands_at_once(data_dir: Path) -> None:
    """No command undoes what another one does; a reader never sees half a file."""
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    workers = [context.Process(target=churn, args=(data_dir, name, start)) for name in "abcd"]
    for worker in workers:
        worker.start()
    start.set()
    while any(worker.is_alive() for worker in workers):
        read_tokens(data_dir / FILE)
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0] * 4
    kept = {token.name for token in read_tokens(data_dir / FILE)}
    assert kept == {f"{name}-{n}" for name in "abcd" for n in range(1, 20, 2)}
    assert sorted(p.name for p in data_dir.iterdir()) == ["models", "operator-token", FILE]
