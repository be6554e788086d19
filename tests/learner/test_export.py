"""Exported artefacts compute what the policy does, without our code; others are not written."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.bundle import FORMATS, MANIFESTS
from jormungandr.errors import ExportError, InvalidValue, PackageMissing
from jormungandr.learner import artefacts
from jormungandr.learner.artefacts import ARTEFACTS
from jormungandr.learner.export import export_policy
from jormungandr.learner.exported import ExportedPolicy
from jormungandr.learner.parity import BATCH, check_parity, policy_outputs, probe
from jormungandr.manifest import read_folder

Arrays = dict[str, NDArray[Any]]

OUTPUTS = ["action", "expected_values", "distribution", "auxiliary_logits"]
#: Runs an artefact on saved inputs, in a process in which our packages cannot be imported.
ALONE = """
import json, sys
import numpy as np

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"jormungandr", "jormungandr_envs", "jormungandr_wrappers"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuses())
given = dict(np.load("inputs.npz"))

def run(folder, function):
    about = json.load(open(folder + "/export.json", encoding="utf-8"))
    inputs = [given[entry["name"]] for entry in about["inputs"]]
    sizes = (1, 2, len(inputs[0]))
    whole = [function(*(x[:n] for x in inputs)) for n in sizes]
    names = [entry["name"] for entry in about["outputs"]]
    for n, got in zip(sizes, whole):
        np.savez(f"{folder}-{n}.npz", **dict(zip(names, got, strict=True)))
"""
WITH_TORCH = """
import torch
extra = {"jormungandr.json": ""}
loaded = torch.jit.load("torchscript/policy.ts", _extra_files=extra)
assert json.loads(extra["jormungandr.json"])["policy_version"] == 7
run("torchscript", lambda *x: [y.numpy() for y in loaded(*map(torch.from_numpy, x))])
extra = {"jormungandr.json": ""}
program = torch.export.load("pt2/policy.pt2", extra_files=extra).module()
assert json.loads(extra["jormungandr.json"])["policy_version"] == 7
run("pt2", lambda *x: [y.numpy() for y in program(*map(torch.from_numpy, x))])
"""
WITH_ONNX = """
sys.modules["torch"] = None
import onnxruntime
session = onnxruntime.InferenceSession("onnx/policy.onnx")
about = json.loads(session.get_modelmeta().custom_metadata_map["jormungandr.json"])
assert about["policy_version"] == 7
names = [entry.name for entry in session.get_inputs()]
run("onnx", lambda *x: session.run(None, dict(zip(names, x, strict=True))))
"""


def moved(spec: ModelSpec) -> PolicySnapshot:
    """Return a policy whose moments lie where float32 would lose the differences."""
    policy = Learner(spec).snapshot()
    rng = np.random.default_rng(1)
    mean = 1e6 * rng.normal(size=policy.mean.shape)
    return replace(policy, mean=mean, var=rng.uniform(1, 9, policy.var.shape), version=7)


@pytest.fixture(scope="module")
def snapshot(small: Callable[..., ModelSpec]) -> PolicySnapshot:
    """A policy with everything at once: moments, action masks, an auxiliary head."""
    return moved(small(action_masks=True))


@pytest.fixture(scope="module")
def exported(snapshot: PolicySnapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of each format that is a graph, and with inputs to run them on."""
    folder = tmp_path_factory.mktemp("exported")
    for name in ("torchscript", "pt2", "onnx"):
        export_policy(snapshot, folder / name, name)
    np.savez(folder / "inputs.npz", **inputs(snapshot, 33))
    return folder


def inputs(snapshot: PolicySnapshot, count: int) -> Arrays:
    """Return observations around a policy's moments, and masks that allow at least one action."""
    rng = np.random.default_rng(2)
    x = snapshot.mean + rng.normal(size=(count, len(snapshot.mean))) * np.sqrt(snapshot.var)
    mask = rng.random((count, 3)) < 0.5
    mask[mask.sum(axis=1) == 0] = True
    return {"observation": x.astype(np.float32), "action_mask": mask}


