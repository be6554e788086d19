"""The documents say what is true: code runs, links lead somewhere, lists are whole."""

import re
from pathlib import Path

import pytest

from jormungandr.errors import BY_CODE
from tests.forked import Forks

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets() -> list[tuple[str, str]]:
    """Return (name, code) of every Python block that is not marked ``no-run``."""
    found = []
    for path in DOCUMENTS:
        for i, match in enumerate(SNIPPET.finditer(path.read_text(encoding="utf-8"))):
            found.append((f"{path.name}-{i}", match[1]))
    return found


@pytest.mark.parametrize("code", [s[1] for s in snippets()], ids=[s[0] for s in snippets()])
def test_snippet_runs(code: str, tmp_path: Path, forks: Forks) -> None:
    """A Python block runs as it stands, and prints what a comment after a print says."""
    done = forks.run(code, tmp_path)

    assert done.returncode == 0, done.stderr
    promised = re.findall(r"^print\(.*\n# (.*)$", code, re.MULTILINE)
    for line in promised:
        assert line in done.stdout.splitlines()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """A relative link names a file of the repository."""
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


def test_protocol_lists_every_error_code() -> None:
    """docs/protocol.md has exactly the codes that a service answers with."""
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8").partition("## Errors")[2]
    listed = set(re.findall(r"`([a-z_]+)`", text.partition("|---|---|")[2]))
    bases = {"invalid_input", "conflict", "too_many_requests"}  # raised as one of their children
    local = {"checkpoint_invalid", "data_dir", "model_gone"}  # of files, or found by the client

    assert listed == set(BY_CODE) - bases - local
