"""ou_market_v0: PettingZoo's contract, and each trader's episode the one of OUSpreadEnv."""

import importlib
import math
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

from jormungandr_envs import OUSpreadEnv, ou_market_v0
from jormungandr_envs.ou_market import OUMarketEnv
from jormungandr_envs.ou_render import render_frame, render_text

#: All stay; two leave early, one by one or together; one alone.
MARKETS = [
    {},
    {"leave_after": {"trader_0": 3, "trader_2": 7}},
    {"leave_after": {"trader_1": 5, "trader_2": 5}},
    {"leave_after": {f"trader_{i}": 5 for i in range(3)}},
    {"n_traders": 1, "horizon": 2},
]
LEAVING = {"leave_after": {"trader_1": 2}, "horizon": 4}

# api_test calls an unbounded observation space "probably too low" or "too high" unless it finds the
# environment's name in a list of its own; a Gaussian spread really has no bounds.
unbounded = pytest.mark.filterwarnings(
    "ignore:Agent's (minimum|maximum) observation space value is -?infinity:UserWarning"
)

has_registry = pytest.mark.skipif(
    not hasattr(pettingzoo, "register"), reason="PettingZoo has a registry from 1.27 on"
)


def in_a_fresh_process(code):
    """Run code where nothing has been imported and every warning is an error."""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("parameters", MARKETS)
def test_pettingzoos_parallel_tests_pass(parameters):
    """Its two tests of parallel environments find nothing to complain about."""
    parallel_api_test(ou_market_v0.parallel_env(**parameters), num_cycles=120)
    parallel_seed_test(lambda: ou_market_v0.parallel_env(**parameters))


@unbounded
@pytest.mark.parametrize("make", [ou_market_v0.env, ou_market_v0.raw_env])
@pytest.mark.parametrize("parameters", MARKETS)
def test_pettingzoos_aec_tests_pass(make, parameters):
    """Nor do those of environments whose agents act in turn, but for the spread's bounds."""
    api_test(make(**parameters), num_cycles=120)
    seed_test(lambda: make(**parameters))


def played(market, actions, **reset):
    """Return each trader's rows (observation, reward, terminated, truncated, info), reset first.

    `actions` is (traders, steps).
    """
    observations, infos = market.reset(**reset)
    rows = {
        agent: [(observations[agent], None, None, None, infos[agent])] for agent in market.agents
    }
    for now in zip(*actions, strict=True):
        given = dict(zip(market.possible_agents, now, strict=True))
        result = market.step({agent: given[agent] for agent in market.agents})
        for agent in result[0]:
            rows[agent].append(tuple(values[agent] for values in result))
    assert market.agents == []
    return rows


def alone(actions, *, seed, options, **parameters):
    """Return the same rows of one OUSpreadEnv."""
    env = OUSpreadEnv(**parameters)
    observation, info = env.reset(seed=seed, options=options)
    rows = [(observation, None, None, None, info)]
    return rows + [env.step(action) for action in actions]


def bits(rows):
    """Return rows comparable by ==, to the bit and with their types."""
    return [
        (
            observation.tobytes(),
            str(observation.dtype),
            observation.shape,
            None if reward is None else (type(reward), reward.hex()),
            (type(terminated), terminated, type(truncated), truncated),
            [(name, type(value), repr(value)) for name, value in info.items()],
        )
        for observation, reward, terminated, truncated, info in rows
    ]


@settings(max_examples=40)
@given(data=st.data())
def test_every_trader_has_the_episode_of_ou_spread_to_the_bit(data):
    """Whatever the others do: observations, rewards, ends, infos and all their types are equal."""
    traders, horizon = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20))
    parameters = {"horizon": horizon, "kappa": data.draw(st.floats(0.01, 1.99))}
    seed = data.draw(st.integers(0, 2**32))
    options = data.draw(st.sampled_from([None, {}, {"x0": 0.0}, {"x0": -1.25}]))
    generator = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    actions = generator.integers(3, size=(traders, horizon))

    market = ou_market_v0.parallel_env(n_traders=traders, **parameters)
    rows = played(market, actions, seed=seed, options=options)

    assert list(rows) == [f"trader_{i}" for i in range(traders)]
    for own, taken in zip(rows.values(), actions, strict=True):
        assert bits(own) == bits(alone(taken, seed=seed, options=options, **parameters))


