"""A model by what it was sent: rewards, episodes, features, actions, lag, splits, labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from jormungandr.ledger import Counters
from jormungandr.service.diagnosis.finding import Finding, fail, ok, skip, warn
from jormungandr.service.diagnosis.sample import Sample

__all__ = ["check_sample"]

#: Part of the returns beyond the support from which on it matters, and from which it is wrong.
CLIPPED, MOSTLY_CLIPPED = 0.01, 0.25
#: Transitions after which an episode should have ended.
ENOUGH = 1_000
#: Transitions after which rewards that were all alike are no chance of the beginning: somebody who
#: acts at random on FrozenLake is paid once in some 550.
SETTLED = 10_000
#: Absolute value of a feature, and mean by standard deviation, that float32 resolves badly.
HUGE, OFFSET = 1e6, 1e4
#: Part of the actions below which one is rare.
RARE = 0.01
#: Versions of lag, in the median, from which on it is much.
LAG = 1_000
#: Part that is stale or unversioned from which on it matters.
MANY = 0.1
#: Part of held-out transitions from which on too little is learned from.
HELD_OUT = 0.5
#: Part of labelled transitions below which an auxiliary head learns little.
LABELLED = 0.05


def check_sample(sample: Sample, counters: Counters) -> Iterator[Finding]:
    """Check the newest transitions of a model.

    Args:
        sample: of them.
        counters: what was admitted in all.
    """
    for name, check in _CHECKS.items():
        if sample.size:
            yield check(sample, counters)
        else:
            yield skip(name, "no transitions yet")


def _clipped(sample: Sample, _: Counters) -> Finding:
    support = sample.spec.c51.support
    if support == "auto":
        return ok("clipped", "the support fits itself to the rewards")
    low, high = support
    returns = []
    for episode in sample.episodes.values():
        rewards = episode.whole() if episode.terminated else None
        if rewards is not None:
            returns.append(_discounted(rewards, sample.spec.c51.gamma))
    if not returns:
        return skip("clipped", "no whole episode that terminated")
    values = np.concatenate(returns)
    beyond = float(np.mean((values < low) | (values > high)))
    said = (
        f"{beyond:.1%} of {len(values)} observed returns beyond the support [{low:g}, {high:g}],"
        f" they are {values.min():.3g} … {values.max():.3g}"
    )
    remedy = f"set c51.support to about [{_wider(values.min(), -1)}, {_wider(values.max(), 1)}]"
    if beyond > MOSTLY_CLIPPED:
        return fail("clipped", said, remedy)
    width = float(values.max() - values.min())
    if beyond > CLIPPED:
        return warn("clipped", said, remedy)
    if 0 < width < (high - low) / max(sample.spec.c51.atoms, 2):
        return warn("clipped", f"{said}: within one atom", remedy)
    return ok("clipped", said)


def _discounted(rewards: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Return (T,) the discounted return from each step on."""
    found, following = np.empty(len(rewards)), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        found[t] = following = float(rewards[t]) + gamma * following
    return found


def _wider(value: float, sign: int) -> str:
    return f"{value + sign * 0.2 * max(abs(value), 1.0):.2g}"


def _reward(sample: Sample, _: Counters) -> Finding:
    rewards = sample.rewards
    said = f"{rewards.min():.3g} … {rewards.max():.3g}, mean {rewards.mean():.3g}"
    if rewards.min() == rewards.max() and len(rewards) > 1:
        return _always(sample, float(rewards[0]))
    zeros = float(np.mean(rewards == 0))
    if zeros > 0.999:
        remedy = "n_step > 1 carries rare rewards further back"
        return warn("reward", f"{said}, {zeros:.2%} are zero", remedy)
    return ok("reward", said)


def _always(sample: Sample, reward: float) -> Finding:
    """Return what is found where all rewards are alike; a point for each step, say, is enough.

    Where a reward is not 0 and episodes terminate, how long they last tells actions apart. A
    truncation does not: what would have followed counts on.
    """
    said = f"always {reward:g}"
    lengths = [episode.length for episode in sample.episodes.values() if episode.ended]
    terminated = any(episode.terminated for episode in sample.episodes.values())
    if reward and terminated and min(lengths) < max(lengths):
        return ok("reward", f"{said}, in episodes of {min(lengths)} … {max(lengths)} steps")
    remedy = "nothing tells actions apart: check what the environment returns"
    if sample.size >= SETTLED:
        return fail("reward", said, remedy)
    said += f", in only {sample.size} transitions"
    return warn("reward", said, f"{remedy}, if it is still so after {SETTLED:,}")


def _episodes(sample: Sample, _: Counters) -> Finding:
    ended = sum(episode.ended for episode in sample.episodes.values())
    still = [len(episode) for episode in sample.episodes.values() if not episode.ended]
    actors = len({actor for actor, _ in sample.episodes})
    said = f"{ended} of {len(sample.episodes)} ended"
    if still:
        said += f", the longest open one has {max(still)} transitions"
    remedy = "send terminated or truncated with the last transition of each episode"
    if not ended and sample.size >= ENOUGH:
        return fail("episodes", said, remedy)
    # One that goes on for each actor, in several environments perhaps, is as it should be.
    if len(still) > max(4 * actors, ended):
        return warn("episodes", f"{said}: {len(still)} were left open by {actors} actors", remedy)
    if max(still, default=0) > 10 * ENOUGH:
        return warn("episodes", said, "set a time limit, and send truncated when it is reached")
    return ok("episodes", said)


