"""OUSpread-v0 in Gymnasium's registry, and the package's public names."""

import importlib
import subprocess
import sys

import gymnasium as gym

import jormungandr_envs
from jormungandr_envs import OUSpreadEnv, OUSpreadVectorEnv, optimal_policy, reference_value


def in_a_fresh_process(code):
    """Run code where nothing has been imported and every warning is an error."""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_make_by_module_needs_no_import():
    """The module prefix is enough for `make` and `make_vec`; only termination ends an episode."""
    in_a_fresh_process(
        "import gymnasium as gym\n"
        "env = gym.make('jormungandr_envs:OUSpread-v0', horizon=3)\n"
        "env.reset(seed=0)\n"
        "ends = [env.step(1)[2:4] for _ in range(3)]\n"
        "assert ends == [(False, False), (False, False), (True, False)], ends\n"
        "assert env.spec.id == 'OUSpread-v0'\n"
        "envs = gym.make_vec('jormungandr_envs:OUSpread-v0', num_envs=2)\n"
        "assert type(envs).__name__ == 'OUSpreadVectorEnv'\n"
    )


def test_a_stored_spec_needs_no_import():
    """A spec kept as JSON makes the same environment in another process."""
    spec = gym.make("OUSpread-v0", kappa=0.2).spec.to_json()
    in_a_fresh_process(
        "import gymnasium as gym\n"
        f"env = gym.make(gym.envs.registration.EnvSpec.from_json({spec!r}))\n"
        "assert env.unwrapped.parameters.kappa == 0.2\n"
    )


def test_import_is_light():
    """Importing the environments loads no training stack and nothing of the learner."""
    in_a_fresh_process(
        "import sys, jormungandr_envs\n"
        "heavy = {'torch', 'scipy', 'matplotlib', 'pygame', 'stable_baselines3', 'jormungandr'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )


def test_make_vec_uses_the_array_class():
    """`make_vec` builds our class, passes parameters on, and keeps a JSON spec."""
    envs = gym.make_vec("OUSpread-v0", num_envs=64, autoreset_mode="SameStep", sigma=0.5)
    assert type(envs) is OUSpreadVectorEnv
    assert (envs.num_envs, envs.parameters.sigma) == (64, 0.5)
    assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    assert "SameStep" in envs.spec.to_json()


def test_spec_is_that_of_a_finite_horizon_task():
    """There is no time limit on top of the horizon, and the threshold asks for part of the gap."""
    spec = gym.spec("OUSpread-v0")
    assert spec.max_episode_steps is None
    assert spec.nondeterministic is False
    assert reference_value() < spec.reward_threshold < optimal_policy().value()
    assert isinstance(spec.entry_point, str)
    assert isinstance(spec.vector_entry_point, str)


def test_registering_twice_is_silent():
    """A second registration neither warns nor replaces the first."""
    before = gym.registry["OUSpread-v0"]
    jormungandr_envs.register()
    importlib.reload(jormungandr_envs)
    assert gym.registry["OUSpread-v0"] is before


def test_public_names_are_frozen():
    """The list of public names changes only together with this test."""
    assert sorted(jormungandr_envs.__all__) == [
        "ACTION_LABELS",
        "ACTION_VALUES",
        "Action",
        "DRIFT_LABELS",
        "Drift",
        "FEATURES",
        "OUParameters",
        "OUSpreadEnv",
        "OUSpreadVectorEnv",
        "OptimalPolicy",
        "PairedReturns",
        "drift_label",
        "optimal_policy",
        "paired_returns",
        "reference_action",
        "reference_value",
        "register",
    ]
    for name in jormungandr_envs.__all__:
        assert hasattr(jormungandr_envs, name)


def test_words_of_the_task():
    """Names and values are listed in the order of the indices they stand for."""
    assert jormungandr_envs.ACTION_LABELS == ("SHORT", "FLAT", "LONG")
    assert jormungandr_envs.ACTION_VALUES == (-1, 0, 1)
    assert jormungandr_envs.DRIFT_LABELS == ("DOWN", "FLAT", "UP")
    assert jormungandr_envs.FEATURES == ("z", "dz", "position", "time_left")
    assert OUSpreadEnv.metadata["render_modes"] == ["ansi", "rgb_array"]