def assert_same(got: Mapping[str, NDArray[Any]], snapshot: PolicySnapshot, given: Arrays) -> None:
    """Compare outputs with the policy's public forward pass."""
    x, mask = given["observation"], given.get("action_mask")
    np.testing.assert_allclose(got["expected_values"], snapshot.values(x), atol=1e-5)
    np.testing.assert_allclose(got["distribution"], snapshot.distribution(x), atol=1e-5)
    np.testing.assert_array_equal(got["action"], snapshot.greedy(x, mask))
    assert got["action"].dtype == np.int64
    if snapshot.spec.auxiliary is not None:
        np.testing.assert_allclose(got["auxiliary_logits"], snapshot.logits(x)[1], atol=1e-5)


@pytest.mark.parametrize(
    ("script", "names"), [(WITH_TORCH, ("torchscript", "pt2")), (WITH_ONNX, ("onnx",))]
)
def test_artefact_runs_without_us(
    exported: Path, snapshot: PolicySnapshot, script: str, names: tuple[str, ...]
) -> None:
    """A fresh process without our packages computes the policy, for batches of 1, 2 and 33."""
    subprocess.run([sys.executable, "-c", ALONE + script], cwd=exported, check=True)

    for name in names:
        for count in (1, 2, 33):
            with np.load(exported / f"{name}-{count}.npz") as got:
                given = {k: array[:count] for k, array in inputs(snapshot, 33).items()}
                assert_same(got, snapshot, given)


def test_masks_and_moments_matter_here(snapshot: PolicySnapshot) -> None:
    """The inputs of the tests tell a policy from one without masks, or with float32 moments."""
    given = inputs(snapshot, 33)
    free, masked = snapshot.greedy(given["observation"]), snapshot.greedy(*given.values())

    assert (free != masked).any()
    rounded = replace(snapshot, mean=snapshot.mean.astype(np.float32).astype(np.float64))
    assert (
        np.abs(snapshot.values(given["observation"]) - rounded.values(given["observation"])).max()
        > 1e-4
    )


@pytest.mark.parametrize("name", ["torchscript", "pt2", "onnx"])
def test_description_of_an_artefact(exported: Path, snapshot: PolicySnapshot, name: str) -> None:
    """`export.json` verifies, and has the signature, the figures, and whether it is code."""
    about, files = read_folder(exported / name, "export.json", MANIFESTS["export.json"])

    assert list(files) == [about["artefact"]] == [ARTEFACTS[name].file]
    assert about["artefact_format"] == name
    assert about["is_code"] is (name != "onnx")
    assert [entry["name"] for entry in about["inputs"]] == ["observation", "action_mask"]
    assert about["inputs"][0] == {"name": "observation", "shape": ["batch", 2], "dtype": "float32"}
    assert [entry["name"] for entry in about["outputs"]] == OUTPUTS
    assert about["outputs"][2]["shape"] == ["batch", 3, 11]
    figures = about["parity"]
    assert figures["equal_actions"] == figures["observations"] == 40
    assert all(0 <= v < 1e-5 for v in figures["largest_difference"].values())
    assert about["policy_digest"] == snapshot.digest()
    assert about["made_with"]["torch"] == torch.__version__


@pytest.mark.parametrize("name", ["pt2", "onnx"])
def test_artefact_does_not_name_where_it_was_made(exported: Path, name: str) -> None:
    """No path of this machine is in the file: the same policy, the same file elsewhere."""
    root = str(Path(__file__).parents[2]).encode()

    assert root not in (exported / name / ARTEFACTS[name].file).read_bytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"observation": {"shape": [2], "normalize": False}, "auxiliary": None},
        {"observation": {"shape": [3, 2], "frame_stack": 2}, "auxiliary": None},
        {"observation": {"space": {"type": "discrete", "n": 4}}, "c51": {"hidden": [8, 4, 8]}},
    ],
    ids=["raw", "stacked", "discrete"],
)
@pytest.mark.parametrize("name", ["torchscript", "pt2"])
def test_other_vectors(
    small: Callable[..., ModelSpec], tmp_path: Path, fields: dict[str, Any], name: str
) -> None:
    """Policies without moments, of stacked frames and of one-hot observations are exported too."""
    policy = Learner(small(**fields)).snapshot()
    export_policy(policy, tmp_path / "e", name)
    run = ARTEFACTS[name].load(policy, (tmp_path / "e" / ARTEFACTS[name].file).read_bytes())
    x = np.float32(1e7 * np.random.default_rng(0).normal(size=(5, *policy.mean.shape)))
    x[0] /= 1e7

    assert_same(run({"observation": x}), policy, {"observation": x})


