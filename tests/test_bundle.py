"""Bundles: read without our code, checked by digest, refused by feature order, zipped safely."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.bundle import (
    bundle_files,
    describe,
    from_zip,
    open_bundle,
    to_zip,
    write_bundle,
)
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.manifest import seal

ROOT = Path(__file__).parents[1]
#: An importer in front of all others that makes our packages impossible to import.
ALONE = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuses())
"""


def reader() -> str:
    """Return the reader that docs/export.md shows."""
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python no-run\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "bundle.json" in block)


@pytest.fixture(scope="module")
def snapshot(small: Callable[..., ModelSpec]) -> PolicySnapshot:
    """A policy whose moments matter: far from 0, and of different widths."""
    policy = Learner(small()).snapshot()
    mean, var = np.array([1e6, -3.0]), np.array([4.0, 1e-4])
    return replace(policy, mean=mean, var=var, version=7, update_count=5, generation=2)


@pytest.mark.parametrize(("normalize", "dueling"), [(True, False), (False, False), (True, True)])
def test_bundle_is_read_without_us(
    small: Callable[..., ModelSpec],
    snapshot: PolicySnapshot,
    tmp_path: Path,
    normalize: bool,
    dueling: bool,
) -> None:
    """The reader in the documents acts as the policy does, with NumPy and safetensors alone."""
    observation = {"shape": [2], "normalize": normalize}
    spec = small(observation=observation, c51={"dueling": dueling})
    weights = Learner(spec).snapshot().weights
    policy = replace(snapshot, spec=spec, weights=weights)
    write_bundle(tmp_path / "ou-policy", policy)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)) * np.repeat([0.1, 1, 10, 1e3], 10)[:, None]
    x[-1] = 3e38  # without normalisation, 1e6 is what the network sees of it
    x = np.float32(x + policy.mean if normalize else x)
    np.save(tmp_path / "x.npy", x)
    # Its last lines act on an observation of four elements.
    function, _, _ = reader().partition("actions, values = act(")
    refused = "REFUSED = {'jormungandr', 'jormungandr_envs', 'torch', 'gymnasium'}"
    last = "np.savez('y.npz', *act(np.load('x.npy')))"
    subprocess.run(
        [sys.executable, "-c", "\n".join([refused, ALONE, function, last])],
        cwd=tmp_path,
        check=True,
    )

    with np.load(tmp_path / "y.npz") as read:
        np.testing.assert_allclose(read["arr_1"], policy.values(x), atol=1e-5)
        np.testing.assert_array_equal(read["arr_0"], policy.greedy(x))
    assert len(set(policy.greedy(x))) > 1


def test_policy_file_is_the_policy(snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """The bundle's file is the policy's bytes, and opens as the same policy."""
    write_bundle(tmp_path / "b", snapshot)

    assert (tmp_path / "b" / "policy.safetensors").read_bytes() == snapshot.to_bytes()
    for opened in (PolicySnapshot.open(tmp_path / "b"), open_bundle(tmp_path / "b")):
        assert opened.to_bytes() == snapshot.to_bytes()
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "bundle.json",
        "policy.safetensors",
    ]


def test_description(snapshot: PolicySnapshot) -> None:
    """`bundle.json` says which policy it is, and everything that acting with it takes."""
    about = json.loads(bundle_files(snapshot)["bundle.json"])

    assert about["format"] == "jormungandr-bundle-1"
    numbers = [about[k] for k in ("policy_version", "update_count", "generation", "transitions")]
    assert numbers == [7, 5, 2, 0]
    assert about["policy_digest"] == snapshot.digest()
    assert about["observation"]["features"] == ["x", "y"]
    assert about["observation"]["space"] == {"type": "box", "shape": [2], "dtype": "float32"}
    assert (about["observation"]["shape"], about["observation"]["dtype"]) == ([2], "float32")
    rule = about["normalization"]
    assert (rule["mean"], rule["var"], rule["clip"]) == ([1e6, -3.0], [4.0, 1e-4], 10.0)
    assert about["support"] == snapshot.support.tolist()
    assert about["actions"][2] == {"index": 2, "label": "2", "value": 2}
    assert (about["action_masks"], about["action_repeat"]) == (False, 1)
    assert about["auxiliary_classes"] == ["DOWN", "UP"]
    assert about["spec"] == snapshot.spec.to_dict()
    assert about["env_spec"] is None
    layers = [(v["name"], v["weight"], v["activation"]) for v in about["network"]["layers"]]
    assert layers == [
        ("hidden.0", [8, 2], "relu"),
        ("hidden.1", [8, 8], "relu"),
        ("value", [33, 8], None),
        ("auxiliary", [2, 8], None),
    ]