def test_seeds_fix_paths_and_their_sequel():
    """Seeded or going on with the generator, the paths are the single environment's too."""
    market, env = ou_market_v0.parallel_env(n_traders=2, horizon=3), OUSpreadEnv(horizon=3)
    for seed in (7, None, None, 3, 7, None):
        observations, _ = market.reset(seed=seed)
        expected, _ = env.reset(seed=seed)
        assert [o.tobytes() for o in observations.values()] == [expected.tobytes()] * 2


def test_the_turn_based_form_plays_the_same_episodes():
    """Each trader in turn gets the same observations and rewards; the spread waits for the last."""
    actions = np.random.default_rng(0).integers(3, size=(3, 4))
    expected = played(ou_market_v0.parallel_env(**LEAVING), actions, seed=1)
    market = ou_market_v0.env(**LEAVING)
    market.reset(seed=1)
    got = {agent: [] for agent in market.possible_agents}
    for agent in market.agent_iter():
        observation, reward, terminated, truncated, info = market.last()
        rows = got[agent]
        first = (None, None, None)
        end = first if not rows else (float(reward), terminated, truncated)
        rows.append((observation, *end, info))
        over = terminated or truncated
        market.step(None if over else int(actions[int(agent[-1]), len(rows) - 1]))

    assert {agent: bits(rows) for agent, rows in got.items()} == {
        agent: bits(rows) for agent, rows in expected.items()
    }
    assert [len(rows) for rows in got.values()] == [5, 3, 5]


def test_a_trader_that_leaves_is_cut_off_and_the_others_go_on():
    """It is truncated once, told no reference return, and gone; the rest is as if it had stayed."""
    actions = np.random.default_rng(3).integers(3, size=(3, 4))
    stay = played(ou_market_v0.parallel_env(horizon=4), actions, seed=5)
    leave = played(ou_market_v0.parallel_env(**LEAVING), actions, seed=5)

    ends = {agent: [row[2:4] for row in rows[1:]] for agent, rows in leave.items()}
    assert ends["trader_1"] == [(False, False), (False, True)]
    assert ends["trader_0"] == ends["trader_2"] == [(False, False)] * 3 + [(True, False)]
    assert list(leave["trader_1"][-1][4]) == ["drift_label"]
    assert list(leave["trader_0"][-1][4]) == ["drift_label", "reference_return"]
    for agent in ("trader_0", "trader_2"):
        assert bits(leave[agent]) == bits(stay[agent])
    cut = [row[:3] for row in bits(leave["trader_1"])]
    assert cut == [row[:3] for row in bits(stay["trader_1"])][:3]


def test_who_is_live_shrinks_with_the_step_that_ends_an_episode():
    """`agents` names those that take part in the next step, in order; a reset brings all back."""
    market = ou_market_v0.parallel_env(**LEAVING)
    assert (market.agents, market.max_num_agents) == ([], 3)
    seen = []
    market.reset(seed=0)
    while market.agents:
        seen.append([int(agent[-1]) for agent in market.agents])
        market.step(dict.fromkeys(market.agents, 1))
    market.reset()

    assert seen == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    assert market.agents == market.possible_agents == ["trader_0", "trader_1", "trader_2"]
    assert market.agents is not market.possible_agents


def test_spaces_are_the_tasks_and_each_traders_own():
    """Equal spaces, the same object every time, but one generator each for samples."""
    market = ou_market_v0.parallel_env(n_traders=2)
    for agent in market.possible_agents:
        assert market.observation_space(agent) == OUSpreadEnv().observation_space
        assert market.action_space(agent) == gym.spaces.Discrete(3)
        assert market.action_space(agent) is market.action_space(agent)
    assert market.action_space("trader_0") is not market.action_space("trader_1")
    assert market.observation_space("trader_0") is not market.observation_space("trader_1")


def test_returned_data_share_no_memory():
    """What one trader does to its observation or info changes no other one's."""
    market = ou_market_v0.parallel_env(n_traders=2)
    observations, infos = market.reset(seed=0)
    later, _, _, _, later_infos = market.step({"trader_0": 1, "trader_1": 1})
    arrays = [*observations.values(), *later.values()]
    dicts = [*infos.values(), *later_infos.values()]
    for i in range(4):
        for j in range(i):
            assert not np.shares_memory(arrays[i], arrays[j])
            assert dicts[i] is not dicts[j]


