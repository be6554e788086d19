"""The weights of a model's network: their names and shapes, and what layers of them compute."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from jormungandr.row_forward import Floats, Layer
from jormungandr.spaces import pixels_first
from jormungandr.spec import ModelSpec

__all__ = [
    "CONVOLUTIONS",
    "convolved",
    "factors",
    "is_noisy",
    "layer_shapes",
    "linear",
    "with_noise",
]

#: Filters, kernel and stride of the convolutions of an image (Mnih et al. 2015).
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every weight of a model's network, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    inputs = spec.observation.stored_shape[0]
    if spec.observation.is_image:
        blank = np.zeros((1, *spec.observation.stored_shape), dtype=np.uint8)
        _, inputs, *sides = pixels_first(blank, spec.observation.shape).shape
        for i, (filters, kernel, stride) in enumerate(CONVOLUTIONS):
            shapes[f"conv.{i}.weight"] = (filters, inputs, kernel, kernel)
            shapes[f"conv.{i}.bias"] = (filters,)
            inputs, sides = filters, [(side - kernel) // stride + 1 for side in sides]
        inputs *= sides[0] * sides[1]
    for i, (before, after) in enumerate(pairwise((inputs, *spec.c51.layers))):
        shapes[f"hidden.{i}.weight"] = (after, before)
        shapes[f"hidden.{i}.bias"] = (after,)
    heads = {"value": len(spec.action_set) * spec.c51.atoms}
    if spec.c51.dueling:
        heads = {"value": spec.c51.atoms, "advantage": heads["value"]}
    if spec.auxiliary is not None:
        heads["auxiliary"] = len(spec.auxiliary.classes)
    for name, outputs in heads.items():
        shapes[f"{name}.weight"] = (outputs, spec.c51.layers[-1])
        shapes[f"{name}.bias"] = (outputs,)
    for name, shape in list(shapes.items()):
        if is_noisy(name.rpartition(".")[0], spec):
            shapes[f"{name}_sigma"] = shape
    return shapes


def is_noisy(layer: str, spec: ModelSpec) -> bool:
    """Whether a layer, by its name, has weights of noise: each that leads to the values, linear."""
    return spec.c51.noisy and not layer.startswith("conv.") and layer != "auxiliary"


def factors(count: int, rng: np.random.Generator) -> Floats:
    """Draw f(ε) of one side of a noisy layer, (count,), where f(x) = sign(x)·√|x|.

    Fortunato et al. (2018), equations 10 and 11: the noise of a weight is the product of those of
    its output and its input, that of a bias the one of its output.
    """
    drawn = rng.standard_normal(count).astype(np.float32)
    return np.asarray(np.sign(drawn) * np.sqrt(np.abs(drawn)), dtype=np.float32)


def with_noise(
    weights: Mapping[str, Floats], spec: ModelSpec, rng: np.random.Generator
) -> dict[str, Floats]:
    """Return the weights of a noisy network with noise from a stream in them.

    Layer by layer in the order of the network, the noise of the inputs is drawn and then that of
    the outputs.
    """
    noisy = dict(weights)
    for name in layer_shapes(spec):
        layer, _, part = name.rpartition(".")
        if part == "weight" and is_noisy(layer, spec):
            outputs, inputs = noisy[name].shape
            of_inputs, of_outputs = factors(inputs, rng), factors(outputs, rng)
            noise = {"weight": np.outer(of_outputs, of_inputs), "bias": of_outputs}
            for kind, drawn in noise.items():
                sigma = noisy[f"{layer}.{kind}_sigma"]
                noisy[f"{layer}.{kind}"] = noisy[f"{layer}.{kind}"] + sigma * drawn
    return noisy


def linear(x: Floats, layer: Layer) -> Floats:
    """Return what a layer makes of (B, inputs), (B, outputs)."""
    weight, bias = layer
    found: Floats = x.dot(weight)  # the bits of `@`, which asks more questions first
    found += bias
    return found


def convolved(x: Floats, weight: Floats, bias: Floats, stride: int) -> Floats:
    """Return the rectified convolution of (B, C, H, W) with (F, C, k, k), (B, F, H', W')."""
    filters, _, kernel, _ = weight.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)  # B, H', W', C, k, k
    count, height, width = windows.shape[:3]
    flat = (
        windows.reshape(count * height * width, weight[0].size) @ weight.reshape(filters, -1).T
        + bias
    )
    rows = np.maximum(flat, np.float32(0)).reshape(count, height, width, filters)
    return np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
