"""Returns and advantages: hand cases, slow oracles from the definitions, properties, refusals."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from jormungandr.numerics import returns

PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)
UNIT = st.sampled_from([0.0, 0.3, 0.9, 0.97, 1.0])


class Rollout(NamedTuple):
    """Streams of shape (B, T); inside an episode next_value[t] is value[t+1]."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    rho: Tensor

    @property
    def end(self) -> Tensor:
        """Either kind of end."""
        return self.terminated | self.truncated

    def last(self, row: int, start: int) -> int:
        """Return the last step of the episode of a step, or of the stream."""
        step = start
        while step < self.reward.shape[1] - 1 and not self.end[row, step]:
            step += 1
        return step


def rollout_of(seed: int, batch: int, steps: int, p_end: float) -> Rollout:
    """Make random streams whose episodes end in both ways, at times in both at once."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((batch, steps)) < p_end
    truncated = rng.random((batch, steps)) < p_end
    value, next_value, reward = rng.normal(size=(3, batch, steps))
    inside = ~(terminated | truncated)[:, :-1]
    next_value[:, :-1] = np.where(inside, value[:, 1:], next_value[:, :-1])
    rho = rng.lognormal(0, 0.7, (batch, steps))
    return Rollout(*map(torch.tensor, (reward, value, next_value, terminated, truncated, rho)))


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Draw streams of several lengths and rates of ending."""
    return rollout_of(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 14)),
        draw(st.sampled_from([0.0, 0.1, 0.4])),
    )


def close(actual: Tensor, expected: Tensor) -> None:
    """Compare to rounding error."""
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def row(*values: float) -> Tensor:
    """Return one stream, shape (1, T), float64."""
    return torch.tensor([values], dtype=torch.float64)


def flags(steps: int, *where: int) -> Tensor:
    """Return one stream of flags, set at some steps."""
    mask = torch.zeros(1, steps, dtype=torch.bool)
    mask[0, list(where)] = True
    return mask


# --- n-step ---------------------------------------------------------------------------------------


def oracle_n_step(stream: Rollout, gamma: float, n: int) -> list[tuple[float, float, int, bool]]:
    """Walk forward from every start of the first row."""
    out = []
    for t in range(stream.reward.shape[1]):
        last = min(t + n - 1, stream.last(0, t))
        total = sum(gamma**j * stream.reward[0, t + j].item() for j in range(last - t + 1))
        discount = 0.0 if stream.terminated[0, last] else gamma ** (last - t + 1)
        out.append((total, discount, last, last == t + n - 1 or bool(stream.end[0, last])))
    return out


def test_n_step_by_hand() -> None:
    """Rewards 1, 2, 4, 8, 16 with γ ½ and n 3, a termination at 1 and the stream's end at 4."""
    got = returns.n_step(row(1, 2, 4, 8, 16)[0], flags(5, 1)[0], flags(5)[0], 0.5, 3)
    assert got.returns.tolist() == [2.0, 2.0, 12.0, 16.0, 16.0]
    assert got.discount.tolist() == [0.0, 0.0, 0.125, 0.25, 0.5]
    assert got.last_index.tolist() == [1, 1, 4, 4, 4]
    assert got.complete.tolist() == [True, True, True, False, False]
    assert got.last_index.dtype == torch.int64
    assert got.complete.dtype == torch.bool


def test_n_step_bootstraps_at_a_truncation_and_not_at_a_termination() -> None:
    """A truncated window keeps γ^k; a step that is both counts as terminated."""
    reward, none = row(1, 1, 1)[0], flags(3)[0]
    truncated = returns.n_step(reward, none, flags(3, 1)[0], 0.5, 5)
    assert truncated.discount.tolist() == [0.25, 0.5, 0.5]
    assert truncated.complete.tolist() == [True, True, False]
    both = returns.n_step(reward, flags(3, 1)[0], flags(3, 1)[0], 0.5, 5)
    assert both.discount.tolist() == [0.0, 0.0, 0.5]
    assert both.returns.tolist() == truncated.returns.tolist() == [1.5, 1.0, 1.0]