@pytest.mark.parametrize(
    ("shape", "frames", "name"),
    [
        ((36, 40, 3), 1, "torchscript"),
        ((36, 40), 4, "pt2"),
        ((3, 36, 40), 2, "onnx"),
        ((36, 40, 3), 2, "torchscript"),
    ],
)
def test_images(tmp_path: Path, shape: tuple[int, ...], frames: int, name: str) -> None:
    """Images go in as bytes, whichever axis has their channels and however many are stacked."""
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": shape, "dtype": "uint8", "frame_stack": frames},
            "actions": 3,
            "c51": {"atoms": 5, "hidden": [16]},
        }
    )
    policy = Learner(spec).snapshot()
    export_policy(policy, tmp_path / "e", name)
    run = ARTEFACTS[name].load(policy, (tmp_path / "e" / ARTEFACTS[name].file).read_bytes())
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (3, *spec.observation.stored_shape), dtype=np.uint8)

    assert_same(run({"observation": x}), policy, {"observation": x})


def test_onnx_is_checked_without_onnxruntime(
    exported: Path, snapshot: PolicySnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ONNX Runtime is missing, ONNX's own reference evaluator runs the file."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    data = (exported / "onnx" / "policy.onnx").read_bytes()
    run = ARTEFACTS["onnx"].load(snapshot, data)

    assert_same(run(inputs(snapshot, 5)), snapshot, inputs(snapshot, 5))
    assert check_parity(snapshot, run, OUTPUTS, "policy.onnx")["equal_actions"] == 40


def test_sb3_policy_comes_back(snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """Stable-Baselines3's file is our C51Policy, without the auxiliary head; loading it is code."""
    from jormungandr.sb3 import C51Policy

    export_policy(snapshot, tmp_path / "e", "sb3")
    about, _ = read_folder(tmp_path / "e", "export.json", MANIFESTS["export.json"])
    loaded = C51Policy.load(tmp_path / "e" / "policy_sb3.zip", device="cpu")
    x, mask = inputs(snapshot, 20).values()

    actions, _ = loaded.predict(x, deterministic=True, action_masks=mask)
    np.testing.assert_array_equal(actions, snapshot.greedy(x, mask))
    assert about["is_code"] is True
    assert [entry["name"] for entry in about["outputs"]] == OUTPUTS[:3]


@pytest.mark.parametrize(
    "observation",
    [
        {"shape": [3, 2], "frame_stack": 2},
        {"shape": [40, 36, 3], "dtype": "uint8"},
        {
            "space": {
                "type": "dict",
                "spaces": {
                    "near": {"type": "box", "shape": [2, 2]},
                    "gear": {"type": "discrete", "n": 3, "start": 2},
                    "lamps": {"type": "multi_binary", "shape": [2]},
                },
            }
        },
    ],
    ids=["stacked", "image", "dict"],
)
def test_sb3_takes_what_environments_show(tmp_path: Path, observation: dict[str, Any]) -> None:
    """Its parity is that of natural observations, of whatever space."""
    policy = Learner({"observation": observation, "actions": 3}).snapshot()
    export_policy(policy, tmp_path / "e", "sb3")
    about, _ = read_folder(tmp_path / "e", "export.json", MANIFESTS["export.json"])

    assert about["parity"]["equal_actions"] == about["parity"]["observations"]
    assert about["inputs"] == [{"name": "observation", "form": "as the environment shows it"}]


def test_sb3_has_no_dict_inside_a_dict(tmp_path: Path) -> None:
    """What Stable-Baselines3 cannot take is refused in its words, and nothing is left."""
    inner = {"type": "dict", "spaces": {"x": {"type": "discrete", "n": 3}}}
    space = {"type": "dict", "spaces": {"a": inner}}
    policy = Learner({"observation": {"space": space}, "actions": 2}).snapshot()

    with pytest.raises(InvalidValue, match="no Dict inside a Dict"):
        export_policy(policy, tmp_path / "e", "sb3")
    assert list(tmp_path.iterdir()) == []


class Shifted(ExportedPolicy):
    """An export that forgets to take the difference in float64."""

    def prepared(self, observation: torch.Tensor) -> torch.Tensor:
        """Normalise in float32."""
        return ((observation - self.mean.float()) / self.deviation.float()).clamp(-10, 10)


class Unmasked(ExportedPolicy):
    """An export that forgets the mask."""

    def forward(
        self, observation: torch.Tensor, action_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Choose among all actions, and use the mask for nothing that shows."""
        assert action_mask is not None
        action, *rest = super().forward(observation)
        return action + 0 * action_mask.sum(dim=1), *rest


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Shifted, r"policy\.ts: expected_values: expected the policy's to 1e-05, got 0\.\d+ off"),
        (Unmasked, r"policy\.ts: action: expected \d, got \d"),
    ],
)
def test_wrong_artefact_is_not_written(
    snapshot: PolicySnapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: type[ExportedPolicy],
    message: str,
) -> None:
    """What computes something else is refused; an earlier export stays, and no other is left."""
    export_policy(snapshot, tmp_path / "e", "bundle")
    monkeypatch.setattr(artefacts, "ExportedPolicy", wrong)
    with pytest.raises(ExportError, match=message):
        export_policy(snapshot, tmp_path / "e", "torchscript")
    with pytest.raises(ExportError, match=message):
        export_policy(snapshot, tmp_path / "new", "torchscript")

    assert [path.name for path in tmp_path.iterdir()] == ["e"]
    assert PolicySnapshot.open(tmp_path / "e").version == 7


def test_exporter_that_fails(
    snapshot: PolicySnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an exporter raises is an ExportError with its reason, and nothing is left behind."""

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.jit, "trace", broken)
    with pytest.raises(ExportError, match="no such operator"):
        export_policy(snapshot, tmp_path / "e", "torchscript")
    assert list(tmp_path.iterdir()) == []


def perfect(snapshot: PolicySnapshot) -> Callable[[Arrays], Arrays]:
    """Return what computes exactly what the policy does."""
    return lambda given: policy_outputs(snapshot, given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y["expected_values"].__iadd__(2e-5), "expected_values: expected the policy's"),
        (lambda y: y["distribution"].__iadd__(2e-5), "distribution: expected the policy's"),
        (lambda y: y["auxiliary_logits"].__iadd__(2e-5), "auxiliary_logits: expected the policy's"),
        (lambda y: y["expected_values"].__setitem__((0, 0), np.nan), "got nan off"),
        (lambda y: y.update(action=y["action"].astype(np.int32)), "action: expected int64"),
        (lambda y: y.update(action=y["action"][:, None]), r"action: expected int64 \(7,\)"),
        (
            lambda y: y.update(distribution=y["distribution"].astype(np.float64)),
            r"distribution: expected float32 \(7, 3, 11\)",
        ),
    ],
)
def test_parity_refuses(
    snapshot: PolicySnapshot, change: Callable[[Arrays], Any], message: str
) -> None:
    """A number off by more than 1e-5, a NaN, another dtype and another shape are each refused."""

    def run(given: Arrays) -> Arrays:
        outputs = policy_outputs(snapshot, given)
        change(outputs)
        return outputs

    check_parity(snapshot, perfect(snapshot), OUTPUTS, "it")
    with pytest.raises(ExportError, match=message):
        check_parity(snapshot, run, OUTPUTS, "it")


