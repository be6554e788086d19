"""The version is written once, and everything that states it agrees."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import jormungandr
from jormungandr import Learner, ModelSpec

ROOT = Path(__file__).parents[1]


def test_packaging_reads_the_same_file() -> None:
    """The wheel's version is dynamic, and comes from the line that `__version__` comes from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    path = ROOT / project["tool"]["hatch"]["version"]["path"]
    written = re.findall(r'^__version__ = "(.+)"$', path.read_text(), re.MULTILINE)

    assert project["project"]["dynamic"] == ["version"]
    assert written == [jormungandr.__version__]


def test_changelog_begins_with_this_version() -> None:
    """The newest heading of the changelog is the version that would be released."""
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] == jormungandr.__version__


def test_checkpoint_states_the_version(small: Callable[..., ModelSpec], tmp_path: Path) -> None:
    """A saved learner says which version wrote it."""
    Learner(small()).save(tmp_path / "saved")
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())

    assert manifest["version"] == jormungandr.__version__