@PROPERTY
@given(rollouts(), UNIT, st.integers(1, 20))
def test_n_step_equals_walking_forward(stream: Rollout, gamma: float, n: int) -> None:
    """Every field equals the oracle's, for random ends, and n below and above the length."""
    got = returns.n_step(stream.reward[0], stream.terminated[0], stream.truncated[0], gamma, n)
    total, discount, last, complete = zip(*oracle_n_step(stream, gamma, n), strict=True)
    close(got.returns, row(*total)[0])
    close(got.discount, row(*discount)[0])
    assert got.last_index.tolist() == list(last)
    assert got.complete.tolist() == list(complete)


@PROPERTY
@given(rollouts(), UNIT)
def test_one_step_windows_are_the_steps_themselves(stream: Rollout, gamma: float) -> None:
    """With n = 1 the returns are the rewards and every window is complete."""
    got = returns.n_step(stream.reward[0], stream.terminated[0], stream.truncated[0], gamma, 1)
    assert got.returns.tolist() == stream.reward[0].tolist()
    assert got.last_index.tolist() == list(range(stream.reward.shape[1]))
    assert got.complete.all()
    assert got.discount.tolist() == [0.0 if end else gamma for end in stream.terminated[0]]


# --- GAE ------------------------------------------------------------------------------------------


def oracle_gae(stream: Rollout, gamma: float, lam: float) -> Tensor:
    """Average the n-step advantages with weights (1 − λ)λ^{n−1}, the rest on the longest."""
    out = torch.zeros_like(stream.reward)
    for b in range(out.shape[0]):
        for t in range(out.shape[1]):
            last = stream.last(b, t)
            for k in range(t, last + 1):
                total = sum(gamma**j * stream.reward[b, t + j].item() for j in range(k - t + 1))
                if not stream.terminated[b, k]:
                    total += gamma ** (k - t + 1) * stream.next_value[b, k].item()
                weight = lam ** (k - t) * (1.0 if k == last else 1 - lam)
                out[b, t] += weight * total
            out[b, t] -= stream.value[b, t]
    return out


def gae_of(stream: Rollout, gamma: float, lam: float) -> Tensor:
    """Call `gae` on a rollout."""
    return returns.gae(*stream[:5], gamma, lam)


def test_gae_by_hand() -> None:
    """Three steps, γ = λ = ½, a truncation in the middle."""
    reward, value, next_value = row(1, 2, 3), row(10, 20, 30), row(20, 40, 60)
    got = returns.gae(reward, value, next_value, flags(3), flags(3, 1), 0.5, 0.5)
    # δ = 1 + 10 − 10, 2 + 20 − 20, 3 + 30 − 30
    assert got.tolist() == [[1.5, 2.0, 3.0]]
    got = returns.gae(reward, value, next_value, flags(3, 1), flags(3), 0.5, 0.5)
    assert got.tolist() == [[1 - 18 / 4, -18.0, 3.0]]


@PROPERTY
@given(rollouts(), UNIT, UNIT)
def test_gae_is_the_lambda_return_minus_the_value(s: Rollout, gamma: float, lam: float) -> None:
    """The backward recursion equals the weighted sum of n-step returns."""
    close(gae_of(s, gamma, lam), oracle_gae(s, gamma, lam))


@PROPERTY
@given(rollouts(), UNIT)
def test_gae_with_lambda_zero_is_the_td_error(s: Rollout, gamma: float) -> None:
    """GAE(γ, 0) looks one step ahead."""
    bootstrap = torch.where(s.terminated, 0.0, s.next_value)
    close(gae_of(s, gamma, 0.0), s.reward + gamma * bootstrap - s.value)


