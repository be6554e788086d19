"""C51 for Stable-Baselines3: the learner's update, and the life of an SB3 algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.dqn.policies import DQNPolicy

from jormungandr import ModelSpec
from jormungandr.errors import InvalidValue
from jormungandr.inputs import normalize
from jormungandr.learner import c51
from jormungandr.numerics.statistics import paired_bootstrap
from jormungandr.sb3 import C51, PrioritizedReplayBuffer
from jormungandr_envs import paired_returns

Build = Callable[..., C51]
Walks = Callable[..., VecEnv]
Logged = Callable[[C51], dict[str, float]]

SPEC: dict[str, Any] = {
    "observation": {"shape": [2]},
    "actions": 3,
    "c51": {
        "lr": 1e-2,
        "atoms": 11,
        "support": [-2.0, 2.0],
        "hidden": 8,
        "batch_size": 16,
        "max_grad_norm": 0.5,
    },
}


def linear_layers(network: Any) -> list[torch.nn.Linear]:
    """Return the layers of a network's head, from the input to the logits."""
    return [layer for layer in network.q_net if isinstance(layer, torch.nn.Linear)]


def weights(network: Any) -> list[np.ndarray[Any, Any]]:
    """Return weights and biases in order."""
    return [p.detach().numpy().copy() for p in network.q_net.parameters()]


@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("double", [True, False])
def test_update_is_the_learners(
    model: Build,
    logged: Logged,
    monkeypatch: pytest.MonkeyPatch,
    double: bool,
    n_steps: int,
    prioritized: bool,
) -> None:
    """On one batch: the same loss, priorities, clipped mass, and step on every weight."""
    spec = ModelSpec.from_dict({**SPEC, "c51": {**SPEC["c51"], "double": double}})
    learner = c51.C51(spec, np.random.default_rng(0))
    ours = model(
        batch_size=16,
        max_grad_norm=0.5,
        double=double,
        n_steps=n_steps,
        gamma=0.9,
        alpha=None if prioritized else 0.0,
        learning_starts=10**6,
    ).learn(80)
    replay = ours.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    first = replay.sample(64)
    replay.update_priorities(first.drawn, np.random.default_rng(1).exponential(size=64))
    networks = ((learner.online, ours.q_net), (learner.target, ours.q_net_target))
    for i, (from_learner, to) in enumerate(networks):
        rng = np.random.default_rng(i)
        for layer, name in zip(linear_layers(to), ("hidden.0", "hidden.1", "value"), strict=True):
            for part in ("weight", "bias"):
                parameter = from_learner.get_parameter(f"{name}.{part}")
                with torch.no_grad():
                    parameter.copy_(torch.as_tensor(rng.normal(size=parameter.shape)))
                    layer.get_parameter(part).copy_(parameter)
    replay.beta = 0.7
    data = replay.sample(16)
    monkeypatch.setattr(replay, "sample", lambda *_, **__: data)

    assert ours.policy.moments is not None
    running = ours.policy.moments.running()
    batch = c51.Batch(
        observation=normalize(data.observations.numpy(), running.mean, running.var, 10.0),
        action=data.actions.numpy().ravel(),
        reward=data.rewards.numpy().ravel(),
        next_observation=normalize(data.next_observations.numpy(), running.mean, running.var, 10.0),
        discount=((1 - data.dones) * data.discounts).numpy().ravel(),
        label=np.full(16, -1, dtype=np.int32),
        weight=data.drawn.weight,
    )
    update = learner.update(batch)
    ours.train(1, 16)
    log = logged(ours)

    assert prioritized == bool((data.drawn.weight < 0.9).any())
    assert update.grad_norm > 0.5  # the clip matters
    assert log["train/loss"] == pytest.approx(update.loss, rel=1e-5)
    assert log["train/clipped_low"] == pytest.approx(update.clipped_low, abs=1e-6)
    assert log["train/clipped_high"] == pytest.approx(update.clipped_high, abs=1e-6)
    assert log["train/n_updates"] == 1
    written = dict(zip(data.drawn.slot.tolist(), update.priority.tolist(), strict=True))
    for slot, priority in written.items():
        assert replay.priorities[slot] == pytest.approx(priority, rel=1e-5)
    for before, after in zip(learner.online.parameters(), ours.q_net.parameters(), strict=True):
        assert after.detach().numpy() == pytest.approx(before.detach().numpy(), abs=1e-5)