@pytest.mark.parametrize(
    "actions",
    [
        {},
        {"trader_0": 1},
        {"trader_0": 1, "trader_1": 1, "trader_2": 1},
        {"trader_0": 1, "trader_2": 1},
    ],
)
def test_a_step_takes_one_action_of_each_live_trader(actions):
    """A missing action and one too many are refused, and the market stays where it was."""
    market = ou_market_v0.parallel_env(n_traders=2)
    market.reset(seed=0)
    with pytest.raises(ValueError, match=r"expected one for each of \['trader_0', 'trader_1'\]"):
        market.step(actions)
    observations, *_ = market.step({"trader_1": 2, "trader_0": 0})
    assert [o[2:].tolist() for o in observations.values()] == [
        [-1.0, np.float32(47 / 48)],
        [1.0, np.float32(47 / 48)],
    ]


def test_a_bad_action_of_one_trader_changes_nothing():
    """Not even for those whose actions came before it."""
    market = ou_market_v0.parallel_env(n_traders=2)
    market.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected 0 \(SHORT\), 1 \(FLAT\) or 2 \(LONG\)"):
        market.step({"trader_0": 2, "trader_1": 3})
    observations, *_ = market.step({"trader_0": 1, "trader_1": 1})
    assert observations["trader_0"][3] == np.float32(47 / 48)
    assert observations["trader_0"][2] == 0.0


def test_there_is_no_step_outside_an_episode():
    """None before a reset; after the end no action is taken, and without one nothing happens."""
    market = ou_market_v0.parallel_env(n_traders=1, horizon=1)
    with pytest.raises(ResetNeeded, match="call reset"):
        market.step({})
    market.reset(seed=0)
    market.step({"trader_0": 1})
    with pytest.raises(ValueError, match=r"expected one for each of \[\], got \['trader_0'\]"):
        market.step({"trader_0": 1})
    assert market.step({}) == ({}, {}, {}, {}, {})
    assert market.agents == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_traders": 0}, r"OUMarket\.n_traders: expected an integer >= 1, got 0"),
        ({"n_traders": 2.0}, r"OUMarket\.n_traders: expected an integer >= 1, got 2\.0"),
        ({"n_traders": True}, r"OUMarket\.n_traders: .*got True"),
        ({"leave_after": {"trader_3": 1}}, r"leave_after: expected names from .*got 'trader_3'"),
        ({"leave_after": {"trader_0": 0}}, r"leave_after\['trader_0'\]: .* 1 to 47, got 0"),
        ({"leave_after": {"trader_0": 48}}, r"leave_after\['trader_0'\]: .* 1 to 47, got 48"),
        ({"leave_after": {"trader_0": 1.5}}, r"leave_after\['trader_0'\]: .* got 1\.5"),
        ({"kappa": 3.0}, r"kappa: expected a finite number > 0 and < 2, got 3\.0"),
        ({"render_mode": "human"}, "render_mode: expected None or one of"),
    ],
)
def test_bad_arguments_are_named(given, message):
    """The message says which argument, what was expected and what was given."""
    with pytest.raises(ValueError, match=message):
        ou_market_v0.parallel_env(**given)


def test_an_unknown_parameter_is_refused():
    """A misspelt parameter is not silently ignored, in any form."""
    for make in (ou_market_v0.parallel_env, ou_market_v0.env, ou_market_v0.raw_env):
        with pytest.raises(TypeError, match="kapa"):
            make(kapa=0.1)


def test_a_bad_start_is_refused_and_changes_nothing():
    """The generator is where it was."""
    market, other = ou_market_v0.parallel_env(), ou_market_v0.parallel_env()
    market.reset(seed=0)
    other.reset(seed=0)
    with pytest.raises(ValueError, match=r"options\['x0'\]: expected a finite number, got nan"):
        market.reset(seed=1, options={"x0": math.nan})
    assert market.reset()[0]["trader_0"].tobytes() == other.reset()[0]["trader_0"].tobytes()