@PROPERTY
@given(rollouts(), UNIT)
def test_gae_with_lambda_one_is_the_return_minus_the_value(s: Rollout, gamma: float) -> None:
    """GAE(γ, 1) plus the value is the n-step return to the end of episode or stream."""
    for b in range(s.reward.shape[0]):
        long = returns.n_step(s.reward[b], s.terminated[b], s.truncated[b], gamma, 99)
        target = long.returns + long.discount * s.next_value[b, long.last_index]
        close(gae_of(s, gamma, 1.0)[b] + s.value[b], target)


# --- V-trace --------------------------------------------------------------------------------------


def oracle_vtrace(
    s: Rollout, gamma: float, lam: float, rho_bar: float, c_bar: float, pg_rho_bar: float
) -> tuple[Tensor, Tensor]:
    """Sum products of clipped ratios forward, as the definition is written."""
    vs, advantage = torch.zeros_like(s.reward), torch.zeros_like(s.reward)
    boot = torch.where(s.terminated, 0.0, s.next_value)
    for b in range(vs.shape[0]):
        for t in range(vs.shape[1]):
            vs[b, t], trace = s.value[b, t], 1.0
            for k in range(t, s.last(b, t) + 1):
                delta = s.reward[b, k] + gamma * boot[b, k] - s.value[b, k]
                vs[b, t] += gamma ** (k - t) * trace * min(rho_bar, s.rho[b, k].item()) * delta
                trace *= lam * min(c_bar, s.rho[b, k].item())
        for t in range(vs.shape[1]):
            if s.terminated[b, t]:
                following = torch.tensor(0.0)
            elif s.truncated[b, t] or t == vs.shape[1] - 1:
                following = s.next_value[b, t]
            else:
                following = vs[b, t + 1]
            gain = s.reward[b, t] + gamma * following - s.value[b, t]
            advantage[b, t] = min(pg_rho_bar, s.rho[b, t].item()) * gain
    return vs, advantage


def test_vtrace_by_hand() -> None:
    """Two steps, γ ½, ratios 2 and ½: ρ = c = 1 and ½."""
    got = returns.vtrace(
        row(1, 2), row(4, 8), row(8, 16), flags(2), flags(2), row(2, 0.5), 0.5, pg_rho_bar=3.0
    )
    # δ = 1 + 4 − 4 = 1 and 2 + 8 − 8 = 2; v_1 = 8 + ½·2, v_0 = 4 + 1 + ½·(v_1 − 8)
    assert got.vs.tolist() == [[5.5, 9.0]]
    # 2·(1 + ½·9 − 4) and ½·(2 + ½·16 − 8)
    assert got.pg_advantage.tolist() == [[3.0, 1.0]]


def test_vtrace_does_not_leak_across_a_truncation() -> None:
    """The advantage of a truncated step bootstraps from its true successor, not from v_{t+1}."""
    reward, value, next_value = row(1, 1), row(0, 100), row(10, 0)
    got = returns.vtrace(reward, value, next_value, flags(2), flags(2, 0), row(1, 1), 0.5)
    assert got.vs.tolist() == [[6.0, 1.0]]
    assert got.pg_advantage.tolist() == [[6.0, -99.0]]


@PROPERTY
@given(
    rollouts(),
    UNIT,
    UNIT,
    st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf]),
    st.sampled_from([0.0, 0.5, 1.0, math.inf]),
    st.sampled_from([0.5, 1.0, math.inf]),
)
def test_vtrace_equals_its_definition(
    s: Rollout, gamma: float, lam: float, rho_bar: float, c_bar: float, pg_rho_bar: float
) -> None:
    """Targets and advantages equal the sums of products, for any truncation levels."""
    got = returns.vtrace(*s, gamma, lam, rho_bar, c_bar, pg_rho_bar)
    vs, advantage = oracle_vtrace(s, gamma, lam, rho_bar, c_bar, pg_rho_bar)
    close(got.vs, vs)
    close(got.pg_advantage, advantage)


@PROPERTY
@given(rollouts(), UNIT, UNIT)
def test_vtrace_on_policy_gives_lambda_returns(s: Rollout, gamma: float, lam: float) -> None:
    """With all ratios 1 the targets are GAE plus the value."""
    got = returns.vtrace(*s._replace(rho=torch.ones_like(s.rho)), gamma, lam)
    close(got.vs, gae_of(s, gamma, lam) + s.value)


