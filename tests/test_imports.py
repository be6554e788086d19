"""Who imports whom: the arrows of the architecture, light imports, the message without torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jormungandr

ROOT = Path(__file__).parents[1]
TORCH_MODULES = {"torch", "safetensors", "stable_baselines3"}

#: A module imports from lower layers, and from its own package; `protocol` alone imports a sibling.
LAYERS: list[set[str]] = [
    {"errors", "version", "durable", "failpoints", "numerics", "registering"}
    | {"row_forward", "streams"},
    {"spaces", "checks", "presets", "manifest", "tally", "lag", "nesting", "http1"},
    {"settings"},
    {"spec", "protocol", "transport", "vectors"},
    {"encoding", "ids", "steps", "inputs", "weights"},
    {"tags", "splits"},
    {"prediction", "columns", "episode", "forward", "outbox", "policy_file"},
    {"questions", "heldout", "held_steps"},
    {"rows", "ledger", "policy", "wire", "packed", "recorder", "records", "trial", "typed_rows"},
    {"admission", "actors", "bundle", "encoder", "off_policy"},
    {"client", "learner"},
    {"service", "sb3"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules(folder: Path) -> dict[str, ast.Module]:
    """Return every module below `folder` by dotted name."""
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(folder.rglob("*.py"))
    }


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield what is imported at run time, anywhere in a module, as dotted names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imported(other)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node)


OURS = modules(ROOT / "jormungandr")
ENVS = modules(ROOT / "jormungandr_envs")
WRAPPERS = modules(ROOT / "wrappers" / "jormungandr_wrappers")


def part(name: str) -> str:
    """Return the piece of our package a dotted name belongs to; "" is the package itself."""
    pieces = name.split(".")
    return pieces[1] if len(pieces) > 1 else ""


def arrows() -> Iterator[tuple[str, str]]:
    """Yield (importing module, piece imported) for our own package."""
    for module, tree in OURS.items():
        if module in ("jormungandr.__init__", "jormungandr.__main__"):
            continue
        for name in imported(tree):
            if name.split(".")[0] == "jormungandr":
                yield module, part(name)


def test_every_module_has_a_layer() -> None:
    """A new module must be given its place before anything may import it."""
    pieces = {part(name) for name in OURS} - {"__init__", "__main__"}

    assert pieces <= set(RANK)


def test_arrows_point_one_way() -> None:
    """No module imports a higher layer, nor a sibling of its own layer outside its package."""
    wrong = [
        (module, piece)
        for module, piece in arrows()
        if part(module) != piece
        and (part(module), piece) != ("protocol", "spec")
        and RANK.get(piece, len(LAYERS)) >= RANK[part(module)]
    ]

    assert wrong == []


def test_numerics_and_ledger_import_nothing_of_ours() -> None:
    """Numerics are pure functions and the ledger is storage-neutral: neither knows the rest.

    The ledger keeps tallies, which are numbers only.
    """
    wrong = [
        (module, piece)
        for module, piece in arrows()
        if (part(module) == "numerics" and piece not in ("numerics", "errors"))
        or (part(module) == "ledger" and piece != "tally")
    ]

    assert wrong == []


def deferred(tree: ast.Module) -> set[str]:
    """Return what is imported inside functions only."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside = [n for node in ast.walk(tree) if isinstance(node, functions) for n in imported(node)]
    total = list(imported(tree))
    return {name for name in inside if total.count(name) == inside.count(name)}


#: Of the service, what imports the learner, and in functions only: child processes run it.
IN_CHILDREN = {"jormungandr.service.child.recovery", "jormungandr.service.tools.rebuild"}


def test_service_reaches_the_learner_only_inside_a_child() -> None:
    """The learner process imports it in recovery.py, the one that `verify` starts in rebuild.py."""
    wrong = [
        (module, name)
        for module, tree in OURS.items()
        if part(module) == "service"
        for name in imported(tree)
        if part(name) == "learner" and not (module in IN_CHILDREN and name in deferred(tree))
    ]

    assert wrong == []
    runs_it = "jormungandr.service.tools.rebuild"
    assert not [m for m, tree in OURS.items() if any(runs_it in name for name in imported(tree))]


