"""Multi-step returns and advantages over streams of transitions, with both kinds of episode end.

Shape letters: B independent streams, T consecutive steps (axis 1). Symbols, for step t of a stream:

    r_t   reward                           term_t   terminated: nothing follows, bootstrap 0
    V_t   value of the state acted in      trunc_t  truncated: cut off, what follows has a value
    V'_t  `next_value`, of the successor   end_t    term_t or trunc_t: t+1 is another episode's
    γ     discount, in [0, 1]              λ        trace decay, in [0, 1]

`next_value[t]` is the value of the true successor of step t, never of a state after a reset; inside
an episode it equals `value[t+1]`. Only `terminated` masks a bootstrap, either flag cuts a trace; a
step with both counts as terminated. The last column bootstraps from its own `next_value`.

A masked entry is selected away, not multiplied by 0, so a NaN at a masked place, or beyond an
episode's end, does no harm.

Dtypes: the widest of the floating arguments, float32 or float64. Masks may be bool or any number,
non-zero meaning yes. Nothing is detached: call under `torch.no_grad()` where a result is a target.
"""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["NStep", "VTrace", "drip", "gae", "n_step", "q_lambda", "vtrace"]


class NStep(NamedTuple):
    """What `n_step` returns; every field has shape (T,).

    Attributes:
        returns: Σ_{j<k} γ^j r_{t+j}, the reward part of the target.
        discount: γ^k, or 0 if the window's last step terminated: the factor of the bootstrap.
        last_index: t+k−1 (int64), the step whose true successor the target bootstraps from.
        complete: False where only the end of the stream cut the window, which later steps would
            still extend; True where the window has n steps or reaches an episode's end.
    """

    returns: Tensor
    discount: Tensor
    last_index: Tensor
    complete: Tensor


class VTrace(NamedTuple):
    """What `vtrace` returns; both fields have shape (B, T).

    Attributes:
        vs: v_t, targets for the value function.
        pg_advantage: Advantages for the policy gradient, importance weight included.
    """

    vs: Tensor
    pg_advantage: Tensor