# --- Q(λ) -----------------------------------------------------------------------------------------


def oracle_q_lambda(s: Rollout, b: int, t: int, gamma: float, lam: float) -> float:
    """Recurse forward from one step."""
    reward, following = s.reward[b, t].item(), s.next_value[b, t].item()
    if s.terminated[b, t]:
        return reward
    if s.truncated[b, t] or t == s.reward.shape[1] - 1:
        return reward + gamma * following
    later = oracle_q_lambda(s, b, t + 1, gamma, lam)
    return reward + gamma * ((1 - lam) * following + lam * later)


def q_lambda_of(s: Rollout, gamma: float, lam: float) -> Tensor:
    """Call `q_lambda` on a rollout."""
    return returns.q_lambda(s.reward, s.next_value, s.terminated, s.truncated, gamma, lam)


def test_q_lambda_by_hand() -> None:
    """Three steps, γ = λ = ½, with no end, a termination and a truncation in the middle."""
    reward, next_value, none, middle = row(1, 2, 4), row(8, 16, 32), flags(3), flags(3, 1)
    call = partial(returns.q_lambda, gamma=0.5, lam=0.5)
    # 4 + 16 = 20; 2 + ½(8 + 10) = 11; 1 + ½(4 + 5.5) = 5.75
    assert call(reward, next_value, none, none).tolist() == [[5.75, 11.0, 20.0]]
    assert call(reward, next_value, middle, none).tolist() == [[3.5, 2.0, 20.0]]
    assert call(reward, next_value, none, middle).tolist() == [[5.5, 10.0, 20.0]]
    assert call(reward, next_value, middle, middle).tolist() == [[3.5, 2.0, 20.0]]


@PROPERTY
@given(rollouts(), UNIT, UNIT)
def test_q_lambda_equals_its_recursion(s: Rollout, gamma: float, lam: float) -> None:
    """The backward pass equals a forward recursion, element by element."""
    batch, steps = s.reward.shape
    expected = [[oracle_q_lambda(s, b, t, gamma, lam) for t in range(steps)] for b in range(batch)]
    close(q_lambda_of(s, gamma, lam), torch.tensor(expected, dtype=torch.float64))


@PROPERTY
@given(rollouts(), UNIT, UNIT)
def test_q_lambda_of_the_same_values_is_gae_plus_value(
    s: Rollout, gamma: float, lam: float
) -> None:
    """Where next_value is the next value, both are the λ-return."""
    close(q_lambda_of(s, gamma, lam), gae_of(s, gamma, lam) + s.value)


@PROPERTY
@given(rollouts(), UNIT)
def test_q_lambda_zero_is_the_one_step_target(s: Rollout, gamma: float) -> None:
    """With λ = 0 the trace carries nothing."""
    bootstrap = torch.where(s.terminated, 0.0, s.next_value)
    close(q_lambda_of(s, gamma, 0.0), s.reward + gamma * bootstrap)


@PROPERTY
@given(rollouts(), UNIT, UNIT)
def test_q_lambda_agrees_with_published_code_on_terminations(
    s: Rollout, gamma: float, lam: float
) -> None:
    """G = (1 − d)·(r + γv' + γλ(G' − v')) + d·r is right as long as d means termination."""
    s = s._replace(truncated=torch.zeros_like(s.truncated))
    done = s.terminated.double()
    one_step = s.reward + gamma * (1 - done) * s.next_value
    carry, columns = one_step[:, -1], [one_step[:, -1]]
    for t in reversed(range(s.reward.shape[1] - 1)):
        carry = one_step[:, t] + gamma * lam * (carry - s.next_value[:, t])
        carry = (1 - done[:, t]) * carry + done[:, t] * s.reward[:, t]
        columns.append(carry)
    close(q_lambda_of(s, gamma, lam), torch.stack(columns[::-1], 1))


