"""Categorical distributions: hand cases, a slow float64 oracle, properties, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from jormungandr.numerics import categorical

PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)

Projection = tuple[Tensor, Tensor, Tensor, Tensor]


def tensor(*values: float | list[float]) -> Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def projections(draw: st.DrawFn) -> Projection:
    """Draw arguments of `project`; rewards favour atoms, the ends and places outside."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    atoms = draw(st.integers(2, 60))
    v_min = draw(st.floats(-100, 100, allow_subnormal=False))
    width = draw(st.floats(0.01, 200))
    batch = draw(st.integers(1, 6))
    z = categorical.support(v_min, v_min + width, atoms)
    probs = rng.dirichlet(np.full(atoms, draw(st.sampled_from([0.05, 1.0]))), size=batch)
    places = [
        rng.choice(z.numpy(), batch),
        rng.choice([v_min, v_min + width], batch),
        rng.normal(v_min + width / 2, 2 * width, batch),
    ]
    reward = np.choose(rng.integers(0, len(places), batch), places)
    discount = rng.choice([0.0, 0.5, 0.97, 1.0], batch)
    return z, torch.tensor(probs), torch.tensor(reward), torch.tensor(discount)


@st.composite
def losses(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Draw logits and targets, some of whose atoms have no mass."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 5)), draw(st.integers(2, 40))
    logits = rng.normal(0, draw(st.sampled_from([0.1, 3.0, 100.0])), shape)
    target = rng.random(shape) * (rng.random(shape) < 0.6)
    target[:, 0] += 0.01
    return torch.tensor(logits), torch.tensor(target / target.sum(1, keepdims=True))


def oracle_project(z: Tensor, probs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Project by the triangular kernel, atom by atom."""
    atoms = z.tolist()
    delta = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    rows = []
    for p, r, g in zip(probs.tolist(), reward.tolist(), discount.tolist(), strict=True):
        m = [0.0] * len(atoms)
        for j, atom in enumerate(atoms):
            target = min(max(r + g * atom, atoms[0]), atoms[-1])
            for i, other in enumerate(atoms):
                m[i] += min(max(1 - abs(target - other) / delta, 0.0), 1.0) * p[j]
        rows.append(m)
    return torch.tensor(rows, dtype=torch.float64)


def test_support_spans_both_ends_exactly_in_even_steps() -> None:
    """The atoms start at v_min, end at v_max and are Δz apart."""
    assert categorical.support(-8, 8, 5).tolist() == [-8.0, -4.0, 0.0, 4.0, 8.0]
    assert categorical.support(0, 100, 3).tolist() == [0.0, 50.0, 100.0]
    z = categorical.support(-10.0, 10.0, 51)
    assert z.dtype == torch.float64
    assert (z[0], z[-1]) == (-10.0, 10.0)
    np.testing.assert_allclose(np.diff(z.numpy()), 0.4, rtol=1e-13)


@pytest.mark.parametrize(
    ("v_min", "v_max", "atoms"),
    [(1, 1, 51), (2, 1, 51), (math.nan, 1, 51), (0, math.inf, 51), (0, 1, 1), (0, 1, 0)],
)
def test_support_refuses_what_is_no_interval(v_min: float, v_max: float, atoms: int) -> None:
    """Ends that are equal, reversed or not finite, and fewer than two atoms, raise."""
    with pytest.raises(ValueError, match=r"support.*expected.*got"):
        categorical.support(v_min, v_max, atoms)


def test_project_splits_mass_between_neighbours() -> None:
    """Targets −0.5, 0.5 and 1.5 of the atoms −1, 0, 1 share and clip as by hand."""
    z, probs = categorical.support(-1, 1, 3), tensor([0.2, 0.3, 0.5])
    m = categorical.project(z, probs, tensor(0.5), tensor(1.0))
    torch.testing.assert_close(m, tensor([0.1, 0.25, 0.65]), rtol=0, atol=1e-15)


def test_project_discounts_around_zero() -> None:
    """With discount ½ the outer atoms' mass moves half the way to the middle."""
    z, probs = categorical.support(-2, 2, 5), tensor([0.5, 0.0, 0.0, 0.0, 0.5])
    m = categorical.project(z, probs, tensor(0.0), tensor(0.5))
    torch.testing.assert_close(m, tensor([0.0, 0.5, 0.0, 0.5, 0.0]), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("reward", "atom"), [(-1, 0), (0, 1), (1, 2), (-7, 0), (7, 2), (-math.inf, 0)]
)
def test_project_keeps_all_mass_on_an_atom(reward: float, atom: int) -> None:
    """A terminal reward on an atom, at an end or beyond one puts the whole mass on one atom."""
    z, probs = categorical.support(-1, 1, 3), tensor([0.2, 0.3, 0.5])
    m = categorical.project(z, probs, tensor(reward), tensor(0.0))
    expected = [0.0, 0.0, 0.0]
    expected[atom] = 1.0
    assert m.tolist() == [expected]


def test_project_works_with_two_atoms() -> None:
    """Two atoms share the mass in proportion to nearness, for supports away from 0 too."""
    z, probs = categorical.support(10, 14, 2), tensor([0.5, 0.5], [1.0, 0.0], [0.0, 1.0])
    m = categorical.project(z, probs, tensor(11.0, 14.0, -1.0), tensor(0.0, 0.0, 0.0))
    assert m.tolist() == [[0.75, 0.25], [0.0, 1.0], [1.0, 0.0]]


def test_project_is_the_identity_for_no_reward_and_no_discounting() -> None:
    """Every target falls on its own atom, on an asymmetric support, and nothing moves."""
    z = categorical.support(0, 100, 101)
    probs = torch.softmax(torch.arange(101, dtype=torch.float64) / 50, 0)[None]
    m = categorical.project(z, probs, tensor(0.0), tensor(1.0))
    torch.testing.assert_close(m, probs, rtol=0, atol=1e-15)


def test_project_makes_no_negative_mass_where_the_spacing_rounds_down() -> None:
    """On this support (v_max − v_min) / Δz comes out above N−1; the top target stays on top."""
    z = categorical.support(-2.7, -1.9, 51)
    assert (z[-1] - z[0]) / ((z[-1] - z[0]) / 50) > 50  # the premise
    probs = torch.full((1, 51), 1 / 51, dtype=torch.float64)
    m = categorical.project(z, probs, tensor(9.0), tensor(0.0))
    assert m[0, :50].tolist() == [0.0] * 50
    assert m[0, 50] == pytest.approx(1.0, abs=1e-14)


def test_project_keeps_a_nan_in_its_row() -> None:
    """A NaN reward makes its own row NaN, and neither raises nor touches the next row."""
    z, probs = categorical.support(-1, 1, 3), tensor([0.2, 0.3, 0.5], [0.2, 0.3, 0.5])
    m = categorical.project(z, probs, tensor(math.nan, 0.0), tensor(1.0, 1.0))
    assert m[0].isnan().any()
    torch.testing.assert_close(m[1], probs[1], rtol=0, atol=1e-15)


@PROPERTY
@given(projections())
def test_project_equals_the_triangular_kernel(arguments: Projection) -> None:
    """The scatter form equals Σ_j clip(1 − |Tz_j − z_i|/Δz, 0, 1) p_j, computed by loops."""
    m = categorical.project(*arguments)
    torch.testing.assert_close(m, oracle_project(*arguments), rtol=0, atol=1e-11)


@PROPERTY
@given(projections())
def test_project_returns_probabilities(arguments: Projection) -> None:
    """Projected masses are not negative and sum to 1."""
    m = categorical.project(*arguments)
    assert m.dtype == torch.float64
    assert m.min() >= 0
    torch.testing.assert_close(m.sum(1), torch.ones(len(m)).double(), rtol=0, atol=1e-13)


@PROPERTY
@given(projections())
def test_project_keeps_the_mean_where_nothing_is_clipped(arguments: Projection) -> None:
    """Rows whose targets all lie inside have mean r + g·E[Z]."""
    z, probs, reward, discount = arguments
    low, high = categorical.clipped_mass(*arguments)
    inside = (low == 0) & (high == 0)
    mean = categorical.expectation(z, categorical.project(*arguments))
    expected = reward + discount * categorical.expectation(z, probs)
    torch.testing.assert_close(mean[inside], expected[inside], rtol=1e-12, atol=1e-10)


@PROPERTY
@given(projections())
def test_clipped_mass_counts_the_targets_outside(arguments: Projection) -> None:
    """Low and high equal the sums over atoms whose target lies outside, found by loops."""
    z, probs, reward, discount = arguments
    low, high = categorical.clipped_mass(*arguments)
    slack = 1e-12 * float(z.abs().max())
    for row in range(len(reward)):
        target = [float(reward[row] + discount[row] * atom) for atom in z]
        # Whether a target that is past an end by less is there by rounding is not for this test.
        assume(not any(0 < max(z[0] - t, t - z[-1]) < slack for t in target))
        below = sum(float(p) for p, t in zip(probs[row], target, strict=True) if t < z[0])
        above = sum(float(p) for p, t in zip(probs[row], target, strict=True) if t > z[-1])
        assert float(low[row]) == pytest.approx(below, abs=1e-12)
        assert float(high[row]) == pytest.approx(above, abs=1e-12)


def test_clipped_mass_by_hand() -> None:
    """Mass beyond an end counts, mass on an end does not."""
    z, probs = categorical.support(-1, 1, 3), tensor(*([[0.2, 0.3, 0.5]] * 4))
    low, high = categorical.clipped_mass(z, probs, tensor(0.5, -1, 1, 1), tensor(1, 1, 0, 0.5))
    assert low.tolist() == [0.0, 0.2, 0.0, 0.0]
    assert high.tolist() == [0.5, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(("dtype", "gamma"), [(torch.float32, 0.206), (torch.float64, 0.065)])
def test_clipped_mass_forgives_rounding(dtype: torch.dtype, gamma: float) -> None:
    """The value ±1/(1 − γ) of reward ±1 for ever, which rounding takes past ±v_max, is inside."""
    top = 1 / (1 - gamma)
    z = categorical.support(-top, top, 51)
    probs = torch.nn.functional.one_hot(torch.tensor([50, 0]), 51).to(dtype)
    reward, discount = torch.tensor([1, -1], dtype=dtype), torch.full((2,), gamma, dtype=dtype)
    assert reward[0] + discount[0] * z[-1].to(dtype) > z[-1].to(dtype)  # the premise
    low, high = categorical.clipped_mass(z, probs, reward, discount)
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0], [0.0, 0.0])


def test_expectation_weights_atoms_over_any_leading_axes() -> None:
    """The mean is taken over the last axis alone."""
    z = categorical.support(-1, 1, 3)
    probs = tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    expected = tensor([0.3, -1.0], [0.0, 0.5])
    torch.testing.assert_close(categorical.expectation(z, probs), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("level", "expected"),
    [(0.1, 0.0), (0.25, 0.0), (0.5, 0.5), (0.75, 2 / 3), (1.0, 1.0)],
)
def test_cvar_averages_the_lower_tail(level: float, expected: float) -> None:
    """For masses ¼, ½, ¼ on 0, 1, 2 the tail means are those computed by hand."""
    tail = categorical.cvar(categorical.support(0, 2, 3), tensor([0.25, 0.5, 0.25]), level)
    assert tail.shape == (1,)
    assert tail.item() == pytest.approx(expected, abs=1e-15)


@PROPERTY
@given(projections(), st.floats(0.001, 1))
def test_cvar_equals_the_greedy_filling_of_the_tail(arguments: Projection, level: float) -> None:
    """Taking mass from the lowest atoms until α is full gives the same mean."""
    z, probs, _, _ = arguments
    got = categorical.cvar(z, probs, level)
    for row in range(len(probs)):
        left, total = level, 0.0
        for atom, p in zip(z.tolist(), probs[row].tolist(), strict=True):
            taken = min(p, left)
            total += taken * atom
            left -= taken
        assert got[row].item() == pytest.approx(total / level, rel=1e-9, abs=1e-9)


@PROPERTY
@given(projections(), st.floats(0.01, 1), st.floats(0.01, 1))
def test_cvar_rises_with_its_level_up_to_the_mean(
    arguments: Projection, one: float, other: float
) -> None:
    """A wider tail has no lower mean; level 1 is the mean itself; the worst atom bounds below."""
    z, probs, _, _ = arguments
    narrow, wide = sorted([one, other])
    mean, slack = categorical.expectation(z, probs), 1e-10
    assert (categorical.cvar(z, probs, narrow) <= categorical.cvar(z, probs, wide) + slack).all()
    assert (categorical.cvar(z, probs, wide) <= mean + slack).all()
    assert (categorical.cvar(z, probs, narrow) >= z[0] - slack).all()
    torch.testing.assert_close(categorical.cvar(z, probs, 1.0), mean, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("level", [0.0, -0.1, 1.1, math.nan])
def test_cvar_refuses_levels_that_are_no_tail(level: float) -> None:
    """The level must lie in (0, 1]."""
    with pytest.raises(ValueError, match=r"cvar\.level: expected .* got"):
        categorical.cvar(categorical.support(0, 1, 2), tensor([0.5, 0.5]), level)


def test_cross_entropy_by_hand() -> None:
    """Uniform logits cost ln 4; logits ln ¼ and ln ¾ against (1, 0) cost ln 4 too."""
    logits = tensor([0.0, 0.0, 0.0, 0.0], [math.log(1 / 4), math.log(3 / 4), -1e9, -1e9])
    target = tensor([0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0])
    loss = categorical.cross_entropy(logits, target)
    torch.testing.assert_close(loss, tensor(math.log(4), math.log(4)), rtol=1e-15, atol=0)


def test_cross_entropy_keeps_its_gradient_when_the_prediction_is_hopeless() -> None:
    """A target atom a thousand nats down still has the gradient softmax − target."""
    logits = tensor([0.0, -1000.0]).requires_grad_()
    loss = categorical.cross_entropy(logits, tensor([0.0, 1.0]))
    loss.sum().backward()
    assert loss.tolist() == [1000.0]
    assert logits.grad is not None
    assert logits.grad.tolist() == [[1.0, -1.0]]


def test_kl_by_hand() -> None:
    """Against (¼, ¾), (½, ½) diverges by ½ ln(4/3) and (0, 1) by ln(4/3)."""
    logits = torch.log(tensor([0.25, 0.75], [0.25, 0.75]))
    divergence = categorical.kl(logits, tensor([0.5, 0.5], [0.0, 1.0]))
    expected = tensor(0.5 * math.log(4 / 3), math.log(4 / 3))
    torch.testing.assert_close(divergence, expected, rtol=1e-14, atol=0)


def test_losses_ignore_atoms_of_no_mass_even_at_minus_infinity() -> None:
    """The logarithm of a target with zeros predicts it perfectly, with finite gradients."""
    target = tensor([0.0, 0.25, 0.75])
    logits = torch.log(target).requires_grad_()
    assert categorical.kl(logits, target).item() == pytest.approx(0.0, abs=1e-15)
    loss = categorical.cross_entropy(logits, target)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), rel=1e-14)
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-15


