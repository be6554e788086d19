"""``jormungandr token`` in a directory at rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jormungandr.cli import main
from jormungandr.cli.token import CHOICES
from jormungandr.service.access.keyring import FileKeyring
from jormungandr.service.access.tokens import FILE, Tokens
from jormungandr.service.http.grants import SCOPES, Grant


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory."""
    (tmp_path / "models").mkdir()
    return tmp_path


def command(data_dir: Path, *arguments: str) -> int:
    """Run the command; return its exit status."""
    try:
        return main(["token", *arguments, "--data-dir", str(data_dir)])
    except SystemExit as ended:  # of argparse
        return int(str(ended.code))


def test_life_of_a_token(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed once, alone; it allows what was asked for; it is listed, and revoked."""
    line = ["--scope", "actor", "--scope", "label", "--model", "ou*", "--model", "x"]
    line += ["--actor-prefix", "d/", "--split", "train", "--days", "2"]
    assert command(data_dir, "create", "desk", *line) == 0
    out, err = capsys.readouterr()
    token = out.strip()
    assert out == f"{token}\n"
    assert token not in err
    scopes = frozenset({"act", "ingest", "policy", "label"})
    keyring = FileKeyring(data_dir, data_dir / "operator-token")
    assert keyring.grant(token.encode()) == Grant("desk", scopes, ("ou*", "x"), "d/", "train")
    (kept,) = Tokens(data_dir).list()
    assert kept.expires == kept.created + 2 * 86_400

    assert command(data_dir, "list") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["name", "scopes", "models", "actor"]
    assert row.split()[:5] == ["desk", "act,ingest,policy,label", "ou*,x", "d/", "train"]
    assert token not in row
    assert kept.sha256 not in row

    assert command(data_dir, "revoke", "desk") == 0
    assert capsys.readouterr().out == "revoked desk\n"
    assert Tokens(data_dir).list() == ()


def test_defaults(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token is for all models, actors and splits unless it says less, and has no end."""
    assert command(data_dir, "create", "a", "--scope", "observe") == 0
    assert command(data_dir, "list") == 0
    row = capsys.readouterr().out.splitlines()[-1]

    assert row.split()[:5] == ["a", "observe", "*", "-", "both"]
    assert row.endswith("no end")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke", "nobody"], "expected the name of a token, got 'nobody'"),
        (["create", "Desk", "--scope", "act"], "name: expected to match"),
        (["create", "d", "--scope", "act", "--days", "0"], "--days: expected more than 0"),
        (["create", "d", "--scope", "act", "--days", "nan"], "--days: expected more than 0"),
        (["create", "d", "--scope", "act", "--model", "[a]"], "models: expected to match"),
        (["create", "d", "--scope", "act", "--split", "test"], "invalid choice: 'test'"),
        (["create", "d", "--scope", "root"], "invalid choice: 'root'"),
        (["create", "d"], "the following arguments are required: --scope"),
    ],
)
def test_what_is_refused(
    data_dir: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no token may say is refused in a line, and nothing is printed or made."""
    assert command(data_dir, *arguments) in (1, 2)

    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert not (data_dir / FILE).exists()


def test_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped directory is named, and nothing is made in it."""
    assert command(tmp_path, "create", "a", "--scope", "act") == 1
    assert "expected a data directory of a service" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_document_names_every_scope() -> None:
    """docs/security.md says what each scope allows; the command takes exactly those."""
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [*SCOPES, "actor"]
    assert set(CHOICES) == {*SCOPES, "actor"}