# --- DRIP -----------------------------------------------------------------------------------------


def test_drip_by_hand() -> None:
    """Decay ½ over rewards 1, 2, 4, 8 with an end at 1."""
    assert returns.drip(row(1, 2, 4, 8), flags(4, 1), 0.5).tolist() == [[2.0, 2.0, 8.0, 8.0]]


@PROPERTY
@given(rollouts(), UNIT)
def test_drip_is_the_decayed_sum_to_the_end_of_the_episode(s: Rollout, decay: float) -> None:
    """Every entry equals Σ_j d^j r_{t+j} up to the episode's or the stream's end."""
    expected = torch.zeros_like(s.reward)
    for b in range(s.reward.shape[0]):
        for t in range(s.reward.shape[1]):
            for k in range(t, s.last(b, t) + 1):
                expected[b, t] += decay ** (k - t) * s.reward[b, k]
    close(returns.drip(s.reward, s.end, decay), expected)


def test_drip_without_decay_leaves_rewards_alone() -> None:
    """Decay 0 is the identity."""
    s = rollout_of(3, 2, 9, 0.2)
    assert torch.equal(returns.drip(s.reward, s.end, 0.0), s.reward)


# --- all of them ----------------------------------------------------------------------------------

BATCHED: dict[str, Callable[[Rollout], tuple[Tensor, ...]]] = {
    "gae": lambda s: (returns.gae(*s[:5], 0.9, 0.8),),
    "vtrace": lambda s: tuple(returns.vtrace(*s, 0.9, 0.8)),
    "q_lambda": lambda s: (returns.q_lambda(s[0], s[2], s[3], s[4], 0.9, 0.8),),
    "drip": lambda s: (returns.drip(s[0], s[3], 0.9),),
    "n_step": lambda s: tuple(returns.n_step(s[0][0], s[3][0], s[4][0], 0.9, 3))[:2],
}