@PROPERTY
@given(losses())
def test_losses_equal_their_definitions(arguments: tuple[Tensor, Tensor]) -> None:
    """Both losses equal plain loops over atoms, and differ by the target's entropy."""
    logits, target = arguments
    loss, divergence = categorical.cross_entropy(*arguments), categorical.kl(*arguments)
    assert (divergence >= 0).all()
    for row in range(len(logits)):
        top = logits[row].max().item()
        log_sum = top + math.log(math.fsum(math.exp(x - top) for x in logits[row].tolist()))
        pairs = list(zip(target[row].tolist(), logits[row].tolist(), strict=True))
        expected = -math.fsum(m * (x - log_sum) for m, x in pairs)
        entropy = -math.fsum(m * math.log(m) for m, _ in pairs if m > 0)
        assert loss[row].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert divergence[row].item() == pytest.approx(expected - entropy, rel=1e-11, abs=1e-12)


@PROPERTY
@given(losses())
def test_losses_share_the_gradient_softmax_minus_target(arguments: tuple[Tensor, Tensor]) -> None:
    """Autograd through either loss gives softmax(logits) − target."""
    logits, target = arguments
    expected = torch.softmax(logits, 1) - target
    for function in (categorical.cross_entropy, categorical.kl):
        leaf = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf, target).sum(), leaf)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_kl_of_a_perfect_prediction_is_never_negative() -> None:
    """Rounding around 0 is clamped, in float32 as well."""
    probs = torch.softmax(torch.randn(256, 51, generator=torch.Generator().manual_seed(0)), 1)
    divergence = categorical.kl(torch.log(probs), probs)
    assert divergence.min() >= 0
    assert divergence.max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_dtype_of_the_probabilities(dtype: torch.dtype) -> None:
    """A float64 support and float64 rewards are cast to what the probabilities are."""
    z, probs = categorical.support(-1, 1, 3), torch.full((2, 3), 1 / 3, dtype=dtype)
    reward, discount = tensor(0.5, 0.25), tensor(1.0, 0.0)
    results = [
        categorical.project(z, probs, reward, discount),
        *categorical.clipped_mass(z, probs, reward, discount),
        categorical.expectation(z, probs),
        categorical.cvar(z, probs, 0.5),
        categorical.cross_entropy(probs, tensor([1.0, 0, 0], [1.0, 0, 0])),
        categorical.kl(probs, tensor([1.0, 0, 0], [1.0, 0, 0])),
    ]
    assert [result.dtype for result in results] == [dtype] * 7
    assert [tuple(result.shape) for result in results] == [(2, 3)] + [(2,)] * 6