def test_parity_accepts_ties(small: Callable[..., ModelSpec]) -> None:
    """Two actions of the same value are equally good; one that is worse by more is not."""
    policy = Learner(small(auxiliary=None)).snapshot()
    tied = {name: np.zeros_like(array) for name, array in policy.weights.items()}

    def last(snapshot: PolicySnapshot) -> Callable[[Arrays], Arrays]:
        def run(given: Arrays) -> Arrays:
            outputs = policy_outputs(snapshot, given)
            return {**outputs, "action": np.full_like(outputs["action"], 2)}

        return run

    figures = check_parity(
        replace(policy, weights=tied), last(replace(policy, weights=tied)), OUTPUTS[:3], "it"
    )
    assert figures["equal_actions"] == 0
    with pytest.raises(ExportError, match="it: action"):
        check_parity(policy, last(policy), OUTPUTS[:3], "it")


def test_parity_allows_what_float32_costs(small: Callable[..., ModelSpec]) -> None:
    """Of large values the bound grows with the policy's own rounding, and with nothing else."""
    policy = Learner(small(auxiliary=None, c51={"support": [-1e6, 1e6]})).snapshot()
    figures = check_parity(policy, perfect(policy), OUTPUTS[:3], "it")

    assert 1e-3 < figures["tolerance"]["expected_values"] < 10
    assert figures["tolerance"]["distribution"] == 1e-5