@pytest.mark.parametrize("name", BATCHED)
def test_masks_may_be_bool_or_float(name: str) -> None:
    """Masks of any dtype mean the same."""
    s = rollout_of(1, 3, 12, 0.2)
    for dtype in (torch.float32, torch.float64, torch.uint8):
        other = s._replace(terminated=s.terminated.to(dtype), truncated=s.truncated.to(dtype))
        for one, two in zip(BATCHED[name](s), BATCHED[name](other), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_the_values_is_kept(name: str, dtype: torch.dtype) -> None:
    """float32 in gives float32 out, float64 in gives float64 out, and they agree."""
    s = rollout_of(2, 3, 12, 0.1)
    exact = BATCHED[name](s)
    cast = s._replace(
        reward=s.reward.to(dtype),
        value=s.value.to(dtype),
        next_value=s.next_value.to(dtype),
        rho=s.rho.to(dtype),
    )
    for one, two in zip(BATCHED[name](cast), exact, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nothing_crosses_the_end_of_an_episode(name: str, kind: str) -> None:
    """Even NaN in the next episode leaves this one's results as they were."""
    s = rollout_of(4, 2, 10, 0.0)
    end = torch.zeros(2, 10, dtype=torch.bool)
    end[:, 4] = True
    s = s._replace(**{kind: end, **({"truncated": end} if name == "n_step" else {})})
    if name == "drip":
        s = s._replace(terminated=end)
    before = BATCHED[name](s)
    spoiled = [field.clone() for field in (s.reward, s.value, s.next_value)]
    for field in spoiled:
        field[:, 5:] = math.nan
    after = BATCHED[name](s._replace(reward=spoiled[0], value=spoiled[1], next_value=spoiled[2]))
    for one, two in zip(before, after, strict=True):
        assert torch.equal(one[..., :5], two[..., :5])


@pytest.mark.parametrize("name", ["gae", "vtrace", "q_lambda"])
def test_the_value_after_a_termination_is_never_read(name: str) -> None:
    """A NaN as the value of a terminal state changes nothing."""
    s = rollout_of(5, 3, 10, 0.3)
    spoiled = torch.where(s.terminated, math.nan, s.next_value)
    for one, two in zip(
        BATCHED[name](s), BATCHED[name](s._replace(next_value=spoiled)), strict=True
    ):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", BATCHED)
def test_gradients_flow_through(name: str) -> None:
    """Nothing is detached or overwritten in a way that autograd could not follow."""
    s = rollout_of(6, 2, 8, 0.2)
    reward = s.reward.clone().requires_grad_()
    BATCHED[name](s._replace(reward=reward))[0].sum().backward()
    assert reward.grad is not None
    assert reward.grad.abs().sum() > 0


def test_empty_streams_pass_through() -> None:
    """No steps, or no streams, give empty results of the same shape."""
    for batch, steps in ((0, 5), (3, 0)):
        s = rollout_of(0, batch, max(steps, 1), 0.1)
        s = Rollout(*(field[:, :steps] for field in s))
        for name in ("gae", "vtrace", "q_lambda", "drip"):
            assert [tuple(x.shape) for x in BATCHED[name](s)] == [(batch, steps)] * len(
                BATCHED[name](s)
            )
    none = torch.zeros(0, dtype=torch.float64)
    assert [len(field) for field in returns.n_step(none, none, none, 0.9, 3)] == [0, 0, 0, 0]


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Every mismatch raises and names the argument, what was expected and what came."""
    s, form = rollout_of(0, 2, 6, 0.1), r"expected .* got "
    with pytest.raises(ValueError, match=r"gae\.value: " + form):
        returns.gae(s.reward, s.value[:, :-1], s.next_value, *s[3:5], 0.9, 0.9)
    with pytest.raises(ValueError, match=r"gae\.truncated: " + form):
        returns.gae(*s[:4], s.truncated[0], 0.9, 0.9)
    with pytest.raises(ValueError, match=r"gae\.reward: " + form):
        returns.gae(*(field[0] for field in s[:5]), 0.9, 0.9)
    with pytest.raises(ValueError, match=r"vtrace\.rho: " + form):
        returns.vtrace(*s[:5], s.rho[:1], 0.9)
    with pytest.raises(ValueError, match=r"q_lambda\.next_value: " + form):
        returns.q_lambda(s.reward, s.next_value[:1], *s[3:5], 0.9, 0.9)
    with pytest.raises(ValueError, match=r"drip\.done: " + form):
        returns.drip(s.reward, s.end[:, 1:], 0.9)
    with pytest.raises(ValueError, match=r"n_step\.reward: " + form):
        returns.n_step(s.reward, s.terminated, s.truncated, 0.9, 3)
    with pytest.raises(ValueError, match=r"n_step\.reward: " + form):
        returns.n_step(torch.tensor([1, 2]), *flags(2).repeat(2, 1), 0.9, 3)


def test_factors_outside_their_range_are_refused() -> None:
    """Discounts and decays lie in [0, 1], truncation levels are not negative, n is positive."""
    s = rollout_of(0, 2, 6, 0.1)
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"gae\.gamma: expected"):
            returns.gae(*s[:5], bad, 0.9)
        with pytest.raises(ValueError, match=r"q_lambda\.lam: expected"):
            returns.q_lambda(s.reward, s.next_value, *s[3:5], 0.9, bad)
        with pytest.raises(ValueError, match=r"drip\.decay: expected"):
            returns.drip(s.reward, s.end, bad)
        with pytest.raises(ValueError, match=r"n_step\.gamma: expected"):
            returns.n_step(s.reward[0], s.terminated[0], s.truncated[0], bad, 3)
    for bad in (-0.1, math.nan):
        for name in ("rho_bar", "c_bar", "pg_rho_bar"):
            with pytest.raises(ValueError, match=rf"vtrace\.{name}: expected"):
                returns.vtrace(*s, 0.9, **{name: bad})
    with pytest.raises(ValueError, match=r"n_step\.n: expected"):
        returns.n_step(s.reward[0], s.terminated[0], s.truncated[0], 0.9, 0)