def test_defaults_are_those_of_train() -> None:
    """What ``jormungandr train`` starts from, the class has for defaults."""
    spec = ModelSpec.preset("default", observation={"shape": [4]}, actions=3)
    given = {k: p.default for k, p in inspect.signature(C51.__init__).parameters.items()}
    c, r = spec.c51, spec.replay
    expected = {
        "learning_rate": c.lr,
        "batch_size": c.batch_size,
        "gamma": c.gamma,
        "max_grad_norm": c.max_grad_norm,
        "n_steps": None,
        "double": c.double,
        "atoms": c.atoms,
        "v_min": None,
        "v_max": None,
        "buffer_size": r.capacity,
        "beta_start": r.beta_start,
        "beta_updates": r.beta_updates,
        "priority_epsilon": r.priority_epsilon,
        "is_normalizer": r.is_normalizer,
        "learning_starts": spec.pacing.learning_starts,
        "train_freq": 1 / spec.pacing.updates_per_transition,
        "target_update_interval": c.target_interval / spec.pacing.updates_per_transition,
        "exploration_initial_eps": spec.exploration.start,
        "exploration_final_eps": spec.exploration.end,
        "normalize_observations": spec.observation.normalize,
        "clip_observations": spec.observation.clip,
    }
    built = C51("MlpPolicy", "OUSpread-v0", device="cpu")
    assert isinstance(built.replay_buffer, PrioritizedReplayBuffer)

    assert {name: given[name] for name in expected} == expected
    assert [x.out_features for x in linear_layers(built.q_net)] == [*c.layers, 3 * c.atoms]
    assert built.policy.optimizer.defaults["eps"] == c.adam_eps
    assert built.replay_buffer._priorities.spec == r
    assert built.n_steps == built.replay_buffer.n_steps == c.n_step


def test_arguments_of_dqn_keep_their_places() -> None:
    """Positional arguments of a DQN mean the same here."""
    dqn, ours = (list(inspect.signature(c.__init__).parameters) for c in (DQN, C51))

    assert ours[: len(dqn)] == dqn
    assert inspect.signature(C51.learn).parameters["tb_log_name"].default == "C51"


@pytest.mark.parametrize(
    ("given", "epsilon"),
    [({}, 0.01 / 8), ({"optimizer_kwargs": {"eps": 1e-3}}, 1e-3), ({"net_arch": [4]}, 0.01 / 8)],
    ids=str,
)
def test_optimizer_is_ones_own_when_given(
    model: Build, given: dict[str, Any], epsilon: float
) -> None:
    """Adam's epsilon is the paper's for the batch size, unless `policy_kwargs` say otherwise."""
    learned = model(policy_kwargs=given)
    other = model(policy_kwargs={"optimizer_class": torch.optim.RMSprop})

    assert learned.policy.optimizer.defaults["eps"] == epsilon
    assert learned.policy_kwargs == given
    assert isinstance(other.policy.optimizer, torch.optim.RMSprop)
    assert other.learn(20).num_timesteps >= 20


def test_four_environments_beat_the_reference() -> None:
    """5,000 steps of OUSpread-v0 in four copies: better than the reference on held-out paths."""
    env = make_vec_env("OUSpread-v0", n_envs=4, seed=0)
    learned = C51("MlpPolicy", env, train_freq=1, seed=0, device="cpu").learn(5_000)
    returns = paired_returns(lambda x: learned.predict(x, deterministic=True)[0], 1_000, seed=1)
    gain = paired_bootstrap(returns.policy - returns.reference, seed=0)

    assert learned._n_updates == 1_000
    assert gain.low > 0.5
    assert returns.gap_closed > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train_freq": 1, "n_steps": 1, "double": False},
        {"train_freq": 1, "alpha": 0.0},
        {"train_freq": 1, "normalize_observations": False},
    ],
    ids=str,
)
def test_variants_beat_the_reference(settings: dict[str, Any]) -> None:
    """So do the defaults, with half of the updates, and each option."""
    env = make_vec_env("OUSpread-v0", n_envs=4, seed=0)
    learned = C51("MlpPolicy", env, seed=0, device="cpu", **settings).learn(5_000)
    returns = paired_returns(lambda x: learned.predict(x, deterministic=True)[0], 1_000, seed=1)

    assert paired_bootstrap(returns.policy - returns.reference, seed=0).low > 0