def test_description_of_images() -> None:
    """An image is described as such: no moments, its frames, and the strides of convolutions."""
    shape = [36, 40, 3]
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": shape, "dtype": "uint8", "frame_stack": 4},
            "actions": 2,
            "action_masks": True,
            "action_repeat": 3,
            "c51": {"hidden": [16]},
        }
    )
    about = describe(Learner(spec).snapshot())

    assert about["observation"]["shape"] == [4, *shape]
    assert about["observation"]["dtype"] == "uint8"
    assert "the newest 4" in about["observation"]["encoding"]
    assert about["normalization"]["kind"] == "pixels"
    assert [v.get("stride") for v in about["network"]["layers"]] == [4, 2, 1, None, None]
    assert about["network"]["layers"][0]["weight"] == [32, 12, 8, 8]
    assert (about["action_masks"], about["action_repeat"]) == (True, 3)
    assert "mask" in about["network"]["decision"]


def test_description_of_a_dict() -> None:
    """Of another space than a Box it says by which rule it becomes a vector."""
    parts = {"b": {"type": "discrete", "n": 3}, "a": {"type": "box", "shape": [2]}}
    spec = ModelSpec.from_dict(
        {"observation": {"space": {"type": "dict", "spaces": parts}}, "actions": 2}
    )
    about = describe(Learner(spec).snapshot())

    assert about["observation"]["shape"] == [5]
    assert "one-hot" in about["observation"]["encoding"]
    assert list(about["observation"]["space"]["spaces"]) == ["a", "b"]


def test_same_policy_same_bytes(snapshot: PolicySnapshot) -> None:
    """Two bundles of one policy are equal, archives too."""
    again = PolicySnapshot.from_bytes(snapshot.to_bytes())

    assert bundle_files(snapshot) == bundle_files(again)
    assert to_zip(bundle_files(snapshot)) == to_zip(dict(reversed(bundle_files(again).items())))


@pytest.mark.parametrize("name", ["bundle.json", "policy.safetensors"])
def test_damage_is_named(snapshot: PolicySnapshot, tmp_path: Path, name: str) -> None:
    """A byte that changed in either file is noticed when the folder is opened as a policy."""
    write_bundle(tmp_path / "b", snapshot)
    data = bytearray((tmp_path / "b" / name).read_bytes())
    data[-9] ^= 1
    (tmp_path / "b" / name).write_bytes(data)

    with pytest.raises(CheckpointError, match=name):
        PolicySnapshot.open(tmp_path / "b")


def test_bundle_of_nothing(snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """A folder without a description is no bundle, and a description without a policy no policy."""
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "policy.safetensors").write_bytes(snapshot.to_bytes())
    assert PolicySnapshot.open(folder).version == 7  # of a checkpoint, say
    with pytest.raises(CheckpointError, match=r"a folder with bundle\.json"):
        open_bundle(folder)

    (folder / "bundle.json").write_bytes(seal({"format": "jormungandr-bundle-1"}, {}))
    with pytest.raises(CheckpointError, match="expected a policy's file"):
        PolicySnapshot.open(folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["y", "x"], r"features\[0\]: expected 'x', got 'y'"),
        (["x", "z"], r"features\[1\]: expected 'y', got 'z'"),
        (["x"], r"features\[1\]: expected 'y', got none"),
        (["x", "y", "z"], r"features\[2\]: expected none, got 'z'"),
        ([], r"features\[0\]: expected 'x', got none"),
    ],
)
def test_other_features_are_refused_by_name(
    snapshot: PolicySnapshot, tmp_path: Path, given: list[str], message: str
) -> None:
    """The first position that differs is named; the right order passes."""
    write_bundle(tmp_path / "b", snapshot)

    with pytest.raises(InvalidValue, match=message):
        PolicySnapshot.open(tmp_path / "b", features=given)
    with pytest.raises(InvalidValue, match=message):
        open_bundle(tmp_path / "b", given)
    assert open_bundle(tmp_path / "b", ("x", "y")).version == 7


