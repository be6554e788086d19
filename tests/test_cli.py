"""The command line: light help, exact output, and errors of one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.cli import COMMANDS, main
from jormungandr.cli.train import parse_settings
from jormungandr.errors import InvalidValue
from jormungandr.version import __version__
from tests.service.serving import Server

Capture = pytest.CaptureFixture[str]
QUICK = ["--steps", "300", "--eval-episodes", "3", "--set", "pacing.learning_starts=100"]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in another process."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def failed(capsys: Capture, arguments: list[str]) -> str:
    """Run a command that must fail with status 1 and one line, and return that line."""
    status = main(arguments)
    captured = capsys.readouterr()

    assert status == 1
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"jormungandr {arguments[0]}: ")
    return captured.err.strip()


# -- help ---------------------------------------------------------------------------------------


def test_help_is_light() -> None:
    """The help of every command loads neither torch nor a server."""
    code = f"""
import contextlib, io, json, sys
from jormungandr.cli import main
for given in ([], *([name] for name in {list(COMMANDS)!r})):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            main([*given, "--help"])
        except SystemExit as end:
            assert end.code == 0
    assert text.getvalue().startswith("usage: jormungandr")
print(json.dumps(sorted(sys.modules)))
"""
    done = python("-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}

    assert loaded & {"torch", "safetensors", "uvicorn", "starlette", "stable_baselines3"} == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_argument(capsys: Capture, command: str) -> None:
    """Each argument of each command has a word of explanation."""
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    text = capsys.readouterr().out

    assert end.value.code == 0
    assert COMMANDS[command] in text
    for name in re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^  {name}(?: [A-Z_=]+| \{{.*\}})?\s+\S", text, re.MULTILINE), name


def test_version() -> None:
    """``python -m jormungandr`` is the command line, and says its version."""
    done = python("-m", "jormungandr", "--version")

    assert (done.returncode, done.stdout) == (0, f"jormungandr {__version__}\n")


# -- train and evaluate -------------------------------------------------------------------------


def test_train_then_evaluate(capsys: Capture, tmp_path: Path) -> None:
    """Training prints its progress, saves what it learned, and evaluating finds the same policy."""
    out = tmp_path / "runs" / "cartpole"
    steps = ["--steps", "500", "--eval-episodes", "4", "--set", "pacing.learning_starts=100"]
    steps += ["--eval-every", "500"]
    steps += ["--set", "c51.support=[0,100]", "--seed", "3"]
    assert main(["train", "CartPole-v1", *steps, "--out", str(out)]) == 0
    trained = capsys.readouterr().out.splitlines()

    assert trained[0] == "CartPole-v1: 500 steps, seed 3"
    assert re.fullmatch(
        r"  step      500  updates     200  episodes +\d+  mean return +\d+\.\d\d +\d+\.\d s"
        r"  held out +\d+\.\d\d best",
        trained[2],
    )
    evaluate = f"jormungandr evaluate CartPole-v1 --policy {out / 'best'}"
    assert trained[3] == f"latest and best kept in {out} ({evaluate})"
    assert trained[4] == "CartPole-v1, 4 episodes, seeds from 1000000000"
    assert trained[7] == "  A: the trained policy (policy version 200, after 200 updates)"
    learner = Learner.load(out / "latest")
    assert (learner.update_count, learner.spec.seed, learner.spec.pacing.learning_starts) == (
        200,
        3,
        100,
    )
    assert learner.info()["transitions"] == {"train": 500, "validation": 0}

    for policy in (out / "latest", out / "latest" / "policy.safetensors", out / "best"):
        evaluate = ["evaluate", "CartPole-v1", "--policy", str(policy), "--episodes", "4"]
        assert main(evaluate) == 0
        evaluated = capsys.readouterr().out.splitlines()
        assert evaluated[:3] == trained[4:7]
        assert evaluated[3:] == [f"  A: {policy} (policy version 200, after 200 updates)"]


def test_training_is_repeatable(capsys: Capture, tmp_path: Path) -> None:
    """The same seed trains the same policy, to the bit; another one does not."""
    digests = []
    for n, seed in enumerate(["1", "1", "2"]):
        out = tmp_path / str(n)
        assert main(["train", "CartPole-v1", *QUICK, "--seed", seed, "--out", str(out)]) == 0
        digests.append(PolicySnapshot.open(out / "latest").digest())
    capsys.readouterr()

    assert digests[0] == digests[1] != digests[2]


def test_train_saves_over_its_own(capsys: Capture, tmp_path: Path) -> None:
    """An empty folder is taken; a training is replaced when that is asked for."""
    train = ["train", "CartPole-v1", *QUICK, "--out", str(tmp_path)]
    assert main([*train, "--seed", "1"]) == 0
    capsys.readouterr()
    line = failed(capsys, [*train, "--seed", "2"])
    assert "--out: expected a new folder, --resume or --overwrite" in line
    assert Learner.load(tmp_path / "latest").spec.seed == 1
    assert main([*train, "--seed", "2", "--overwrite"]) == 0
    capsys.readouterr()

    assert Learner.load(tmp_path / "latest").spec.seed == 2


@pytest.mark.parametrize("what", ["folder", "file"])
def test_train_replaces_nothing_else(capsys: Capture, tmp_path: Path, what: str) -> None:
    """What is no training of ours is not put out of the way, and that is said before training."""
    target = tmp_path / "target"
    notes = target / "notes" if what == "folder" else target
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("precious")
    line = failed(capsys, ["train", "CartPole-v1", "--steps", "100000000", "--out", str(target)])

    assert "--out: expected a new folder, or one of an earlier training" in line
    assert notes.read_text() == "precious"


def test_train_on_ou_spread(capsys: Capture) -> None:
    """On OUSpread-v0 the comparison with reference and optimum comes along."""
    arguments = ["train", "OUSpread-v0", "--preset", "ou-note", "--steps", "96"]
    assert main([*arguments, "--eval-episodes", "2"]) == 0
    text = capsys.readouterr().out

    assert "1,000 held-out paths of OUSpread-v0" in text
    assert [name for name in ("policy", "reference", "optimum") if f"  {name} " in text] == [
        "policy",
        "reference",
        "optimum",
    ]


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ([], {}),
        (["seed=3"], {"seed": 3}),
        (["c51.lr=0.001", "c51.atoms=21"], {"c51": {"lr": 0.001, "atoms": 21}}),
        (["c51.support=[0, 100]"], {"c51": {"support": [0, 100]}}),
        (["c51.double=true", "auxiliary=null"], {"c51": {"double": True}, "auxiliary": None}),
        (["staleness.mode=drop"], {"staleness": {"mode": "drop"}}),
        (["algorithm=c51="], {"algorithm": "c51="}),
        (['x={"y": 1}', "x.z=2"], {"x": {"y": 1, "z": 2}}),
        (["seed=1", "seed=2"], {"seed": 2}),
    ],
)
def test_settings(given: list[str], fields: dict[str, Any]) -> None:
    """A path and a value make nested fields; the last one wins."""
    assert parse_settings(given) == fields


@pytest.mark.parametrize(
    "given", [["seed"], ["=3"], [""], ["c51=1", "c51.lr=2"], ["seed=1", "seed.x=2"]]
)
def test_settings_that_are_none(given: list[str]) -> None:
    """Without a path, a value, or a group to put it in, a setting is refused."""
    with pytest.raises(InvalidValue, match="--set"):
        parse_settings(given)


def test_set_reaches_the_specification(capsys: Capture, tmp_path: Path) -> None:
    """What is set is in the saved specification, and the seed, which has an argument of its own."""
    settings = ["--set", "c51.n_step=3", "--set", "c51.hidden=16", "--seed", "9"]
    assert main(["train", "CartPole-v1", *QUICK, *settings, "--out", str(tmp_path / "m")]) == 0
    capsys.readouterr()
    spec = Learner.load(tmp_path / "m" / "latest").spec

    assert (spec.c51.n_step, spec.c51.layers, spec.seed) == (3, (16, 16), 9)


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("train NoSuchEnv-v0", "NoSuchEnv"),
        ("train no_such_package:Env-v0", "no_such_package"),
        ("train Pendulum-v1", "action_space: expected a Discrete"),
        ("train Blackjack-v1", "observation_space: expected a Box"),
        ("train CartPole-v1 --steps 0", "--steps: expected >= 1"),
        ("train CartPole-v1 --eval-episodes 1", "--eval-episodes: expected >= 2"),
        ("train CartPole-v1 --seed -1", "seed: expected 0..2**63-1"),
        ("train CartPole-v1 --set c51.lr", "--set: expected PATH=VALUE"),
        ("train CartPole-v1 --set c51.lrr=1", "c51.lrr: expected one of ['atoms', "),
        ("train CartPole-v1 --set c51.lr=-1", "c51.lr: expected a number > 0"),
        (
            "train CartPole-v1 --preset ou-note",
            "--preset: expected 4 features and 2 actions, as CartPole-v1",
        ),
        (
            "train Acrobot-v1 --preset ou-note",
            "--preset: expected 6 features and 3 actions, as Acrobot-v1",
        ),
        ("actor OUSpread-v0 --model m --actor-id a", "url: expected an address"),
        ("actor Nothing-v0 --model m --actor-id a --url http://127.0.0.1:1", "Nothing"),
        ("actor OUSpread-v0 --model m --actor-id a --url here", "url: expected http://host:port"),
        ("demo --episodes 0", "--episodes: expected 1.."),
        ("demo --paths 1", "--paths: expected >= 2"),
        ("serve --data-dir DIR --host 0.0.0.0", "--host: expected an address of this machine"),
        ("serve --data-dir DIR --port 70000", "--port: expected 0..65535"),
    ],
)
def test_error(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, text: str
) -> None:
    """What cannot be done is said in one line, with status 1, and without a trace."""
    monkeypatch.delenv("JORMUNGANDR_URL", raising=False)
    monkeypatch.chdir(Path(__file__).parents[1])
    given = arguments.replace("DIR", str(tmp_path / "d")).split()

    assert text in failed(capsys, given)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["train"],
        ["train", "CartPole-v1", "--steps", "many"],
        ["train", "CartPole-v1", "--preset", "nothing"],
        ["evaluate"],
        ["actor", "OUSpread-v0"],
        ["actor", "OUSpread-v0", "--model", "m", "--actor-id", "a", "--split", "test"],
        ["demo", "--lockstep", "--free"],
        ["serve"],
        ["serve", "--data-dir", "d", "--unknown"],
    ],
)
def test_bad_arguments(capsys: Capture, arguments: list[str]) -> None:
    """Arguments that do not parse end with status 2 and the usage."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()

    assert end.value.code == 2
    assert captured.err.startswith("usage: jormungandr")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        (["train", "CartPole-v1"], "torch", "learner"),
        (["demo", "--in-process"], "torch", "learner"),
        (["serve", "--data-dir", "DIR"], "uvicorn", "service"),
    ],
)
def test_missing_extra(
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    missing: str,
    extra: str,
) -> None:
    """A command whose packages are not there says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    for name in list(sys.modules):  # other tests have imported them, with all they need
        if name.startswith("jormungandr.learner"):
            monkeypatch.delitem(sys.modules, name)
    given = [str(tmp_path / "d") if word == "DIR" else word for word in arguments]

    assert main(given) == 1
    assert capsys.readouterr().err == (
        f'jormungandr {given[0]} needs {missing}: pip install "jormungandr-rl[{extra}]"\n'
    )


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with the status that shells know."""
    import jormungandr.cli.demo

    def interrupted(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(jormungandr.cli.demo, "run", interrupted)

    assert main(["demo"]) == 130


# -- actor --------------------------------------------------------------------------------------


def test_actor(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor makes the model from the environment, plays, and prints a line for each episode."""
    with Server(tmp_path) as server:
        monkeypatch.setenv("JORMUNGANDR_URL", server.url)
        monkeypatch.setenv("JORMUNGANDR_TOKEN_FILE", str(tmp_path / "operator-token"))
        monkeypatch.delenv("JORMUNGANDR_TOKEN", raising=False)
        common = ["actor", "OUSpread-v0", "--model", "spread", "--episodes", "2", "--seed", "5"]
        assert main([*common, "--actor-id", "one"]) == 0
        first = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert main([*common, "--actor-id", "two", "--split", "validation"]) == 0
        second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        with server.connect("spread") as endpoint:
            info = endpoint.wait(second[-1]["lsn"])

        assert main(["actor", "CartPole-v1", "--model", "spread", "--actor-id", "three"]) == 1
        assert capsys.readouterr().err.count("\n") == 1

    assert [line["length"] for line in first + second] == [48] * 4
    assert first[0]["info"]["reference_return"] == second[0]["info"]["reference_return"]
    assert info["transitions"] == {"train": 96, "validation": 96}
    assert info["spec"]["observation"]["shape"] == [4]
    assert info["mixed_episodes"] == 0
