"""Bodies of requests and answers that `jormungandr.protocol` does not have, as structs.

The OpenAPI document is made of them; a test holds the service's answers against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from jormungandr.protocol import LIMITS, Evaluation, Label, Transition
from jormungandr.spec import MODEL_ID, ModelSpec, preset_names

__all__ = [
    "AddLabels",
    "AddTransitions",
    "Asked",
    "Checkpoints",
    "CreateModel",
    "Error",
    "ErrorBody",
    "Health",
    "Infer",
    "ModelInfo",
    "ModelMetrics",
    "Models",
    "ServiceInfo",
    "ServiceState",
]

Figures = dict[str, Any]
Count = Annotated[int, Meta(ge=0)]
#: Under which a policy can be asked for.
Role = Literal["latest", "champion", "candidate"]
#: What `ModelSpec.from_dict` takes: a specification, or what a preset does not say already.
SpecLike = Annotated[
    Figures,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"$ref": "#/components/schemas/ModelSpec"},
                {
                    "type": "object",
                    "required": ["preset"],
                    "properties": {"preset": {"enum": list(preset_names())}},
                    "description": "a named specification that the other fields override; all but"
                    " ou-note leave observation and actions to be given",
                },
            ]
        }
    ),
]
Array = Annotated[
    Any,
    Meta(
        description='numbers in lists, {"uint8": base64, "shape": [...]}, or an object of those,'
        " as the model's observations are"
    ),
]


class Health(msgspec.Struct):
    """Whether the service's event loop turns."""

    status: Literal["live"]


class ServiceState(msgspec.Struct):
    """What the service does: it takes requests when it is ready."""

    status: Literal["starting", "ready", "draining", "stopped"]


class ServiceInfo(msgspec.Struct):
    """Version, limits, and what an acknowledgement stands for."""

    name: str
    version: str
    protocol: int
    limits: dict[str, int]
    durability: str


class CreateModel(msgspec.Struct, forbid_unknown_fields=True):
    """A model's id and specification."""

    model_id: Annotated[str, Meta(pattern=f"^{MODEL_ID.pattern}$")]
    spec: SpecLike


class ModelInfo(msgspec.Struct):
    """A model's specification and figures; the group `learner` says how its learner is."""

    model_id: str
    generation: int
    spec: ModelSpec
    policy_version: int
    update_count: Count
    transitions: dict[str, Count]
    accepted: dict[str, Count]
    stale_dropped: Count
    unversioned: Count
    mixed_episodes: Count
    labels: dict[str, Count]
    unlabelled: Count
    replay: dict[str, Count]
    validation: dict[str, Count]
    normalizer: dict[str, Count]
    updates: dict[str, Count]
    returns: dict[str, Figures]
    journal: Figures
    journal_lsn: Count
    applied_lsn: Count
    lineages: Count
    quarantined: Count
    lag: Figures
    promotion: Figures
    evaluation: Evaluation | None
    diverged: bool
    learner: Figures
    warnings: list[str]


class Models(msgspec.Struct):
    """Every model that the token is for."""

    models: list[ModelInfo]


class ModelMetrics(msgspec.Struct):
    """The last update, evaluations, returns by split and tag, and what each actor sent."""

    update: Figures
    evaluations: list[Evaluation]
    returns: dict[str, Figures]
    actors: Figures
    learner: Figures


class AddTransitions(msgspec.Struct, forbid_unknown_fields=True):
    """Transitions, of any actors and both splits."""

    transitions: Annotated[list[Transition], Meta(max_length=LIMITS["transitions_per_request"])]


class AddLabels(msgspec.Struct, forbid_unknown_fields=True):
    """Labels, by the identity of their transitions."""

    labels: Annotated[list[Label], Meta(max_length=LIMITS["labels_per_request"])]


class Infer(msgspec.Struct, forbid_unknown_fields=True):
    """Observations to choose actions for."""

    observations: Array
    deterministic: bool | None = None
    epsilon: Annotated[float, Meta(ge=0, le=1)] | None = None
    action_masks: list[Any] | None = None
    distribution: bool | None = None
    policy: Role | Count | None = None


class Checkpoint(msgspec.Struct):
    """A checkpoint of a learner: the last row in it, when it was written, its size."""

    lsn: Count
    time: float
    bytes: Count


class Checkpoints(msgspec.Struct):
    """The checkpoints that are kept, oldest first."""

    checkpoints: list[Checkpoint]


class Asked(Checkpoints):
    """Whether the checkpoint that was asked for is written, or why it cannot be."""

    done: bool
    error: str | None


class ErrorBody(msgspec.Struct):
    """What went wrong: where, what was expected there, what was given, what to do."""

    code: str
    message: str
    where: str
    expected: str
    got: str
    remedy: str


class Error(msgspec.Struct):
    """The body of every answer that is an error."""

    error: ErrorBody
