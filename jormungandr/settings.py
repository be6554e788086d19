"""The groups of settings of a `ModelSpec`: frozen, validated, with defaults.

Defaults marked (n) are those of the product's release note; the others were chosen for small
control tasks on a CPU.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import InvalidType, InvalidValue, shown
from jormungandr.spaces import Box, Space

__all__ = [
    "C51",
    "Action",
    "ActionChoice",
    "Auxiliary",
    "Divergence",
    "Exploration",
    "Labels",
    "LearningRate",
    "Observation",
    "Pacing",
    "Part",
    "Promotion",
    "Replay",
    "Staleness",
    "Validation",
    "require",
]

#: Elements of one observation, as a vector and as an image.
LARGEST_OBSERVATION, LARGEST_IMAGE = 65_536, 1 << 18
#: Of a normalised element; the sum of two float32 that are much larger may be none.
LARGEST_CLIP = 1e6
#: Of float32, the dtype of the network.
FLOAT32_MAX, FLOAT32_EPSILON = 3.4028234663852886e38, 2.0**-23


def require(holds: bool, where: str, expected: str, got: object) -> None:
    """Refuse a value where a condition does not hold."""
    if not holds:
        raise InvalidValue(where, expected, shown(got))


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _utf8(where: str, *texts: object) -> None:
    """Refuse text that could not be written to a checkpoint: lone surrogates."""
    for text in texts:
        if isinstance(text, str) and not text.isascii():
            require(not any("\ud800" <= c <= "\udfff" for c in text), where, "valid UTF-8", text)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen, keyword-only group of settings that refuses fields it does not know."""


class Observation(Part, frozen=True, dict=True):
    """What the environment shows: named features, the shape of an array, or a space.

    One of `features`, `shape` and `space` is enough; the others follow from it.

    Args:
        features: one name per element of the vector; the order is part of the model.
        shape: of one observation that is an array; of another space, of the vector it becomes.
        dtype: of an array: ``float32``, or ``uint8`` for images and other bytes.
        normalize: scale by the running mean and variance of the training observations. Elements
            that are bits or one-hot stay as they are, and an image is divided by 255 instead.
        clip: bound of a normalised element, in standard deviations.
        space: the description of the space, as in `jormungandr.spaces`.
        frame_stack: the newest so many arrays are one observation, the oldest first; an episode
            begins with its first one repeated.
    """

    features: tuple[str, ...] | None = None
    shape: tuple[int, ...] = ()
    dtype: Literal["float32", "uint8"] = "float32"
    normalize: bool = True
    clip: float = 10.0
    space: Space | None = None
    frame_stack: int = 1

    def __post_init__(self) -> None:
        features, shape = self.features, self.shape
        if features is not None:
            require(len(features) > 0, "observation.features", "at least one name", ())
            different = len(set(features)) == len(features)
            require(different, "observation.features", "different names", features)
            _utf8("observation.features", *features)
        space = self.space
        if space is None:
            if not shape:
                shape = () if features is None else (len(features),)
                require(
                    shape != (),
                    "observation.shape",
                    "`features`, `shape` or `space`",
                    "none of them",
                )
            whole = all(n >= 1 for n in shape)
            require(whole, "observation.shape", "numbers >= 1", list(shape))
            space = Box(shape=shape, dtype=self.dtype)
        resolved = space.shape if isinstance(space, Box) else (space.size,)
        given = (shape or resolved, self.dtype if self.dtype != "float32" else None)
        dtype = space.dtype if isinstance(space, Box) else "float32"
        require(given[0] == resolved, "observation.shape", f"{list(resolved)}", list(given[0]))
        require(given[1] in (None, dtype), "observation.dtype", dtype, self.dtype)
        for name, value in (("space", space), ("shape", resolved), ("dtype", dtype)):
            msgspec.structs.force_setattr(self, name, value)
        if features is not None:
            named = not self.is_image and len(features) == space.size
            require(named, "observation.features", f"{space.size} names", len(features))
        if self.frame_stack != 1:
            stackable = isinstance(space, Box) and 1 <= self.frame_stack <= 256
            require(stackable, "observation.frame_stack", "1..256, of a Box", self.frame_stack)
        largest = LARGEST_IMAGE if self.is_image else LARGEST_OBSERVATION
        fits = math.prod(self.stored_shape) <= largest
        require(fits, "observation.shape", f"at most {largest} elements", list(self.stored_shape))
        require(0 < self.clip <= LARGEST_CLIP, "observation.clip", "> 0, at most 1e6", self.clip)

    @property
    def described(self) -> Space:
        """The space of what the environment shows; of one frame, when frames are stacked."""
        assert self.space is not None  # __post_init__ resolved it
        return self.space

    def sees(self, shown: Space) -> bool:
        """Whether this is what an environment shows.

        A specification by hand need not say of numbers that they are bytes; of images it must.
        """
        mine = self.described
        if mine == shown or not (isinstance(mine, Box) and isinstance(shown, Box)):
            return mine == shown
        return mine.shape == shown.shape and not (mine.is_image or shown.is_image)

    @cached_property
    def is_image(self) -> bool:
        """Whether it goes through convolutions."""
        return isinstance(self.space, Box) and self.space.is_image

    @cached_property
    def shown_shape(self) -> tuple[int, ...]:
        """The shape of one observation that is an array, with its frames."""
        stacked = (self.frame_stack,) if self.frame_stack > 1 else ()
        return (*stacked, *self.shape)

    @cached_property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of one observation as it is stored: (D,), or that of an image."""
        if self.is_image:
            return self.shown_shape
        return (self.described.size * self.frame_stack,)

    @cached_property
    def stored_dtype(self) -> np.dtype[Any]:
        """What an observation is stored as: float32, or uint8 for an image."""
        return np.dtype(np.uint8 if self.is_image else np.float32)

    @cached_property
    def moments_shape(self) -> tuple[int, ...]:
        """The shape of mean and variance: (D,), or (0,) for an image, which has none."""
        return (0,) if self.is_image else self.stored_shape

    def latched(
        self, mean: NDArray[np.float64], var: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the moments to normalise with: those of bits and one-hots are 0 and 1."""
        if self.is_image or isinstance(self.space, Box):
            return mean, var
        numbers = np.array(self.described.numbers())
        return np.where(numbers, mean, 0.0), np.where(numbers, var, 1.0)