def test_pictures_are_those_of_the_traders_own_episodes():
    """One below the other, each as OUSpread draws it; of one who left, up to where it left."""
    actions = np.array([[2, 2, 0, 1], [0, 1, 0, 0], [1, 1, 1, 2]])
    text, pixels = (
        ou_market_v0.parallel_env(render_mode=mode, **LEAVING) for mode in ("ansi", "rgb_array")
    )
    for market in (text, pixels):
        with pytest.raises(ResetNeeded, match="call reset"):
            market.render()
        played(market, actions, seed=4)
    env = OUSpreadEnv(horizon=4)
    env.reset(seed=4)
    z = env._z
    taken = [[2, 2, 0, 1], [0, 1], [1, 1, 1, 2]]

    assert text.render() == "".join(
        f"trader_{i}  {render_text(z[: len(own) + 1], own, env.parameters)}"
        for i, own in enumerate(taken)
    )
    frames = np.split(pixels.render(), 3)
    for frame, own in zip(frames, taken, strict=True):
        assert (frame == render_frame(z[: len(own) + 1], own, env.parameters)).all()


def test_rendering_without_a_mode_warns():
    """As Gymnasium's own environments do."""
    market = ou_market_v0.parallel_env()
    market.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode is None"):
        assert market.render() is None
    market.close()
    market.close()


def test_a_copy_goes_on_alike():
    """A pickled market plays on as the original does."""
    market = ou_market_v0.parallel_env(**LEAVING)
    market.reset(seed=0)
    market.step(dict.fromkeys(market.agents, 2))
    copy = pickle.loads(pickle.dumps(market))
    for _ in range(3):
        results = [env.step(dict.fromkeys(env.agents, 0)) for env in (market, copy)]
        assert [r.tobytes() for r in results[0][0].values()] == [
            r.tobytes() for r in results[1][0].values()
        ]
        assert results[0][1:] == results[1][1:]
    assert market.reset()[0]["trader_0"].tobytes() == copy.reset()[0]["trader_0"].tobytes()


@has_registry
def test_it_is_in_pettingzoos_registry():
    """`make` builds both forms, with parameters, under the names that PettingZoo gives them."""
    market = pettingzoo.make("parallel", "jormungandr/ou_market_v0", n_traders=2, kappa=0.3)
    assert type(market) is OUMarketEnv
    assert (market.max_num_agents, market.parameters.kappa) == (2, 0.3)
    turns = pettingzoo.make("aec", "jormungandr/ou_market-v0", n_traders=2)
    assert isinstance(turns, pettingzoo.AECEnv)
    assert type(turns.unwrapped) is OUMarketEnv
    assert str(market) == "ou_market_v0"
    assert market.metadata["render_modes"] == OUSpreadEnv.metadata["render_modes"]


@has_registry
def test_registering_twice_is_silent():
    """A second registration neither warns nor replaces the first."""
    registries = (pettingzoo.parallel_registry, pettingzoo.aec_registry)
    before = [registry["jormungandr/ou_market-v0"] for registry in registries]
    ou_market_v0.register()
    importlib.reload(ou_market_v0)
    after = [registry["jormungandr/ou_market-v0"] for registry in registries]
    assert all(old is new for old, new in zip(before, after, strict=True))


def test_versions_without_a_registry_have_the_module_form(monkeypatch):
    """PettingZoo before 1.27 has nothing to register with."""
    for name in ("register", "make", "parallel_registry", "aec_registry"):
        monkeypatch.delattr(pettingzoo, name, raising=False)
    importlib.reload(ou_market_v0)
    assert ou_market_v0.parallel_env(n_traders=1).possible_agents == ["trader_0"]


def test_public_names_are_frozen():
    """The module has the names of PettingZoo's own modules."""
    assert ou_market_v0.__all__ == ["env", "parallel_env", "raw_env", "register"]


def test_the_other_environments_do_not_load_pettingzoo():
    """An actor without it pays nothing for it."""
    in_a_fresh_process(
        "import sys, jormungandr_envs\nassert 'pettingzoo' not in sys.modules, 'pettingzoo'\n"
    )


def test_without_pettingzoo_the_rest_works_and_the_market_says_what_to_install():
    """The package imports and plays; only the market's module asks for the extra."""
    in_a_fresh_process(
        "import sys\n"
        "sys.modules['pettingzoo'] = None\n"
        "import jormungandr_envs\n"
        "jormungandr_envs.OUSpreadEnv().reset(seed=0)\n"
        "try:\n"
        "    from jormungandr_envs import ou_market_v0\n"
        "except ModuleNotFoundError as error:\n"
        "    line = 'ou_market_v0 needs PettingZoo: pip install \"jormungandr-rl[pettingzoo]\"'\n"
        "    assert (str(error), error.name) == (line, 'pettingzoo'), error\n"
        "else:\n"
        "    raise AssertionError('imported')\n"
    )