class Recorder(BaseCallback):
    """Counts its calls, and keeps what was logged at each dump."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.rollouts = 0, 0

    def _on_step(self) -> bool:
        self.steps += 1
        return self.steps < 50

    def _on_rollout_end(self) -> None:
        self.rollouts += 1


def test_it_is_an_off_policy_algorithm(model: Build, logged: Logged) -> None:
    """Callbacks are called and may stop it; the logger has DQN's keys and the clipped mass."""
    recorder = Recorder()
    learned = model()
    assert isinstance(learned, OffPolicyAlgorithm)
    learned.learn(1_000, callback=recorder, log_interval=10**9)
    learned.dump_logs = lambda: None  # type: ignore[method-assign]
    log = set(logged(learned))

    assert (recorder.steps, recorder.rollouts, learned.num_timesteps) == (50, 24, 100)
    assert log == {
        "rollout/exploration_rate",
        "train/clipped_high",
        "train/clipped_low",
        "train/learning_rate",
        "train/loss",
        "train/n_updates",
    }


def test_dumped_logs_have_the_episodes(model: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """What `verbose` prints holds the episodes and the speed beside the losses."""
    learned = model(verbose=1)
    learned._custom_logger = False
    learned.learn(60, log_interval=4)
    printed = capsys.readouterr().out

    for key in ("ep_rew_mean", "ep_len_mean", "fps", "total_timesteps", "loss", "clipped_low"):
        assert key in printed


def test_learning_goes_on(model: Build) -> None:
    """`reset_num_timesteps=False` counts on; without it, the count begins anew."""
    learned = model().learn(40)
    updates = learned._n_updates
    learned.learn(24, reset_num_timesteps=False)
    assert (learned.num_timesteps, learned._n_updates > updates) == (64, True)
    learned.learn(24)

    assert learned.num_timesteps == 24


def test_an_interrupted_episode_ends_its_sums(model: Build, walk: Walks) -> None:
    """No n-step sum crosses the reset that `learn`, `set_env` or another buffer brings."""
    learned = model(n_steps=3, train_freq=1, learning_starts=10**6)
    replay = learned.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    learned.learn(2)
    learned.learn(4, reset_num_timesteps=False)  # goes on where it was
    learned.learn(2)  # resets
    learned.set_env(walk(2))
    learned.learn(2, reset_num_timesteps=False)  # resets too
    closed = replay._closed[: replay.size(), 0].tolist()

    assert closed == [False, False, True, True, False]


def test_environments_change(model: Build, walk: Walks) -> None:
    """`set_env` goes on in another environment of the same kind, and refuses another number."""
    learned = model().learn(32)
    other = walk(2)
    learned.set_env(other)
    learned.learn(32)
    assert learned.get_env() is other
    with pytest.raises(AssertionError, match="number of environments"):
        learned.set_env(walk(3))


def test_evaluation_is_sb3s(model: Build, walk: Walks, tmp_path: Path) -> None:
    """EvalCallback writes evaluations.npz and the best model; evaluate_policy takes both."""
    held_out = walk(1)
    callback = EvalCallback(
        held_out,
        n_eval_episodes=3,
        eval_freq=20,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    learned = model().learn(80, callback=callback)
    written = np.load(tmp_path / "evaluations.npz")
    best = C51.load(tmp_path / "best_model.zip", device="cpu")

    assert written["timesteps"].tolist() == [40, 80]
    assert written["results"].shape == written["ep_lengths"].shape == (2, 3)
    for policy in (learned, learned.policy, best):
        mean, _ = evaluate_policy(policy, held_out, n_eval_episodes=3)
        assert -5.0 <= float(mean) <= 0.0


def test_equal_seeds_learn_alike(model: Build, walk: Walks) -> None:
    """A seed decides every weight; another one gives others."""
    runs = [weights(model(walk(2), seed=seed).learn(60).q_net) for seed in (3, 3, 4)]

    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not np.array_equal(runs[0][0], runs[2][0])


def test_reseeding_begins_the_draws_anew(model: Build) -> None:
    """`set_random_seed` reaches the replay's stream, and None leaves it alone."""
    learned = model(learning_starts=10**6).learn(60)
    replay = learned.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    draws = []
    for seed in (7, 7, 8):
        learned.set_random_seed(seed)
        draws.append(replay.sample(8).drawn.slot.tolist())
    state = replay._rng.bit_generator.state
    learned.set_random_seed(None)

    assert draws[0] == draws[1] != draws[2]
    assert replay._rng.bit_generator.state == state


def test_importance_weights_anneal(model: Build) -> None:
    """β rises from `beta_start` to 1 over `beta_updates` updates."""
    learned = model(learning_starts=10**6, beta_start=0.4, beta_updates=3).learn(20)
    replay = learned.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    betas = []
    for _ in range(5):
        learned.train(1, 8)
        betas.append(replay.beta)

    assert betas == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])