def test_probe_covers_scales(snapshot: PolicySnapshot) -> None:
    """Batches of seven and of one; constant, near and far observations; masks that allow some."""
    batches = list(probe(snapshot))
    x = np.concatenate([b["observation"] for b in batches if len(b["observation"]) == BATCH])
    z = np.abs(x - snapshot.mean) / np.sqrt(snapshot.var)

    assert {len(b["observation"]) for b in batches} == {1, BATCH}
    assert z.min() < 0.1
    assert z.max() > 10
    masks = np.concatenate([b["action_mask"] for b in batches])
    assert masks.any(axis=1).all()
    assert not masks.all()


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"onnx"}))
def test_learner_exports(small: Callable[..., ModelSpec], tmp_path: Path, name: str) -> None:
    """`Learner.export` writes its newest policy in each format but ONNX, which is slow."""
    learner = Learner(small())
    learner.export(tmp_path / "e", name)
    env = gymnasium.spec("OUSpread-v0")
    learner.export(tmp_path / "e", format=name, env=env)  # over the one before
    manifest = next(m for m in MANIFESTS if (tmp_path / "e" / m).exists())
    about, _ = read_folder(tmp_path / "e", manifest, MANIFESTS[manifest])

    assert about["policy_digest"] == learner.snapshot().digest()
    assert about.get("artefact_format", "bundle") == name
    assert about["env_spec"]["id"] == "OUSpread-v0"


def test_unknown_format(snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """A format that does not exist is refused, with those that do."""
    with pytest.raises(InvalidValue, match=r"format: expected one of \['bundle', 'torchscript'"):
        export_policy(snapshot, tmp_path / "e", "pickle")


def test_place_is_checked_before_the_work(
    snapshot: PolicySnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not ours is refused before seconds are spent."""
    (tmp_path / "mine").write_text("x")
    monkeypatch.setattr(artefacts, "ExportedPolicy", None)

    with pytest.raises(InvalidValue, match=r"bundle\.json or export\.json"):
        export_policy(snapshot, tmp_path, "torchscript")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("onnx", "onnx", "export"),
        ("onnx", "onnxscript", "export"),
        ("sb3", "stable_baselines3", "sb3"),
    ],
)
def test_missing_package_names_the_pip_line(
    snapshot: PolicySnapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    extra: str,
) -> None:
    """A format whose package is missing says which, and how to install it."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(
        PackageMissing, match=rf'{package}.*pip install "jormungandr-rl\[{extra}\]"'
    ):
        export_policy(snapshot, tmp_path / "e", name)


def test_only_the_deprecation_of_torchscript_is_silenced() -> None:
    """Inside our calls of torch.jit, any other warning still comes out."""
    with artefacts._torchscript():
        warnings.warn("`torch.jit.trace` is deprecated. Use …", DeprecationWarning, stacklevel=1)
        with pytest.raises(DeprecationWarning, match="other"):  # an error, as all are in tests
            warnings.warn("`torch.other` is deprecated", DeprecationWarning, stacklevel=1)
        with pytest.raises(torch.jit.TracerWarning):
            warnings.warn("constant", torch.jit.TracerWarning, stacklevel=1)


def process(folder: Path, snapshot: PolicySnapshot, name: str) -> subprocess.CompletedProcess[str]:
    """Export as the service does, in a process in which every warning is an error."""
    (folder / "policy.safetensors").write_bytes(snapshot.to_bytes())
    return subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "jormungandr.learner.export"),
            *(str(folder / "policy.safetensors"), name, str(folder / "e"), "60"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_process_of_its_own(snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """The process that the service starts writes the folder, and says nothing."""
    done = process(tmp_path, snapshot, "onnx")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "e" / "policy.onnx").exists()


def test_process_that_fails(snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """A process that fails says why in its last line, as JSON, and ends with status 1."""
    done = process(tmp_path, snapshot, "nope")

    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["code"] == "invalid_value"


def test_module_is_the_policy(snapshot: PolicySnapshot) -> None:
    """The module itself, before any exporter, computes the policy."""
    given = inputs(snapshot, 9)
    with torch.no_grad():
        got = ExportedPolicy(snapshot)(*(torch.from_numpy(array) for array in given.values()))

    assert_same(dict(zip(OUTPUTS, (y.numpy() for y in got), strict=True)), snapshot, given)
