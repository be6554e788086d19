"""Categorical (C51) return distributions: support, projection, summaries and losses.

Shape letters: B batch, N atoms, `...` any leading axes. The paper's symbols, used throughout:

    z_j   atom j of the support, j = 0 … N−1        Δz    distance between neighbouring atoms
    p_j   probability of atom j                     m_i   target (projected) probability of atom i
    g     γ^k · (1 − terminated)                    Tz_j  r + g·z_j, where atom j is moved to
    b_j   Tz_j in units of Δz above z_0, clipped to [0, N−1]

Dtypes: a function computes and answers in the dtype of its probabilities or logits, float32 or
float64, and casts its other arguments to it. Half precision is refused, since b_j reaches N−1 and
loses its fraction there.

Nothing is detached: call under `torch.no_grad()` where a result is a target.
"""

import math

import torch
from torch import Tensor

__all__ = ["clipped_mass", "cross_entropy", "cvar", "expectation", "kl", "project", "support"]


def support(v_min: float, v_max: float, atoms: int) -> Tensor:  # (N,)
    """Return the atoms z_j = v_min + j·Δz, evenly spaced with both ends exact.

    Bellemare, Dabney and Munos (2017), arXiv:1707.06887, section 4.

    Args:
        v_min: Lowest atom, in units of return; finite.
        v_max: Highest atom; finite and above `v_min`. The support need not be symmetric around 0.
        atoms: Number of atoms N, at least 2.

    Returns:
        Float64 of shape (N,), whatever torch's default dtype is; the other functions cast it to
        what they compute in.

    Raises:
        ValueError: An end is not finite, the ends are not in order, or there are fewer than two
            atoms.
    """
    if not (math.isfinite(v_min) and math.isfinite(v_max) and v_min < v_max):
        raise ValueError(f"support: expected finite v_min < v_max, got {v_min!r} and {v_max!r}")
    if atoms < 2:
        raise ValueError(f"support.atoms: expected at least 2, got {atoms!r}")
    return torch.linspace(v_min, v_max, atoms, dtype=torch.float64)


