"""The files of `deploy/`: their commands are ours, their figures told, the unit is taken."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from jormungandr.cli import serve
from jormungandr.cli import token as token_command
from jormungandr.cli.serve_arguments import check
from tests.service.conftest import App
from tests.service.serving import QUIET, experience

DEPLOY = Path(__file__).parents[2] / "deploy"


def text(name: str) -> str:
    """Return a file."""
    return (DEPLOY / name).read_text(encoding="utf-8")


def parsed(words: list[str]) -> argparse.Namespace:
    """Return the arguments of a ``jormungandr serve``."""
    assert words[0] == "serve"
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(words[1:])


def test_the_units_command() -> None:
    """The unit starts a service with arguments that it takes, and waits for its end."""
    unit = text("jormungandr.service")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    program, *words = shlex.split(line)
    arguments = parsed(words)
    check(arguments)

    assert program.endswith("/jormungandr")
    assert arguments.log_format == "json"
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)[0]) > 30
    for wanted in ("Restart=always", "KillSignal=SIGTERM", "LimitNOFILE=", "NoNewPrivileges=yes"):
        assert f"\n{wanted}" in unit


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Systemd finds nothing wrong with it, but for the program that is not installed here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "jormungandr-test.service"
    installed = text("jormungandr.service").replace("/opt/jormungandr/bin/jormungandr", "/bin/true")
    unit.write_text(installed)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    wrong = [line for line in done.stderr.splitlines() if unit.name in line]

    assert wrong == []


def test_the_images_command(app: App) -> None:
    """The image runs a service as nobody in particular, and asks a path that there is."""
    lines = text("Dockerfile").replace("\\\n", " ")
    (given,) = re.findall(r"^CMD \[(.*)\]$", lines, re.M)
    arguments = parsed([word.strip().strip('"') for word in given.split(",")])
    check(arguments)

    assert str(arguments.data_dir) == re.findall(r"^VOLUME (.*)$", lines, re.M)[0]
    assert str(arguments.port) == re.findall(r"^EXPOSE (.*)$", lines, re.M)[0]
    assert re.findall(r"^USER (.*)$", lines, re.M) == ["jormungandr"]
    (path,) = re.findall(r"http://127\.0\.0\.1:8000([^']*)", lines)
    assert app.http.get(path).status_code == 200
    for source in re.findall(r"^COPY (?!--)(.*) \S+$", lines, re.M):
        for name in source.split():
            assert (DEPLOY.parent / name).exists()


def test_the_alerts_figures(app: App) -> None:
    """Every figure and label value that a rule looks at is one that a service tells."""
    app.connect("m").create(QUIET)
    app.connect("m").add(experience(1, 2))
    told = app.request("GET", "/metrics").text
    samples = {re.split(r"[{ ]", line)[0] for line in told.splitlines() if line[0] != "#"}
    rules = text("alerts.yml")
    asked = set(re.findall(r"\b(jormungandr_[a-z_]+)", rules))

    assert len(re.findall(r"- alert:", rules)) == 3
    assert asked - samples == set()
    states = re.findall(r'state=~?"([a-z|]+)"', rules)
    assert all(f'state="{name}"' in told for found in states for name in found.split("|"))
    (route,) = re.findall(r'route="([^"]*)"', rules)
    assert f'route="{route}"' in told


def test_the_scrapes_token() -> None:
    """The command that makes Prometheus' token is one that we take."""
    (line,) = re.findall(r"jormungandr token (create .*)", text("prometheus.yml"))
    parser = argparse.ArgumentParser()
    token_command.add_arguments(parser)
    arguments = parser.parse_args(shlex.split(line))

    assert arguments.scope == ["observe"]
    assert "metrics_path: /metrics" in text("prometheus.yml")
