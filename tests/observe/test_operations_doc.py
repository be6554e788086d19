"""docs/operations.md: every figure and every check that it names is there, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

from jormungandr.service.diagnosis.finding import EXIT_CODES
from jormungandr.service.observe.meters import Meters
from jormungandr.service.observe.process import process_families
from jormungandr.service.observe.scrape import _ModelFigures, _service
from tests.service.conftest import App

DOC = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_figure(app: App) -> None:
    """The table has exactly the figures that a service tells."""
    meters = Meters()
    meters.connections = lambda: 0
    meters.turned_away = dict
    families = [*_service(app.gateway, meters, app.path), *_ModelFigures(app.gateway).families()]
    families += [*meters.families(), *process_families()]
    table = [line for line in DOC.splitlines() if line.startswith(("| `jorm", "| `proc"))]
    named = {
        name
        for line in table
        for name in re.findall(r"`((?:jormungandr|process)_[a-z_]+)`", line.split("|")[1])
    }

    assert named == {family.name for family in families}


def test_every_check() -> None:
    """The tables have exactly the checks, with the statuses that they end with."""
    rows = re.findall(r"^\| `(\w+)` \| (\d\d) \|", DOC, re.M)

    assert {name: int(status) for name, status in rows} == EXIT_CODES