def test_double_learning_leaves_batch_norm_alone(model: Build) -> None:
    """The choice at the successors does not move statistics: they are those without it."""

    class Normed(torch.nn.BatchNorm1d):
        """An activation with statistics of its own."""

        def __init__(self) -> None:
            super().__init__(8)

    policy_kwargs = {"net_arch": [8], "activation_fn": Normed}
    statistics = []
    for double in (False, True):
        learned = model(
            double=double, policy_kwargs=policy_kwargs, learning_starts=10**6, seed=1
        ).learn(20)
        learned.train(1, 8)
        statistics.append(learned.q_net.q_net[1].running_mean.numpy().copy())

    assert np.abs(statistics[0]).max() > 0
    assert np.array_equal(statistics[0], statistics[1])


def test_non_finite_updates_are_skipped(model: Build, logged: Logged) -> None:
    """A NaN reward moves no weight and no priority; it is warned about and counted."""
    learned = model(learning_starts=10**6).learn(20)
    replay = learned.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    replay.rewards[:] = np.nan
    before = weights(learned.q_net)
    with pytest.warns(RuntimeWarning, match="non-finite loss or gradient"):
        learned.train(2, 8)

    assert all(np.array_equal(a, b) for a, b in zip(before, weights(learned.q_net), strict=True))
    assert set(replay.priorities.tolist()) == {1.0}
    assert logged(learned)["train/non_finite"] == 2


@pytest.mark.parametrize("kind", [ReplayBuffer, NStepReplayBuffer])
def test_another_replay_buffer(model: Build, logged: Logged, kind: type[ReplayBuffer]) -> None:
    """SB3's own buffers work, uniformly; one that sums n steps brings its discounts."""
    kwargs = {"n_steps": 3, "gamma": 0.9} if kind is NStepReplayBuffer else {}
    learned = model(replay_buffer_class=kind, replay_buffer_kwargs=kwargs).learn(60)

    assert type(learned.replay_buffer) is kind
    assert np.isfinite(logged(learned)["train/loss"])