def _features(sample: Sample, _: Counters) -> Finding:
    if not len(sample.low):
        return skip("features", "images")
    names = sample.spec.observation.features or [f"feature {k}" for k in range(len(sample.low))]
    constant = [
        n for n, low, high in zip(names, sample.low, sample.high, strict=True) if low == high
    ]
    large = np.maximum(abs(sample.low), abs(sample.high)) > HUGE
    offset = (sample.std > 0) & (abs(sample.mean) > OFFSET * sample.std)
    coarse = [name for name, bad in zip(names, large | offset, strict=True) if bad]
    said = f"{len(names)} features"
    if sample.size > 1 and len(constant) == len(names):
        return fail("features", f"{said}, all constant", "check what the environment shows")
    if constant and sample.size > 1:
        said += f", constant: {_list(constant)}"
    if coarse:
        said += f", float32 is coarse there: {_list(coarse)}"
    if coarse:
        return warn("features", said, "subtract an offset or divide by a scale before sending")
    if constant and sample.size > 1:
        return warn("features", said, "leave them out, or check where they come from")
    return ok("features", f"{said}, between {sample.low.min():.3g} and {sample.high.max():.3g}")


def _list(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _actions(sample: Sample, _: Counters) -> Finding:
    labels = [action.label for action in sample.spec.action_set]
    share = sample.actions / sample.actions.sum()
    said = ", ".join(f"{n} {part:.1%}" for n, part in list(zip(labels, share, strict=True))[:8])
    never = [name for name, part in zip(labels, share, strict=True) if part == 0]
    rare = [name for name, part in zip(labels, share, strict=True) if 0 < part < RARE]
    if len(labels) > 1 and np.count_nonzero(share) == 1:
        return fail("actions", f"{said}: only one is ever chosen", "raise exploration.end")
    if never:
        return warn("actions", f"{said}; never: {_list(never)}", "raise exploration.end")
    if rare:
        return warn("actions", f"{said}; rare: {_list(rare)}", "raise exploration.end")
    return ok("actions", said)


def _lag(sample: Sample, counters: Counters) -> Finding:
    lags, sent = sample.lags, len(sample.lags) + sample.unversioned
    if not sent:
        return skip("lag", "no training transitions")
    said = f"{sample.unversioned / sent:.0%} name no policy"
    if len(lags):
        median, top = np.percentile(lags, [50, 99])
        said += f", lag of the others: median {median:.0f}, 99 % at most {top:.0f} versions"
    dropped = counters.stale_dropped / max(counters.stale_dropped + counters.train, 1)
    said += f", {dropped:.1%} dropped as stale"
    if dropped > MANY:
        return warn(
            "lag", said, "let actors ask for newer policies, or raise staleness.max_policy_lag"
        )
    if len(lags) and np.median(lags) > LAG:
        return warn(
            "lag", said, "let actors ask for newer policies, or lower updates_per_transition"
        )
    return ok("lag", said)


def _splits(sample: Sample, counters: Counters) -> Finding:
    share = sample.held_out / sample.size
    said = f"{share:.1%} held out, {counters.mixed_episodes} episodes with both splits"
    if not sample.held_out:
        return warn(
            "splits", said, "send some episodes as validation: without, nothing is measured"
        )
    if share > HELD_OUT:
        return warn("splits", said, "most is not learned from: send more of it as train")
    if counters.mixed_episodes:
        remedy = "split_scope: episode keeps neighbours, which share an observation, in one split"
        return warn("splits", said, remedy)
    return ok("splits", said)


def _labels(sample: Sample, counters: Counters) -> Finding:
    if sample.spec.auxiliary is None:
        return ok("labels", "none needed: no auxiliary head")
    share = float(sample.labels.sum()) / sample.size
    classes = sample.spec.auxiliary.classes
    said = f"{share:.1%} labelled, {counters.pending} labels wait for their transition"
    never = [name for name, many in zip(classes, sample.labels, strict=True) if not many]
    if not sample.labels.any():
        return fail("labels", said, "the auxiliary head learns nothing: send labels, or drop it")
    if never:
        return warn(
            "labels", f"{said}; never: {_list(never)}", "a class without labels is never told"
        )
    if share < LABELLED:
        return warn("labels", said, "send more labels, or lower auxiliary.weight")
    return ok("labels", said)


_CHECKS: dict[str, Callable[[Sample, Counters], Finding]] = {
    "clipped": _clipped,
    "reward": _reward,
    "episodes": _episodes,
    "features": _features,
    "actions": _actions,
    "lag": _lag,
    "splits": _splits,
    "labels": _labels,
}
