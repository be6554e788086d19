"""The package: its names, what it asks for, its example, and its place in the RL Zoo."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import jormungandr.sb3
from jormungandr.sb3 import C51

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "rl_zoo" / "train_c51.py"
SETTINGS = ROOT / "examples" / "rl_zoo" / "c51.yml"


def run(*arguments: str | Path, cwd: Path) -> str:
    """Run Python on one thread, warnings being errors, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_public_names() -> None:
    """The public face is this list; a change to it is a decision."""
    assert jormungandr.sb3.__all__ == [
        "C51",
        "AnnealedRate",
        "C51Policy",
        "CategoricalNetwork",
        "CnnPolicy",
        "MlpPolicy",
        "MultiInputPolicy",
        "ObservationMoments",
        "PrioritizedDictReplayBuffer",
        "PrioritizedReplayBuffer",
        "PrioritizedSamples",
    ]
    assert all(getattr(jormungandr.sb3, name) is not None for name in jormungandr.sb3.__all__)


@pytest.mark.parametrize("missing", ["stable_baselines3", "torch"])
def test_without_the_extra_it_names_the_pip_line(missing: str, tmp_path: Path) -> None:
    """Without Stable-Baselines3 the import says what to install; the rest of us works."""
    code = f"""
import sys
sys.modules[{missing!r}] = None
import jormungandr
try:
    import jormungandr.sb3
except ModuleNotFoundError as error:
    print(error)
"""
    message = 'jormungandr.sb3 needs Stable-Baselines3: pip install "jormungandr-rl[sb3]"\n'

    assert run("-W", "error", "-c", code, cwd=tmp_path) == message


def test_example(tmp_path: Path) -> None:
    """The example trains, writes what SB3's plots read, and prints where its policy stands."""
    script = ROOT / "examples" / "sb3_c51.py"
    printed = run("-W", "error", script, "--timesteps", "2000", "--episodes", "300", cwd=tmp_path)
    results = np.load(tmp_path / "sb3_c51" / "evaluations.npz")["results"]
    closed = re.search(r"^gap closed (-?\d+)%$", printed, re.MULTILINE)

    assert results.shape == (2, 100)
    assert closed is not None
    assert int(closed[1]) > 0


def test_zoo_script_registers_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script enters C51 into the zoo's table and hands over to the zoo's own command."""
    calls: list[str] = []
    zoo, train = types.ModuleType("rl_zoo3"), types.ModuleType("rl_zoo3.train")
    zoo.ALGOS = {"dqn": None}  # type: ignore[attr-defined]
    zoo.train = train  # type: ignore[attr-defined]
    train.train = lambda: calls.append("train")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rl_zoo3", zoo)
    monkeypatch.setitem(sys.modules, "rl_zoo3.train", train)
    runpy.run_path(str(SCRIPT), run_name="__main__")

    assert zoo.ALGOS == {"dqn": None, "c51": C51}
    assert calls == ["train"]


@pytest.mark.slow
def test_zoo_trains(tmp_path: Path) -> None:
    """The documented command leaves the zoo's run folder, with a model that loads."""
    pytest.importorskip("rl_zoo3")
    arguments = f"--algo c51 --env OUSpread-v0 --gym-packages jormungandr -conf {SETTINGS} -n 2000"
    run(SCRIPT, *arguments.split(), "-f", tmp_path / "logs", cwd=tmp_path)
    folder = tmp_path / "logs" / "c51" / "OUSpread-v0_1"
    loaded = C51.load(folder / "OUSpread-v0.zip", device="cpu")

    assert (folder / "0.monitor.csv").exists()
    assert (folder / "OUSpread-v0" / "config.yml").exists()
    assert (loaded.n_envs, loaded.num_timesteps) == (4, 2_000)
