"""What the OpenAPI document says of the routes in `jormungandr.service.app`."""

from __future__ import annotations

from jormungandr.errors import (
    ActionRange,
    Backlog,
    Draining,
    DtypeMismatch,
    EpisodeClosed,
    ExportError,
    IdentityConflict,
    InvalidType,
    InvalidValue,
    LabelConflict,
    LabelRange,
    LearnerFailed,
    MissingField,
    ModelConflict,
    ModelGone,
    ModelQuota,
    NonFinite,
    PackageMissing,
    PendingLabelsFull,
    PolicyGone,
    PolicyNotReady,
    PolicyVersionStale,
    PolicyVersionUnknown,
    RateLimited,
    ShapeMismatch,
    SplitConflict,
    StorageFull,
    Unavailable,
    UnknownField,
    UnknownSplit,
    WaitTimeout,
)
from jormungandr.protocol import LIMITS, InferenceReply, LabelReceipt, Receipt
from jormungandr.service.bodies import (
    AddLabels,
    AddTransitions,
    Asked,
    Checkpoints,
    CreateModel,
    Health,
    Infer,
    ModelInfo,
    ModelMetrics,
    Models,
    ServiceInfo,
    ServiceState,
)
from jormungandr.service.http.doc import Doc, Query, Raw

_FIELDS = (MissingField, UnknownField, InvalidType, InvalidValue)
_ARRAYS = (ShapeMismatch, DtypeMismatch, NonFinite)
_WAIT = {"type": "number", "minimum": 0, "maximum": 60, "default": 0}

LIVE = Doc("Whether the service lives", {200: Health})
READY = Doc("Whether the service takes requests", {200: ServiceState, 503: ServiceState})
INFO = Doc("Version and limits", {200: ServiceInfo})
CREATE = Doc(
    "Create a model",
    {200: ModelInfo, 201: ModelInfo},
    body=CreateModel,
    errors=(*_FIELDS, ModelConflict, ModelQuota, StorageFull, Draining),
    text="200 for one that exists: every field that is given must equal the stored one.",
)
MODELS = Doc("All models that the token is for", {200: Models})
SHOW = Doc(
    "A model's specification and figures",
    {200: ModelInfo},
    query={
        "applied_lsn": Query(
            "answer when this row is applied and the policy after it is served",
            {"type": "integer", "minimum": 0, "maximum": LIMITS["timestep_max"], "default": 0},
        ),
        "wait": Query("or when so many seconds have passed", _WAIT),
    },
    errors=(WaitTimeout, LearnerFailed, ModelGone, Draining),
)
DELETE = Doc("Delete a model and what it learned from", {204: None}, errors=(StorageFull, Draining))
METRICS = Doc("A model's figures over time", {200: ModelMetrics})
ADD = Doc(
    "Send transitions",
    {200: Receipt},
    body=AddTransitions,
    packed="columns, as docs/protocol.md describes",
    errors=(
        *_FIELDS,
        *_ARRAYS,
        ActionRange,
        UnknownSplit,
        LabelRange,
        IdentityConflict,
        SplitConflict,
        EpisodeClosed,
        LabelConflict,
        PolicyVersionUnknown,
        PolicyVersionStale,
        ModelGone,
        Backlog,
        RateLimited,
        PendingLabelsFull,
        StorageFull,
        Draining,
    ),
    text="All of them are durable when the answer comes, or none is kept.",
)
LABEL = Doc(
    "Send labels",
    {200: LabelReceipt},
    body=AddLabels,
    errors=(
        *_FIELDS,
        LabelRange,
        LabelConflict,
        SplitConflict,
        ModelGone,
        RateLimited,
        PendingLabelsFull,
        StorageFull,
        Draining,
    ),
    text="Before or after their transitions.",
)
INFERENCE = Doc(
    "Ask what to do",
    {200: InferenceReply},
    body=Infer,
    errors=(
        *_FIELDS,
        *_ARRAYS,
        RateLimited,
        PolicyNotReady,
        PolicyVersionUnknown,
        PolicyGone,
        ModelGone,
        Draining,
    ),
)
EXPORT = Doc(
    "The policy served, as a file",
    {200: Raw("application/zip", "the folder that docs/export.md describes")},
    query={
        "format": Query(
            "what to make",
            {"enum": ["bundle", "onnx", "torchscript", "pt2", "sb3"]},
            required=True,
        )
    },
    errors=(MissingField, PolicyNotReady, PackageMissing, ExportError, Unavailable),
)
CHECKPOINTS = Doc("The checkpoints that are kept", {200: Checkpoints})
CHECKPOINT = Doc(
    "Have the learner write a checkpoint",
    {200: Asked, 202: Asked},
    query={"wait": Query("seconds to wait for it", _WAIT)},
    errors=(Draining, ModelGone),
    text="202 when it is not written yet; it will be, also when nobody waits.",
)
OPENAPI = Doc("This document", {200: Raw("application/json", "OpenAPI 3.1")})
