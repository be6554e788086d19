"""The documents are what the runs say, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from benchmarks.ablations.__main__ import ABLATIONS
from benchmarks.ablations.report import document as ablations_document
from benchmarks.learning.report import document
from benchmarks.learning.runs import known
from benchmarks.learning.scores import groups
from benchmarks.learning.targets import TARGETS
from benchmarks.learning.tasks import TASKS
from tests.learning_benchmark.made import run

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documents_are_what_the_runs_say() -> None:
    """docs/benchmarks.md, its plots and docs/ablations.md are generated, to the byte."""
    files = document(known())

    for name, text in files.items():
        assert (DOCS / name).read_text("utf-8") == text, name
    there = {f"plots/{path.name}" for path in (DOCS / "plots").glob("*.svg")}
    assert there == {name for name in files if name.endswith(".svg")}
    assert (DOCS / "ablations.md").read_text("utf-8") == ablations_document(known(ABLATIONS))


def test_only_the_newest_settings_are_shown() -> None:
    """Lines with earlier settings do not mix with the later ones, and are counted."""
    old = [run(seed=s, means=[500.0] * 75) for s in range(3)]
    new = [run(seed=s, means=[50.0] * 75, fingerprint="bbb") for s in range(2)]
    found = groups(old + new)["cartpole", "ours"]

    assert [r.fingerprint for r in found.runs] == ["bbb", "bbb"]
    text = document(old + new)["benchmarks.md"]
    assert "| runs with earlier settings, not shown | 3 |" in text
    assert "500.0" not in text


def test_every_target_can_be_judged() -> None:
    """With one run each of ours, none is in the way of the document."""
    runs = [run("ours, preset", task=name, means=[1.0] * _evaluations(name)) for name in TASKS]
    text = document(runs)["benchmarks.md"]
    for target in TARGETS:
        assert f"| {target.task} | {target.level} | {target.text} |" in text


def test_a_verdict_on_fewer_seeds_than_wanted_says_so() -> None:
    """Met by those that there are is not met."""
    for number, words in ((9, " (9 of 10 seeds so far) |"), (10, " |")):
        runs = [run("ours", seed, means=[500.0] * 75) for seed in range(number)]
        text = document(runs)["benchmarks.md"]
        assert f"met: lowest 500, 0 of {74 * number} under{words}" in text


def test_of_more_than_ten_seeds_the_same_share_is_asked() -> None:
    """9 of 10 are 18 of 20."""
    for solved, verdict in ((18, "met: 18 of 20 seeds"), (17, "**missed by 1**: 17 of 20 seeds")):
        runs = [run("ours", s, means=[500.0 * (s < solved)] * 75) for s in range(20)]
        assert f"| {verdict} |" in document(runs)["benchmarks.md"]


def _evaluations(name: str) -> int:
    return TASKS[name].steps // TASKS[name].every


def test_the_document_has_tables_wins_and_curves() -> None:
    """The same from the same runs; a plot where there is a curve; ours over the others."""
    rng = np.random.default_rng(0)
    runs = [
        run(who, seed, means=np.clip(rng.normal(at, 30, 75).cumsum() / 20, -90, 500).tolist())
        for who, at in (("ours, preset", 300), ("SB3 DQN", 100), ("QR-DQN, RL Zoo", -150))
        for seed in range(4)
    ]
    files = document(runs)

    assert files == document(list(runs))
    assert set(files) == {"benchmarks.md", "plots/cartpole.svg"}
    text = files["benchmarks.md"]
    assert re.search(r"\| ours, preset \| SB3 DQN \| 1\.00 \[0\.\d\d, 1\.00\] \|", text)
    assert "![Learning curves on CartPole-v1](plots/cartpole.svg)" in text
    assert text.count("| 50,000 |") == 3
    root = ElementTree.fromstring(files["plots/cartpole.svg"])
    labels = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert "ours, preset (4)" in labels
    lines = [node for node in root.iter() if node.tag.endswith("polyline")]
    assert len(lines) == 3
    for line in lines:
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        assert len(points) == 75
        assert all(56 <= x <= 560 and 28 <= y <= 318 for x, y in points)


def test_no_runs_make_a_document_that_says_so() -> None:
    """Before the first sitting."""
    files = document([])
    assert list(files) == ["benchmarks.md"]
    assert "No runs yet." in files["benchmarks.md"]
    assert "No runs yet." in ablations_document([])