def test_torch_stays_in_its_places() -> None:
    """Torch is imported by learner/, sb3/ and numerics/{categorical,returns}.py, nowhere else.

    Except in the functions that set up a learner process, and the one that runs it again.
    """
    using = {
        module
        for module, tree in {**OURS, **ENVS, **WRAPPERS}.items()
        if any(name.split(".")[0] == "torch" for name in imported(tree))
        and part(module) not in ("learner", "sb3")
        and not (module in IN_CHILDREN and "torch" in deferred(tree))
    }

    assert using <= {"jormungandr.numerics.categorical", "jormungandr.numerics.returns"}


def test_environments_import_nothing_of_ours() -> None:
    """The environments stand alone: the learner is one of their users, not their base."""
    wrong = {
        (module, name)
        for module, tree in ENVS.items()
        for name in imported(tree)
        if name.split(".")[0] in ("jormungandr", "jormungandr_wrappers", "torch")
    }

    assert wrong == set()


def test_wrappers_import_what_an_actor_needs_only() -> None:
    """Wrappers are handed an Endpoint; they know its protocol, not what is behind it."""
    known = {"protocol", "errors", "spaces", "episode", "outbox", "steps"}
    wrong = {
        (module, name)
        for module, tree in WRAPPERS.items()
        for name in imported(tree)
        if name.split(".")[0] in ("jormungandr", "jormungandr_envs") and part(name) not in known
    }

    assert wrong == set()


def test_public_names() -> None:
    """The public face is this list; a change to it is a decision."""
    assert jormungandr.__all__ == [
        "Endpoint",
        "EpisodeRecorder",
        "Evaluation",
        "InferenceReply",
        "Label",
        "LabelReceipt",
        "Learner",
        "ModelSpec",
        "PolicySnapshot",
        "Receipt",
        "RemoteLearner",
        "RemotePolicy",
        "Transition",
        "__version__",
        "errors",
    ]
    assert all(getattr(jormungandr, name) is not None for name in jormungandr.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    """The lazy name does not hide typos."""
    with pytest.raises(AttributeError, match=r"module 'jormungandr' has no attribute 'Lerner'"):
        jormungandr.Lerner  # noqa: B018


def run(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_registered_though_somebody_looked_first() -> None:
    """A look whether Gymnasium is installed is not its import; modules are attributes as ever."""
    look = "import importlib.util; importlib.util.find_spec('gymnasium')"
    use = "import gymnasium; print(gymnasium.spec('OUSpread-v0').id, jormungandr.spec.__name__)"

    assert run(f"import jormungandr; {look}; {use}") == "OUSpread-v0 jormungandr.spec"


@pytest.mark.parametrize(
    "name",
    [
        "jormungandr",
        "jormungandr.admission",
        "jormungandr.bundle",
        "jormungandr.client",
        "jormungandr.ledger",
        "jormungandr.numerics.moments",
        "jormungandr.numerics.sum_tree",
        "jormungandr.policy",
        "jormungandr.recorder",
        "jormungandr.rows",
        "jormungandr.wire",
        "jormungandr_envs",
    ],
)
def test_light_import_loads_no_torch(name: str) -> None:
    """An actor's imports load neither torch nor anything that needs it."""
    loaded = json.loads(run(f"import sys, json, {name}; print(json.dumps(list(sys.modules)))"))

    assert TORCH_MODULES.intersection(loaded) == set()


def test_import_is_quick() -> None:
    """Importing jormungandr takes under half a second of processor time, at best of three."""
    code = (
        "import time; start = time.process_time(); import jormungandr;"
        "print(time.process_time() - start)"
    )

    assert min(float(run(code)) for _ in range(3)) < 0.5


@pytest.mark.parametrize("missing", ["torch", "safetensors"])
def test_learner_without_torch_names_the_pip_line(missing: str) -> None:
    """Without the extra, `Learner` says what to install, and everything else works."""
    code = f"""
import sys
sys.modules[{missing!r}] = None
import jormungandr
jormungandr.ModelSpec.preset("ou-note")
try:
    jormungandr.Learner
except ModuleNotFoundError as error:
    print(error)
"""

    assert run(code) == 'Learner needs torch: pip install "jormungandr-rl[learner]"'