def n_step(reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, n: int) -> NStep:
    """Form the n-step target of every step of one stream.

    Sutton and Barto (2018), equation 7.1, with the episode ends of Pardo et al. (2018),
    arXiv:1712.00378. The window of step t has k = min(n, steps to the first end inclusive, steps to
    the end of the stream) steps.

    Args:
        reward: r_t of one stream of consecutive steps, shape (T,).
        terminated: term_t, shape (T,).
        truncated: trunc_t, shape (T,).
        gamma: γ in [0, 1].
        n: Longest window, at least 1.

    Returns:
        `NStep`; the target is `returns + discount · value(true successor of last_index)`.

    Raises:
        ValueError: A shape or dtype does not fit, γ is outside [0, 1], or n < 1.
    """
    if n < 1:
        raise ValueError(f"n_step.n: expected at least 1, got {n!r}")
    _check_unit("n_step", gamma=gamma)
    masks = {"terminated": terminated, "truncated": truncated}
    (reward,), (term, trunc) = _aligned("n_step", "T,", {"reward": reward}, masks)
    end = term | trunc
    steps = reward.shape[0]
    returns = torch.zeros_like(reward)
    length = torch.zeros(steps, dtype=torch.int64, device=reward.device)
    open_ = torch.ones(steps, dtype=torch.bool, device=reward.device)  # windows not yet ended
    for j in range(min(n, steps)):
        # Window t takes in step t+j: slices of one length pair them, late windows drop out.
        open_ = open_[: steps - j]
        returns[: steps - j] += torch.where(open_, gamma**j * reward[j:], 0.0)
        length[: steps - j] += open_
        open_ = open_ & ~end[j:]
    last = torch.arange(steps, device=reward.device) + length - 1
    powers = torch.tensor([gamma**k for k in range(min(n, steps) + 1)], dtype=torch.float64)
    discount = torch.where(term[last], 0.0, powers.to(reward)[length])
    return NStep(returns, discount, last, (length == n) | end[last])


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:  # (B, T)
    """Return generalized advantage estimates; plus `value`, they are the critic's λ-returns.

    Schulman et al. (2016), arXiv:1506.02438, equation 16, computed backward:

        δ_t = r_t + γ(1 − term_t) V'_t − V_t        A_t = δ_t + γλ(1 − end_t) A_{t+1}

    Args:
        reward: r_t, shape (B, T).
        value: V_t, shape (B, T).
        next_value: V'_t, shape (B, T).
        terminated: term_t, shape (B, T).
        truncated: trunc_t, shape (B, T).
        gamma: γ in [0, 1].
        lam: λ in [0, 1]; 0 gives the TD error, 1 the bootstrapped return minus the value.

    Returns:
        Advantages A_t, shape (B, T).

    Raises:
        ValueError: A shape or dtype does not fit, or γ or λ is outside [0, 1].
    """
    _check_unit("gae", gamma=gamma, lam=lam)
    values = {"reward": reward, "value": value, "next_value": next_value}
    masks = {"terminated": terminated, "truncated": truncated}
    (reward, value, next_value), (term, trunc) = _aligned("gae", "B, T", values, masks)
    delta = reward + gamma * torch.where(term, 0.0, next_value) - value
    return _backward(delta, torch.full_like(delta, gamma * lam), term | trunc)


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    rho: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> VTrace:
    """Return V-trace targets and advantages, corrected for a behaviour policy μ that lags behind π.

    Espeholt et al. (2018), arXiv:1802.01561, equation 1 in the recursion of remark 1, with the λ of
    remark 2 and the advantage of section 4.2:

        ρ_t = min(ρ̄, π/μ)        c_t = λ min(c̄, π/μ)        δ_t as in `gae`
        v_t = V_t + ρ_t δ_t + γ(1 − end_t) c_t (v_{t+1} − V_{t+1})
        advantage_t = min(ρ̄_pg, π/μ) (r_t + γ(1 − term_t) w_t − V_t)

    where w_t is v_{t+1} inside an episode, and V'_t at its end and in the last column: after a
    truncation v_{t+1} belongs to the next episode.

    Args:
        reward: r_t, shape (B, T).
        value: V_t under the current critic, shape (B, T).
        next_value: V'_t, shape (B, T).
        terminated: term_t, shape (B, T).
        truncated: trunc_t, shape (B, T).
        rho: Importance ratios π(a|x)/μ(a|x), shape (B, T), not clipped, not logarithms; ≥ 0.
        gamma: γ in [0, 1].
        lam: λ in [0, 1].
        rho_bar: ρ̄ ≥ 0, may be infinite; decides what the targets converge to. The paper assumes
            ρ̄ ≥ c̄.
        c_bar: c̄ ≥ 0, may be infinite; cuts the traces, which changes speed and variance only.
        pg_rho_bar: ρ̄_pg ≥ 0, may be infinite; truncates the weight of the policy gradient.

    Returns:
        `VTrace` of shape (B, T) each. On-policy (all ratios 1, ρ̄ and c̄ ≥ 1) `vs` is the λ-return.

    Raises:
        ValueError: A shape or dtype does not fit, γ or λ is outside [0, 1], or a truncation level
            is negative or NaN.
    """
    _check_unit("vtrace", gamma=gamma, lam=lam)
    for name, level in (("rho_bar", rho_bar), ("c_bar", c_bar), ("pg_rho_bar", pg_rho_bar)):
        if not level >= 0:
            raise ValueError(f"vtrace.{name}: expected a truncation level ≥ 0, got {level!r}")
    values = {"reward": reward, "value": value, "next_value": next_value, "rho": rho}
    masks = {"terminated": terminated, "truncated": truncated}
    (reward, value, next_value, rho), (term, trunc) = _aligned("vtrace", "B, T", values, masks)
    end = term | trunc
    delta = reward + gamma * torch.where(term, 0.0, next_value) - value
    correction = _backward(rho.clamp(max=rho_bar) * delta, gamma * lam * rho.clamp(max=c_bar), end)
    vs = value + correction
    bootstrap = next_value.clone()
    bootstrap[:, :-1] = torch.where(end[:, :-1], next_value[:, :-1], vs[:, 1:])
    target = reward + gamma * torch.where(term, 0.0, bootstrap)
    return VTrace(vs, rho.clamp(max=pg_rho_bar) * (target - value))