def test_an_empty_batch_passes_through() -> None:
    """No rows in, no rows out."""
    z, none = categorical.support(-1, 1, 3), torch.zeros(0, dtype=torch.float64)
    empty = torch.zeros(0, 3, dtype=torch.float64)
    assert categorical.project(z, empty, none, none).shape == (0, 3)
    assert categorical.cross_entropy(empty, empty).shape == (0,)


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Every mismatch raises and names the argument, what was expected and what came."""
    z, probs, scalar = categorical.support(-1, 1, 3), torch.full((2, 3), 1 / 3), torch.zeros(2)
    project, form = categorical.project, r"expected .* got "
    with pytest.raises(ValueError, match=r"project\.reward: " + form):
        project(z, probs, scalar[:, None], scalar)
    with pytest.raises(ValueError, match=r"project\.discount: " + form):
        project(z, probs, scalar, torch.zeros(3))
    with pytest.raises(ValueError, match=r"project\.probs: " + form):
        project(z, probs[0], scalar, scalar)
    with pytest.raises(ValueError, match=r"project\.probs: " + form):
        project(categorical.support(-1, 1, 4), probs, scalar, scalar)
    with pytest.raises(ValueError, match=r"project\.probs: " + form):
        project(z, probs.half(), scalar, scalar)
    with pytest.raises(ValueError, match=r"clipped_mass\.reward: " + form):
        categorical.clipped_mass(z, probs, torch.zeros(3), scalar)
    with pytest.raises(ValueError, match=r"expectation\.support: " + form):
        categorical.expectation(z[None], probs)
    with pytest.raises(ValueError, match=r"cvar\.probs: " + form):
        categorical.cvar(z, torch.tensor(1.0), 0.5)
    with pytest.raises(ValueError, match=r"cross_entropy: " + form):
        categorical.cross_entropy(probs, probs[:1])
    with pytest.raises(ValueError, match=r"kl: " + form):
        categorical.kl(probs, probs[0])
    with pytest.raises(ValueError, match=r"kl\.logits: " + form):
        categorical.kl(probs.long(), probs)