def test_features_of_a_policy_without_names(tmp_path: Path) -> None:
    """A policy that names no features cannot be held to names."""
    write_bundle(tmp_path / "b", Learner({"observation": {"shape": [2]}, "actions": 2}).snapshot())

    with pytest.raises(InvalidValue, match="the policy's have no names"):
        open_bundle(tmp_path / "b", ["x", "y"])


def test_environment_is_made_again(snapshot: PolicySnapshot) -> None:
    """The description carries the environment's specification, with its arguments."""
    env = gymnasium.make("OUSpread-v0", turnover_cost=0.5)
    about = describe(snapshot, env)
    assert env.spec is not None
    again = gymnasium.make(EnvSpec.from_json(json.dumps(about["env_spec"])))

    assert again.spec is not None
    assert again.spec.kwargs["turnover_cost"] == 0.5
    assert describe(snapshot, env.spec) == about


class Bare(gymnasium.Env[Any, Any]):
    """An environment that no registry knows."""


def test_environment_without_a_specification(snapshot: PolicySnapshot) -> None:
    """An environment that nobody registered, or one that JSON cannot carry, is refused."""
    with pytest.raises(InvalidValue, match=r"made by gymnasium\.make"):
        describe(snapshot, Bare())
    made = EnvSpec("Bare-v0", entry_point=Bare)
    with pytest.raises(InvalidValue, match="that JSON can carry"):
        describe(snapshot, made)
    with pytest.raises(InvalidValue, match="that JSON can carry"):
        describe(snapshot, EnvSpec("Bare-v0", entry_point="a:B", kwargs={"x": float("nan")}))


def test_archive_comes_back(snapshot: PolicySnapshot) -> None:
    """An archive holds the files, uncompressed, and they verify."""
    files = bundle_files(snapshot)

    assert from_zip(to_zip(files)) == files


def archive(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive as others make them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", ".evil", "a\\b"])
def test_archive_cannot_write_elsewhere(snapshot: PolicySnapshot, name: str) -> None:
    """A name that leads out of the folder is refused before anything is written."""
    with pytest.raises(CheckpointError, match="plain file names"):
        from_zip(archive({**bundle_files(snapshot), name: b""}))


def test_archive_of_another_form(snapshot: PolicySnapshot) -> None:
    """Compression, a name twice, no description, a file too many and other bytes are refused."""
    files = bundle_files(snapshot)
    with pytest.raises(CheckpointError, match="no compression"):
        from_zip(archive(files, zipfile.ZIP_DEFLATED))
    with pytest.raises(CheckpointError, match="one of"):
        from_zip(archive({"policy.safetensors": files["policy.safetensors"]}))
    with pytest.raises(CheckpointError, match="an entry for more"):
        from_zip(archive({**files, "more": b""}))
    with pytest.raises(CheckpointError, match="a zip archive"):
        from_zip(b"no archive")
    with pytest.raises(CheckpointError, match="a zip archive"):
        from_zip(to_zip(files)[:-30])

    twice = io.BytesIO(to_zip(files))
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(twice, "a") as out,
    ):
        out.writestr("bundle.json", files["bundle.json"])
    with pytest.raises(CheckpointError, match="different, plain"):
        from_zip(twice.getvalue())


def test_archive_with_damage_inside(snapshot: PolicySnapshot) -> None:
    """Whatever is changed on the way, the archive's sums or the digests show it."""
    data = to_zip(bundle_files(snapshot))
    for at, bits in ((29, 0x7F), (60, 1), (len(data) // 2, 1)):  # 29: a name that does not end
        changed = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]

        with pytest.raises(CheckpointError):
            from_zip(changed)