def q_lambda(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:  # (B, T)
    """Return the λ-return targets of parallelised Q-learning.

    Gallici et al. (2024), arXiv:2407.04811 (PQN), with truncation told apart from termination:

        l_t = λ(1 − end_t), but 0 in the last column
        G_t = r_t + γ(1 − term_t) [(1 − l_t) V'_t + l_t G_{t+1}]

    Args:
        reward: r_t, shape (B, T).
        next_value: V'_t = max_a Q(true successor, a), shape (B, T).
        terminated: term_t, shape (B, T).
        truncated: trunc_t, shape (B, T).
        gamma: γ in [0, 1].
        lam: λ in [0, 1]; 0 gives the one-step target.

    Returns:
        Targets G_t, shape (B, T).

    Raises:
        ValueError: A shape or dtype does not fit, or γ or λ is outside [0, 1].
    """
    _check_unit("q_lambda", gamma=gamma, lam=lam)
    values = {"reward": reward, "next_value": next_value}
    masks = {"terminated": terminated, "truncated": truncated}
    (reward, next_value), (term, trunc) = _aligned("q_lambda", "B, T", values, masks)
    end = term | trunc
    end[:, -1:] = True  # the episode goes on, but not in these columns: l = 0
    trace = torch.where(end, 0.0, torch.full_like(reward, lam))  # l_t
    x = reward + gamma * torch.where(term, 0.0, (1 - trace) * next_value)
    return _backward(x, gamma * trace, end)


def drip(reward: Tensor, done: Tensor, decay: float) -> Tensor:  # (B, T)
    """Return rewards with the decayed future rewards of the same episode and rollout added.

    Distributed Reward Information Processing, as the reference of JaxDEM's PPO trainer defines it:
    r̃_t = r_t + d(1 − end_t) r̃_{t+1}. It is a sum, not an average: the scale of rewards, and with
    it of values, grows by up to 1/(1 − d).

    Args:
        reward: r_t, shape (B, T).
        done: end_t, of either kind, shape (B, T).
        decay: d in [0, 1]; 0 leaves the rewards as they are.

    Returns:
        Transformed rewards r̃_t, shape (B, T).

    Raises:
        ValueError: A shape or dtype does not fit, or the decay is outside [0, 1].
    """
    _check_unit("drip", decay=decay)
    (reward,), (end,) = _aligned("drip", "B, T", {"reward": reward}, {"done": done})
    return _backward(reward, torch.full_like(reward, decay), end)


def _backward(x: Tensor, decay: Tensor, end: Tensor) -> Tensor:  # (B, T)
    """Solve y_t = x_t + decay_t (1 − end_t) y_{t+1} from the last column, with y_T = 0."""
    if x.shape[1] == 0:
        return x.clone()
    xs, decays, ends = x.unbind(1), decay.unbind(1), end.unbind(1)
    columns = [xs[-1]]
    for t in reversed(range(len(xs) - 1)):
        carried = torch.addcmul(xs[t], decays[t], columns[-1])  # (B,)
        columns.append(torch.where(ends[t], xs[t], carried))
    return torch.stack(columns[::-1], 1)


def _aligned(
    where: str, axes: str, values: dict[str, Tensor], masks: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Check ranks and shapes; return the values in one floating dtype, the masks as bool."""
    shape = values["reward"].shape
    for name, value in (values | masks).items():
        if value.shape != shape or value.ndim != len(axes.split()):
            expected = f"expected shape ({axes}), the same as reward's {tuple(shape)}"
            raise ValueError(f"{where}.{name}: {expected}, got {tuple(value.shape)}")
    dtype = reduce(torch.promote_types, (value.dtype for value in values.values()))
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{where}.reward: expected float32 or float64, got {dtype}")
    return tuple(v.to(dtype) for v in values.values()), tuple(m != 0 for m in masks.values())


def _check_unit(where: str, **factors: float) -> None:
    """Refuse a factor outside [0, 1]."""
    for name, factor in factors.items():
        if not 0 <= factor <= 1:
            raise ValueError(f"{where}.{name}: expected a number in [0, 1], got {factor!r}")