def test_discounts_of_another_buffer_are_used(
    model: Build, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss on SB3's n-step samples is that on ours, which hold the same transitions."""
    ours = model(n_steps=3, gamma=0.9, alpha=0.0, learning_starts=10**6).learn(60)
    theirs = model(
        replay_buffer_class=NStepReplayBuffer,
        replay_buffer_kwargs={"n_steps": 3, "gamma": 0.9},
        learning_starts=10**6,
    ).learn(60)
    theirs.policy.load_state_dict(ours.policy.state_dict())
    replay, other = ours.replay_buffer, theirs.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    assert isinstance(other, NStepReplayBuffer)
    data = replay.sample(8)
    row, at = np.divmod(data.drawn.slot, 2)
    monkeypatch.setattr(replay, "sample", lambda *_, **__: data)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        setattr(other, name, getattr(replay, name))
    monkeypatch.setattr(np.random, "randint", lambda *_, **__: at)
    sampled = other._get_samples(row)
    monkeypatch.setattr(other, "sample", lambda *_, **__: sampled)
    for each in (ours, theirs):
        each.train(1, 8)

    assert logged(ours)["train/loss"] == pytest.approx(logged(theirs)["train/loss"], rel=1e-6)


def test_no_warning_about_n_steps(model: Build) -> None:
    """SB3 warns that a class of one's own ignores `n_steps`; ours does not ignore it."""
    learned = model(n_steps=3)
    subclass = type("Mine", (PrioritizedReplayBuffer,), {})
    mine = model(n_steps=3, replay_buffer_class=subclass)

    for each in (learned, mine):
        assert isinstance(each.replay_buffer, PrioritizedReplayBuffer)
        assert (each.n_steps, each.replay_buffer.n_steps) == (3, 3)
    assert learned.replay_buffer_class is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"atoms": 1}, "c51.atoms: expected 2..1001, got 1"),
        ({"v_min": 3.0}, "c51.support: expected"),
        ({"gamma": 1.5}, "c51.gamma"),
        ({"batch_size": 0}, "c51.batch_size"),
        ({"max_grad_norm": 0.0}, "c51.max_grad_norm"),
        ({"n_steps": 0}, "c51.n_step"),
        ({"alpha": -1.0}, "replay.alpha"),
        ({"beta_start": 2.0}, "replay.beta_start"),
        ({"beta_updates": 0}, "replay.beta_updates"),
        ({"priority_epsilon": 0.0}, "replay.priority_epsilon"),
        ({"is_normalizer": "mean"}, "is_normalizer"),
        ({"clip_observations": 0.0}, "observation.clip"),
        (
            {"replay_buffer_class": ReplayBuffer, "alpha": 0.6},
            "alpha: expected 0 or None with a replay_buffer_class that has no priorities",
        ),
        ({"policy_kwargs": {"atoms": 5}}, r"policy_kwargs: expected no argument of C51.*atoms"),
        (
            {"policy_kwargs": {"duelling": True}},
            r"policy_kwargs: expected any of \['net_arch', .*'optimizer_kwargs', 'dueling',"
            r" .*\], got 'duelling'; did you mean 'dueling'\?",
        ),
        ({"policy_kwargs": {"qqq": 1}}, r"'risk_level'\], got 'qqq'$"),
        ({"policy": DQNPolicy}, r"policy: expected MlpPolicy, .* got stable_baselines3.*DQNPolicy"),
        ({"replay_buffer_kwargs": {"alpha": 0.1}}, r"replay_buffer_kwargs: .*give it to C51"),
        ({"optimize_memory_usage": True}, "optimize_memory_usage"),
    ],
)
def test_bad_settings_are_refused(model: Build, settings: dict[str, Any], message: str) -> None:
    """Each is named, with what was expected and given."""
    if settings.get("optimize_memory_usage"):
        settings = {**settings, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    with pytest.raises(InvalidValue, match=message):
        model(**settings)


def test_actions_that_do_not_start_at_0_are_refused(model: Build) -> None:
    """The network knows indices; an action of another numbering would be taken for one."""
    env = IdentityEnv(3)
    env.action_space = spaces.Discrete(3, start=-1)
    with pytest.raises(InvalidValue, match="a Discrete that starts at 0"):
        model(env)


def test_double_normalisation_is_refused(model: Build, walk: Walks, tmp_path: Path) -> None:
    """VecNormalize's observations and ours exclude each other, and the message says why."""
    reason = r"VecNormalize\(norm_obs=True\); C51 normalises them itself"
    with pytest.raises(InvalidValue, match=reason):
        model(VecNormalize(walk(2)))
    learned = model()
    before = learned.get_env()
    with pytest.raises(InvalidValue, match=reason):
        learned.set_env(VecNormalize(walk(2)))
    assert learned.get_env() is before
    learned.save(tmp_path / "model")
    with pytest.raises(InvalidValue, match=reason):
        C51.load(tmp_path / "model", env=VecNormalize(walk(2)))


@pytest.mark.parametrize("norm_obs", [True, False])
def test_single_normalisation_works(model: Build, walk: Walks, norm_obs: bool) -> None:
    """With either of the two switched off, VecNormalize does the rest, rewards included."""
    env = VecNormalize(walk(2), norm_obs=norm_obs, norm_reward=True)
    learned = model(env, normalize_observations=not norm_obs).learn(60)
    replay = learned.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    data = replay.sample(8, env=env)

    assert (learned.policy.moments is None) == norm_obs
    assert (np.abs(data.observations.numpy()).max() < 50) == norm_obs
    assert not np.isin(data.rewards.numpy(), [0.0, -1.0]).all()


def test_vec_normalize_may_have_what_c51_leaves(model: Build) -> None:
    """The parts of a Dict have no moments of ours, so there is nothing to refuse."""
    plain = make_vec_env(lambda: SimpleMultiObsEnv(channel_last=False))
    env = VecNormalize(plain, norm_obs_keys=["vec"])
    learned = model(env, "MultiInputPolicy").learn(20)

    assert learned.policy.moments is None


def test_gym_plugin_id() -> None:
    """The environment is made from its id, as by every SB3 class."""
    learned = C51("MlpPolicy", "jormungandr_envs:OUSpread-v0", device="cpu", seed=0)

    assert isinstance(learned.action_space, gym.spaces.Discrete)
    assert learned.learn(8).num_timesteps == 8