class Action(Part, frozen=True):
    """One discrete action: its label, and the value it has in the environment's own terms."""

    label: str
    value: int | float | str

    def __post_init__(self) -> None:
        _utf8("actions", self.label, self.value)
        if isinstance(self.value, float):
            require(_finite(self.value), "actions: value", "a finite number", self.value)


class ActionChoice(Action, frozen=True, kw_only=True):
    """A chosen action: its index, and its label and value from the specification."""

    index: int

    def __getitem__(self, field: str) -> Any:
        return getattr(self, field)


class Auxiliary(Part, frozen=True):
    """A classification head beside the value head, trained on labels.

    Args:
        classes: names; a label is an index into them or one of them.
        weight: factor of its cross-entropy in the loss.
    """

    classes: tuple[str, ...]
    weight: float = 0.1

    def __post_init__(self) -> None:
        require(
            len(self.classes) >= 2 and len(set(self.classes)) == len(self.classes),
            "auxiliary.classes",
            "at least two different names",
            self.classes,
        )
        _utf8("auxiliary.classes", *self.classes)
        require(
            self.weight >= 0 and _finite(self.weight),
            "auxiliary.weight",
            "a number >= 0",
            self.weight,
        )


class LearningRate(Part, frozen=True):
    """What becomes of the learning rate `lr` in the course of the updates.

    A function of the number of completed updates and of nothing else. How long a run will be, only
    its maker knows: `updates` is to be given.

    Args:
        kind: ``constant``; or down to `end` times `lr`, ``linear`` or as half a ``cosine``
            (Loshchilov and Hutter 2017, equation 5, without restarts), and constant from there.
        updates: that the way down takes; without meaning if it is constant.
        end: what is left at the end of the way, as a share of `lr`. With 0, a model that is given
            transitions after that learns nothing from them.
    """

    kind: Literal["constant", "linear", "cosine"] = "constant"
    updates: int | None = None
    end: float = 0.1

    def __post_init__(self) -> None:
        where, kinds = "c51.lr_schedule", ("constant", "linear", "cosine")
        require(self.kind in kinds, f"{where}.kind", f"one of {list(kinds)}", self.kind)
        if self.updates is None:
            known = self.kind == "constant"
            require(known, f"{where}.updates", f"a number, for {self.kind!r}", self.updates)
        else:
            require(1 <= self.updates < 2**63, f"{where}.updates", "1..2**63-1", self.updates)
        require(0 <= self.end <= 1, f"{where}.end", "0..1", self.end)

    def factor(self, updates: int) -> float:
        """Return what `lr` is multiplied with after so many completed updates, 0..1."""
        if self.kind == "constant" or self.updates is None:
            return 1.0
        return self.factor_at(min(1.0, updates / self.updates))

    def factor_at(self, done: float) -> float:
        """Return what `lr` is multiplied with where a share of the way is done, 0..1."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return (1 - done) + self.end * done


class C51(Part, frozen=True):
    """Categorical value learning (Bellemare, Dabney and Munos 2017, arXiv:1707.06887).

    Args:
        atoms: points of the support (n).
        support: lowest and highest return it can represent (n); mass outside is put at the ends.
            ``auto`` begins where the rewards before the first update say, or if those are 0 the
            ones before the first update that has another, with 0 in the middle; and it reaches
            further at an end once more than 1 % of the target mass lies beyond it.
        hidden: units of each ReLU layer, after the convolutions of an image; an integer means two
            layers of it. None is two of 128, and one of 512 for an image (Mnih et al. 2015).
        gamma: discount per step.
        lr: Adam's step size.
        lr_schedule: what becomes of it in the course of the updates.
        adam_eps: Adam's epsilon; None is 0.01 / batch_size, the value of the paper.
        batch_size: transitions per update.
        max_grad_norm: global norm that gradients are scaled down to.
        target_interval: updates between copies to the target network.
        n_step: steps of reward before the bootstrap.
        double: choose the bootstrap action with the online network (van Hasselt et al. 2016).
        dueling: the logits of an action are V + A − mean of A over the actions, atom by atom,
            before the softmax over the atoms (Wang et al. 2016, equation 9). V and A are linear
            heads on the last hidden layer, which they share; in Hessel et al. (2018) each has its
            own.
        noisy: learned, factorised noise in every linear layer but the auxiliary head (Fortunato et
            al. 2018). Each update draws it, once for the online and once for the target network,
            and so does each request for actions that is not deterministic. Epsilon stays what
            `exploration` says: to explore by noise alone, set its start and end to 0. Held-out
            losses, and exports to other formats than a bundle, are without noise. The
            `behavior_prob` of a choice is conditional on the noise drawn for it: 1 without epsilon,
            which is not the probability of the action. The engine is ``autograd``.
        noisy_sigma: standard deviation of a weight's noise at first, times √inputs.
        averaging: weight that the policy keeps at each update, the rest being the online network's:
            policies act with the exponential average of the weights (Polyak and Juditsky 1992).
            Early on it keeps less, so that the first weights do not stay. 0 acts with the newest.
        engine: what computes gradients: ``closed_form``, for plain and dueling layers and several
            times faster there, or ``autograd``. None is the fastest there is for the model.
    """

    atoms: int = 51
    support: tuple[float, float] | Literal["auto"] = (-10.0, 10.0)
    hidden: int | tuple[int, ...] | None = None
    gamma: float = 0.99
    lr: float = 5e-4
    lr_schedule: LearningRate = LearningRate()
    adam_eps: float | None = None
    batch_size: int = 64
    max_grad_norm: float = 10.0
    target_interval: int = 200
    n_step: int = 1
    double: bool = False
    dueling: bool = False
    noisy: bool = False
    noisy_sigma: float = 0.5
    averaging: float = 0.0
    engine: Literal["closed_form", "autograd"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.hidden, int):
            msgspec.structs.force_setattr(self, "hidden", (self.hidden, self.hidden))
        require(2 <= self.atoms <= 1001, "c51.atoms", "2..1001", self.atoms)
        if self.support != "auto":
            _check_support(self.support, self.atoms)
        layers = self.layers
        require(
            1 <= len(layers) <= 8 and all(1 <= n <= 4096 for n in layers),
            "c51.hidden",
            "1..8 layers of 1..4096 units",
            layers,
        )
        require(0 <= self.gamma <= 1, "c51.gamma", "0..1", self.gamma)
        require(self.lr > 0 and _finite(self.lr), "c51.lr", "a number > 0", self.lr)
        if self.adam_eps is None:
            msgspec.structs.force_setattr(self, "adam_eps", 0.01 / max(1, self.batch_size))
        assert self.adam_eps is not None
        require(self.adam_eps > 0 and _finite(self.adam_eps), "c51.adam_eps", "> 0", self.adam_eps)
        require(1 <= self.batch_size <= 65_536, "c51.batch_size", "1..65536", self.batch_size)
        require(
            self.max_grad_norm > 0 and _finite(self.max_grad_norm),
            "c51.max_grad_norm",
            "a number > 0",
            self.max_grad_norm,
        )
        require(self.target_interval >= 1, "c51.target_interval", ">= 1", self.target_interval)
        require(1 <= self.n_step <= 256, "c51.n_step", "1..256", self.n_step)
        schedule: Any = self.lr_schedule
        if not isinstance(schedule, LearningRate):
            got = type(schedule).__name__
            raise InvalidType("c51.lr_schedule", f"a {LearningRate.__name__}", got)
        sigma = self.noisy_sigma
        require(sigma >= 0 and _finite(sigma), "c51.noisy_sigma", "a number >= 0", sigma)
        closed = self.noisy and self.engine == "closed_form"
        require(not closed, "c51.engine", "'autograd' for noisy layers", self.engine)
        require(0 <= self.averaging < 1, "c51.averaging", "0..1, without 1", self.averaging)

    def rate(self, updates: int) -> float:
        """Return Adam's step size after so many completed updates."""
        return self.lr * self.lr_schedule.factor(updates)

    @property
    def layers(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        assert not isinstance(self.hidden, int)  # __post_init__ resolved it
        return (128, 128) if self.hidden is None else self.hidden


def _check_support(support: tuple[float, float], atoms: int) -> None:
    """Refuse bounds that no atoms fit between."""
    (low, high), where = support, "c51.support"
    increasing = _finite(low) and _finite(high) and low < high
    require(increasing, where, "[lowest, highest], finite and increasing, or 'auto'", support)
    gap, largest = (high - low) / (atoms - 1), max(abs(low), abs(high))
    different = largest < FLOAT32_MAX / 2 and gap > largest * FLOAT32_EPSILON
    require(different, where, "atoms that are finite and different in float32", support)


class Replay(Part, frozen=True):
    """Prioritized replay (Schaul et al. 2016, arXiv:1511.05952).

    Args:
        capacity: items; the oldest makes room.
        alpha: exponent of the priorities; 0 is uniform and costs no tree.
        beta_start: exponent of the importance weights at the first update.
        beta_updates: updates over which it rises linearly to 1.
        priority_epsilon: added to every priority.
        is_normalizer: weights are divided by their maximum over the ``batch`` or the ``buffer``.
        window_idle: training transitions after which an n-step window nobody continues is closed.
        priority: of a transition: its ``cross_entropy`` loss, or that less the entropy of its
            target (``kl``; Hessel et al. 2018), which is 0 for what is predicted exactly.
    """

    capacity: int = 100_000
    alpha: float = 0.6
    beta_start: float = 0.4
    beta_updates: int = 100_000
    priority_epsilon: float = 1e-6
    is_normalizer: Literal["batch", "buffer"] = "batch"
    window_idle: int = 10_000
    priority: Literal["cross_entropy", "kl"] = "cross_entropy"

    def __post_init__(self) -> None:
        require(1 <= self.capacity <= 100_000_000, "replay.capacity", "1..1e8", self.capacity)
        require(0 <= self.alpha <= 2, "replay.alpha", "0..2", self.alpha)
        require(0 <= self.beta_start <= 1, "replay.beta_start", "0..1", self.beta_start)
        fits = 1 <= self.beta_updates < 2**63
        require(fits, "replay.beta_updates", "1..2**63-1", self.beta_updates)
        require(
            self.priority_epsilon > 0 and _finite(self.priority_epsilon),
            "replay.priority_epsilon",
            "a number > 0",
            self.priority_epsilon,
        )
        require(self.window_idle >= 1, "replay.window_idle", ">= 1", self.window_idle)


class Validation(Part, frozen=True):
    """The held-out store: `capacity` transitions, evaluated every `evaluate_every` updates."""

    capacity: int = 10_000
    evaluate_every: int = 100

    def __post_init__(self) -> None:
        require(1 <= self.capacity <= 10_000_000, "validation.capacity", "1..1e7", self.capacity)
        require(self.evaluate_every >= 1, "validation.evaluate_every", ">= 1", self.evaluate_every)


class Pacing(Part, frozen=True):
    """When updates are due, in accepted training transitions.

    Args:
        learning_starts: transitions before the first update.
        updates_per_transition: updates for each one after those.
        max_backlog: training transitions the learner may be behind before the service answers 429.
    """

    learning_starts: int = 1_000
    updates_per_transition: float = 0.25
    max_backlog: int = 100_000

    def __post_init__(self) -> None:
        require(self.learning_starts >= 0, "pacing.learning_starts", ">= 0", self.learning_starts)
        require(
            0 <= self.updates_per_transition <= 1_000,
            "pacing.updates_per_transition",
            "0..1000",
            self.updates_per_transition,
        )
        require(self.max_backlog >= 1, "pacing.max_backlog", ">= 1", self.max_backlog)


class Exploration(Part, frozen=True):
    """Epsilon-greedy: from `start` linearly to `end` over `transitions` accepted training ones."""

    start: float = 1.0
    end: float = 0.05
    transitions: int = 10_000

    def __post_init__(self) -> None:
        require(0 <= self.start <= 1, "exploration.start", "0..1", self.start)
        require(0 <= self.end <= 1, "exploration.end", "0..1", self.end)
        require(self.transitions >= 1, "exploration.transitions", ">= 1", self.transitions)

    def epsilon(self, transitions: int) -> float:
        """Return the probability of a uniformly random action after so many transitions."""
        done = min(1.0, transitions / self.transitions)
        return self.start * (1 - done) + self.end * done


class Staleness(Part, frozen=True):
    """What happens to training transitions of an old policy; see docs/staleness.md.

    Args:
        max_policy_lag: versions that a policy may be behind the newest served; None is any number.
        mode: of those behind further, ``accept`` takes all, ``drop`` takes some, and ``reject``
            refuses requests that have any.
        stale_share: in mode ``drop``, the share of all training transitions that is taken though it
            is stale, in equal parts for all active actors; 0 drops whatever is stale.
    """

    max_policy_lag: int | None = None
    mode: Literal["accept", "drop", "reject"] = "accept"
    stale_share: float = 0.25

    def __post_init__(self) -> None:
        require(0 <= self.stale_share <= 1, "staleness.stale_share", "0..1", self.stale_share)
        require(
            self.max_policy_lag is None or self.max_policy_lag >= 0,
            "staleness.max_policy_lag",
            ">= 0 or null",
            self.max_policy_lag,
        )


class Labels(Part, frozen=True):
    """Labels that came before their transition: how many may wait, and for how many transitions."""

    pending_capacity: int = 100_000
    pending_expiry: int = 1_000_000

    def __post_init__(self) -> None:
        require(
            self.pending_capacity >= 0, "labels.pending_capacity", ">= 0", self.pending_capacity
        )
        require(self.pending_expiry >= 1, "labels.pending_expiry", ">= 1", self.pending_expiry)


class Divergence(Part, frozen=True):
    """Non-finite updates: `patience` in a row restore the copy kept every `copy_every` updates."""

    patience: int = 5
    copy_every: int = 100

    def __post_init__(self) -> None:
        require(self.patience >= 1, "divergence.patience", ">= 1", self.patience)
        require(self.copy_every >= 1, "divergence.copy_every", ">= 1", self.copy_every)


class Risk(Part, frozen=True):
    """What a policy takes the best action by; what it learns is the whole distribution either way.

    Args:
        kind: ``mean``, the expected return, or ``cvar``, the mean of the worst part of the returns
            (Acerbi and Tasche 2002). The bootstrap action is the best by the mean in both.
        level: how large that part is, above 0 and up to 1, which is the mean again.
    """

    kind: Literal["mean", "cvar"] = "mean"
    level: float = 0.1

    def __post_init__(self) -> None:
        require(self.kind in ("mean", "cvar"), "risk.kind", "'mean' or 'cvar'", self.kind)
        require(0 < self.level <= 1, "risk.level", "above 0, at most 1", self.level)

    @property
    def tail(self) -> float:
        """The part of the returns that counts: 1 is all."""
        return self.level if self.kind == "cvar" else 1.0


class Promotion(Part, frozen=True):
    """Which policy a service hands out, and what a new one has to show first; docs/promotion.md.

    Args:
        serve: ``latest`` hands out the newest policy; ``champion`` the one that has shown on
            held-out episodes that it is better than the champion before it.
        min_episodes: pairs of held-out episodes, or episodes of either policy, that a candidate is
            tested on, once.
        candidate_every: updates between two candidates, at least.
        confidence: of the one-sided lower bound of the difference that has to be above 0.
    """

    serve: Literal["latest", "champion"] = "latest"
    min_episodes: int = 100
    candidate_every: int = 1_000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        known = self.serve in ("latest", "champion")
        require(known, "promotion.serve", "'latest' or 'champion'", self.serve)
        n = self.min_episodes
        require(2 <= n <= 10_000, "promotion.min_episodes", "2..10000", n)
        every = self.candidate_every
        require(1 <= every < 2**63, "promotion.candidate_every", "1..2**63-1", every)
        sure = 0.5 < self.confidence < 1
        require(sure, "promotion.confidence", "0.5..1, without the ends", self.confidence)

    @property
    def gated(self) -> bool:
        """Whether what is handed out has to be promoted first."""
        return self.serve == "champion"
