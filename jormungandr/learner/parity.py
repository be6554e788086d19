"""Parity: an exported artefact computes what the policy does, on a fixed batch, or is refused.

B observations, A actions, N atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.encoding import observations
from jormungandr.errors import ExportError
from jormungandr.inputs import VARIANCE_FLOOR
from jormungandr.numerics.risk import lower_tail_mean
from jormungandr.policy import PolicySnapshot
from jormungandr.spaces import Box, as_gymnasium

__all__ = ["Arrays", "Run", "check_parity", "policy_outputs", "probe"]

Arrays = dict[str, NDArray[Any]]
#: Maps inputs by name to outputs by name.
Run = Callable[[Arrays], Arrays]

#: Largest difference of two float32 forward passes that needs no excuse.
TOLERANCE = 1e-5
#: How often over an artefact may differ by what float32 costs the policy itself.
ROUNDINGS = 8
#: Standard deviations around the mean, or plain factors, of the observations that are compared.
SCALES = (0.0, 0.1, 1.0, 3.0, 30.0)
#: Brightest pixel of the images that are compared.
BRIGHTEST = (0, 1, 64, 255)
BATCH = 7


def probe(snapshot: PolicySnapshot) -> Iterator[Arrays]:
    """Yield the inputs that are compared: batches of seven and of one, at several scales."""
    rng = np.random.default_rng(0)
    spec, o = snapshot.spec, snapshot.spec.observation
    for scale in BRIGHTEST if o.is_image else SCALES:
        if o.is_image:
            shape = (BATCH, *o.stored_shape)
            observation = rng.integers(0, int(scale), shape, dtype=np.uint8, endpoint=True)
        else:
            observation = _vectors(snapshot, scale, rng)
        inputs: Arrays = {"observation": observation}
        if spec.action_masks:
            mask = rng.random((BATCH, len(spec.action_set))) < 0.5
            mask[np.arange(BATCH), rng.integers(len(spec.action_set), size=BATCH)] = True
            inputs["action_mask"] = mask
        yield inputs
        yield {name: array[:1] for name, array in inputs.items()}


def _vectors(snapshot: PolicySnapshot, scale: float, rng: np.random.Generator) -> NDArray[Any]:
    """Return vectors around the moments whose bits and one-hots are such, (BATCH, D)."""
    o = snapshot.spec.observation
    x = scale * rng.standard_normal((BATCH, *o.stored_shape))
    if o.normalize:
        x = snapshot.mean + x * np.sqrt(snapshot.var + VARIANCE_FLOOR)
    largest = np.finfo(np.float32).max
    x = np.clip(x, -largest, largest).astype(np.float32)
    if isinstance(o.described, Box):
        return x
    space = as_gymnasium(o.described)
    space.seed(int(rng.integers(2**31)))
    samples = observations([space.sample() for _ in range(BATCH)], snapshot.spec)
    return np.where(o.described.numbers(), x, samples)


def policy_outputs(snapshot: PolicySnapshot, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return what a policy makes of inputs, in the precision of its weights."""
    logits, auxiliary = snapshot.logits(inputs["observation"])
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    distribution = e / e.sum(axis=-1, keepdims=True)
    values = distribution @ snapshot.support.astype(logits.dtype)
    scores = lower_tail_mean(snapshot.support, distribution, snapshot.spec.risk.tail)
    allowed = np.where(inputs.get("action_mask", True), scores, -np.inf)
    outputs = {
        "action": allowed.argmax(axis=-1),
        "expected_values": values,
        "distribution": distribution,
    }
    return outputs if auxiliary is None else {**outputs, "auxiliary_logits": auxiliary}


def check_parity(
    snapshot: PolicySnapshot, run: Run, outputs: Collection[str], where: str
) -> dict[str, Any]:
    """Compare an artefact with the policy's own forward pass; return the figures.

    Outputs may differ by 1e-5, or by eight times what the policy itself loses by computing in
    float32 where that is more; actions must be equal unless their values tie within that.

    Args:
        snapshot: the policy.
        run: the artefact, as read back from what was written.
        outputs: the names of its outputs.
        where: its name, for messages.

    Raises:
        ExportError: it computes something else; the message names the output and the difference.
    """
    exact = replace(
        snapshot, weights={n: w.astype(np.float64) for n, w in snapshot.weights.items()}
    )
    numbers = [name for name in outputs if name != "action"]
    cases = [(inputs, policy_outputs(snapshot, inputs)) for inputs in probe(snapshot)]
    lost = dict.fromkeys(numbers, 0.0)
    for inputs, want in cases:
        reference = policy_outputs(exact, inputs)
        for name in numbers:
            lost[name] = max(lost[name], _distance(want[name], reference[name]))
    tolerance = {name: max(TOLERANCE, ROUNDINGS * lost[name]) for name in numbers}
    largest, equal = dict.fromkeys(numbers, 0.0), 0
    for inputs, want in cases:
        got = run(inputs)
        _check_types(outputs, want, got, where)
        for name in numbers:
            distance = _distance(got[name], want[name])
            if not distance <= tolerance[name]:  # a NaN is further off than anything
                expected = f"the policy's to {tolerance[name]:.1g}"
                raise ExportError(f"{where}: {name}", expected, f"{distance:.3g} off")
            largest[name] = max(largest[name], distance)
        tail = snapshot.spec.risk.tail
        scores = lower_tail_mean(snapshot.support, want["distribution"], tail)
        tie = tolerance["expected_values"] / tail
        equal += _check_actions(inputs, scores, want, got, tie, where)
    return {
        "against": "the policy's forward pass in NumPy",
        "observations": sum(len(inputs["observation"]) for inputs, _ in cases),
        "batch_sizes": [1, BATCH],
        "equal_actions": equal,
        "largest_difference": largest,
        "tolerance": tolerance,
    }


def _distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.abs(a.astype(np.float64) - b).max(initial=0.0))


def _check_types(outputs: Collection[str], want: Arrays, got: Arrays, where: str) -> None:
    for name in outputs:
        array = want[name]
        dtype = np.dtype(np.int64 if name == "action" else np.float32)
        if got[name].shape != array.shape or got[name].dtype != dtype:
            found = f"{got[name].dtype} {got[name].shape}"
            raise ExportError(f"{where}: {name}", f"{dtype} {array.shape}", found)


def _check_actions(
    inputs: Mapping[str, NDArray[Any]],
    scores: NDArray[Any],
    want: Arrays,
    got: Arrays,
    tie: float,
    where: str,
) -> int:
    """Return how many actions are equal; those that are not must be allowed, and tie."""
    values = np.where(inputs.get("action_mask", True), scores, -np.inf)
    rows = np.arange(len(values))
    # Two values may each be off by the tolerance.
    wrong = ~(values[rows, got["action"]] >= values.max(axis=-1) - 2 * tie)
    if wrong.any():
        i = int(wrong.argmax())
        raise ExportError(f"{where}: action", str(want["action"][i]), got["action"][i])
    return int((got["action"] == want["action"]).sum())