def project(support: Tensor, probs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:  # (B, N)
    """Project the distribution of r + g·Z, clipped to the support, onto the support's atoms.

    Bellemare, Dabney and Munos (2017), arXiv:1707.06887, equation 7: an atom's mass p_j goes to the
    two atoms around Tz_j, the nearer one getting more:

        m_i = Σ_j clip(1 − |clip(Tz_j, v_min, v_max) − z_i| / Δz, 0, 1) p_j

    Args:
        support: Evenly spaced atoms, shape (N,), as made by `support`.
        probs: Probabilities of the next state's greedy action, shape (B, N), rows summing to 1.
        reward: Discounted sum of the k rewards, shape (B,).
        discount: g = γ^k · (1 − terminated), shape (B,), in [0, 1]; 0 puts all mass at the reward.

    Returns:
        Probabilities of shape (B, N). A row's sum is kept to rounding error, and so is its mean
        where nothing was clipped. A NaN in a row stays in that row.

    Raises:
        ValueError: A shape does not fit, or `probs` is neither float32 nor float64.
    """
    z, tz = _targets("project", support, probs, reward, discount)
    atoms = z.shape[0]
    delta_z = (z[-1] - z[0]) / (atoms - 1)
    # Δz is rounded, so that v_max itself may come out an ulp past N−1: the clip to the support is
    # made here, after the division.
    b = ((tz - z[0]) / delta_z).clamp(0, atoms - 1)  # (B, N)
    # The shares are b − lower and its complement. With floor and ceil instead, an atom hit exactly
    # (floor = ceil) would lose its mass; N−2 is the lower neighbour of b = N−1 for that reason. The
    # clamp at 0 is for a NaN, which has no defined integer.
    lower = b.detach().floor().long().clamp(0, atoms - 2)  # (B, N)
    upper_share = b - lower
    m = torch.zeros_like(probs)
    m = m.scatter_add(1, lower, probs * (1 - upper_share))
    return m.scatter_add(1, lower + 1, probs * upper_share)


def clipped_mass(
    support: Tensor, probs: Tensor, reward: Tensor, discount: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the probability whose target lies below, and above, the support.

    The clipping of Bellemare, Dabney and Munos (2017), arXiv:1707.06887, equation 7: a support too
    narrow for the returns changes the target silently, and this is how it shows.

    Args:
        support: As in `project`.
        probs: As in `project`.
        reward: As in `project`.
        discount: As in `project`.

    Returns:
        `(low, high)`, each of shape (B,): mass of targets below the lowest and above the highest
        atom. A target that passes an end by rounding error alone (8 ulp of the larger end) is not
        counted.

    Raises:
        ValueError: As in `project`.
    """
    z, tz = _targets("clipped_mass", support, probs, reward, discount)
    slack = 8 * torch.finfo(probs.dtype).eps * torch.maximum(z[0].abs(), z[-1].abs())
    low = torch.where(tz < z[0] - slack, probs, 0.0).sum(1)
    high = torch.where(tz > z[-1] + slack, probs, 0.0).sum(1)
    return low, high


def expectation(support: Tensor, probs: Tensor) -> Tensor:  # (...,)
    """Return the mean Σ_j z_j p_j of a categorical distribution.

    Bellemare, Dabney and Munos (2017), arXiv:1707.06887, algorithm 1 (the Q of the greedy choice).

    Args:
        support: Atoms, shape (N,).
        probs: Probabilities, shape (..., N), summing to 1 over the last axis.

    Returns:
        Means, shape (...,).

    Raises:
        ValueError: A shape does not fit, or `probs` is neither float32 nor float64.
    """
    return (probs * _atoms("expectation", support, probs)).sum(-1)


def cvar(support: Tensor, probs: Tensor, level: float) -> Tensor:  # (...,)
    """Return the conditional value at risk: the mean of the worst `level` of the probability mass.

    The average of the quantiles below α, (1/α) ∫_0^α F⁻¹(u) du: Acerbi and Tasche (2002),
    arXiv:cond-mat/0104295, with the sign of a return, so that more is better. An atom that
    straddles α counts with the part below it, which makes the result continuous and non-decreasing
    in α.

    Args:
        support: Atoms in ascending order, shape (N,).
        probs: Probabilities, shape (..., N), summing to 1 over the last axis.
        level: α, the mass of the lower tail, in (0, 1]; 1 gives the mean.

    Returns:
        Tail means, shape (...,), never above `expectation` by more than rounding error.

    Raises:
        ValueError: `level` is outside (0, 1], a shape does not fit, or `probs` is neither float32
            nor float64.
    """
    if not 0 < level <= 1:
        raise ValueError(f"cvar.level: expected a tail mass in (0, 1], got {level!r}")
    z = _atoms("cvar", support, probs)
    mass_below = probs.cumsum(-1) - probs  # F(z_j) − p_j
    tail = torch.minimum(probs, (level - mass_below).clamp(min=0))
    return (tail * z).sum(-1) / level


def cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:  # (B,)
    """Return the cross-entropy −Σ_i m_i ln softmax(logits)_i of each row.

    The sample loss of Bellemare, Dabney and Munos (2017), arXiv:1707.06887, algorithm 1. It is
    computed from log-softmax: a probability clamped before its logarithm would lose the gradient
    (softmax − m) below the clamp.

    Args:
        logits: Unnormalised log-probabilities of the action taken, shape (B, N), or (..., N).
        target_probs: Target distribution m, same shape, rows summing to 1.

    Returns:
        Non-negative losses, shape (B,), or (...,). An atom without target mass contributes 0,
        whatever its logit.

    Raises:
        ValueError: The shapes differ, or `logits` is neither float32 nor float64.
    """
    m, log_p = _pair("cross_entropy", logits, target_probs)
    return -_weighted(m, log_p).sum(-1)


def kl(logits: Tensor, target_probs: Tensor) -> Tensor:  # (B,)
    """Return KL(m ‖ softmax(logits)), the cross-entropy less the target's own entropy.

    Hessel et al. (2018), arXiv:1710.02298, section "The Integrated Agent" (the priority of
    Rainbow). Unlike the cross-entropy it is 0 for a perfect prediction, however noisy the target
    is; its gradient is the same.

    Args:
        logits: Unnormalised log-probabilities of the action taken, shape (B, N), or (..., N).
        target_probs: Target distribution m, same shape, rows summing to 1.

    Returns:
        Divergences, shape (B,), or (...,), clamped at 0 so that rounding makes no negative
        priority. An atom without target mass contributes 0.

    Raises:
        ValueError: The shapes differ, or `logits` is neither float32 nor float64.
    """
    m, log_p = _pair("kl", logits, target_probs)
    return (torch.xlogy(m, m) - _weighted(m, log_p)).sum(-1).clamp(min=0)


def _weighted(m: Tensor, log_p: Tensor) -> Tensor:  # (..., N)
    """Return m·log p with 0 where m is 0, also for log p = −∞."""
    return torch.where(m == 0, 0.0, m * log_p)


def _pair(where: str, logits: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Check a loss's arguments; return m in the logits' dtype, and the log-probabilities."""
    _check_floating(f"{where}.logits", logits)
    if logits.ndim == 0 or target_probs.shape != logits.shape:
        got = f"{tuple(logits.shape)} and {tuple(target_probs.shape)}"
        raise ValueError(f"{where}: expected logits, target_probs of one shape (B, N), got {got}")
    return target_probs.to(logits.dtype), torch.log_softmax(logits, -1)


def _targets(
    where: str, support: Tensor, probs: Tensor, reward: Tensor, discount: Tensor
) -> tuple[Tensor, Tensor]:  # (N,), (B, N)
    """Check the projection's arguments; return z and the unclipped Tz in the dtype of `probs`."""
    z = _atoms(where, support, probs)
    if probs.ndim != 2:
        raise ValueError(f"{where}.probs: expected shape (B, N), got {tuple(probs.shape)}")
    batch = probs.shape[:1]
    for name, value in (("reward", reward), ("discount", discount)):
        if value.shape != batch:
            raise ValueError(
                f"{where}.{name}: expected shape {tuple(batch)}, got {tuple(value.shape)}"
            )
    r, g = reward.to(probs.dtype), discount.to(probs.dtype)
    return z, r[:, None] + g[:, None] * z


def _atoms(where: str, support: Tensor, probs: Tensor) -> Tensor:  # (N,)
    """Check that a support fits some probabilities; return it in their dtype."""
    _check_floating(f"{where}.probs", probs)
    if support.ndim != 1 or support.shape[0] < 2:
        raise ValueError(
            f"{where}.support: expected shape (N,) with N ≥ 2, got {tuple(support.shape)}"
        )
    if probs.shape[-1:] != support.shape:
        atoms, got = support.shape[0], tuple(probs.shape)
        raise ValueError(f"{where}.probs: expected a last axis of {atoms} atoms, got shape {got}")
    return support.to(probs.dtype)


def _check_floating(where: str, value: Tensor) -> None:
    """Refuse dtypes other than float32 and float64."""
    if value.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{where}: expected float32 or float64, got {value.dtype}")
