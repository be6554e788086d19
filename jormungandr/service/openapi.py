"""The OpenAPI 3.1 document, from the route table and the structs of the bodies.

``python -m jormungandr.service.openapi > docs/openapi.json`` writes it down.

A route says of itself what it needs, takes and answers (`Doc`); this module adds what every route
of its kind has in common, and knows no route by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.routing import Route

from jormungandr.errors import (
    BodyTooLarge,
    Draining,
    Forbidden,
    InternalError,
    InvalidValue,
    JormungandrError,
    Malformed,
    MethodNotAllowed,
    ModelUnknown,
    NotFound,
    Overloaded,
    RequestTimeout,
    TooDeep,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnknownField,
    UnsupportedMediaType,
)
from jormungandr.service.bodies import Error
from jormungandr.service.descriptions import OPENAPI
from jormungandr.service.http.body import JSON, MSGPACK
from jormungandr.service.http.doc import Doc, Query, Raw
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.spec import MODEL_ID, ModelSpec
from jormungandr.version import __version__

__all__ = ["document", "openapi_route"]

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
#: Of a path that no route has, and of a method that a path's routes do not have.
NO_ROUTE = (NotFound, MethodNotAllowed)
DESCRIPTION = (
    "Transitions and labels in, numbered policies and actions out. docs/protocol.md says what each"
    " field means. Clients send the same bytes again after a connection error, 408, 429 and 503;"
    " every other 4xx is final."
)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document.

    Args:
        routes: the route table; every endpoint has `needs`, `accepts`, `query` and `doc`.

    Raises:
        InternalError: a route does not describe itself, or not all of its query.
    """
    endpoints = [(route, _described(route)) for route in routes]
    types: list[Any] = [ModelSpec, Error]
    for _, endpoint in endpoints:
        types += [t for t in (endpoint.doc.body, *endpoint.doc.replies.values()) if _is_type(t)]
    unique = list(dict.fromkeys(types))
    refs, schemas = msgspec.json.schema_components(unique, ref_template=_REF)
    made = dict(zip(unique, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route, endpoint in endpoints:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(route, method, endpoint, made)
            paths.setdefault(route.path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Jormungandr",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(schemas),
            "responses": {error.__name__: _error([error]) for error in NO_ROUTE},
        },
    }


def openapi_route(others: Sequence[Route]) -> Route:
    """Return the route that answers with the document of the others and of itself."""
    made: dict[str, Any] = {}

    async def call(_: Request) -> tuple[int, Any]:
        if not made:
            made.update(document([*others, route]))
        return 200, made

    endpoint = JsonRoute(call, needs="any", doc=OPENAPI)
    route = Route("/v1/openapi.json", endpoint, methods=["GET"])
    return route


def _is_type(found: Any) -> bool:
    return found is not None and not isinstance(found, Raw)


def _described(route: Route) -> Any:
    """Return what answers a route, behind its guard."""
    endpoint: Any = getattr(route.endpoint, "endpoint", route.endpoint)
    doc = getattr(endpoint, "doc", None)
    if not isinstance(doc, Doc):
        raise InternalError(f"route {route.path}", "an endpoint with a `doc`", type(endpoint))
    if set(doc.query) != set(endpoint.query):
        raise InternalError(f"route {route.path}", f"a doc of {endpoint.query}", list(doc.query))
    return endpoint


def _operation(route: Route, method: str, endpoint: Any, made: Mapping[Any, Any]) -> dict[str, Any]:
    doc: Doc = endpoint.doc
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^{MODEL_ID.pattern}$"},
        }
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [_query(name, doc.query[name]) for name in endpoint.query]
    words = _PARAMETER.sub("one", route.path).removeprefix("/v1").strip("/")
    name = re.sub(r"\W+", "_", f"{method.lower()}_{words}")
    operation: dict[str, Any] = {"operationId": name, "summary": doc.summary}
    if doc.text:
        operation["description"] = doc.text
    scopes = [] if endpoint.needs == "any" else [endpoint.needs]
    operation["security"] = [] if endpoint.needs is None else [{"token": scopes}]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.accepts:
        content = {kind: _content(kind, doc, made[doc.body]) for kind in endpoint.accepts}
        limits = ", ".join(f"{kind} up to {size} bytes" for kind, size in endpoint.accepts.items())
        operation["requestBody"] = {"required": True, "description": limits, "content": content}
    operation["responses"] = dict(sorted(_responses(route, endpoint, made)))
    return operation


def _query(name: str, query: Query) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": query.required,
        "description": query.text,
        "schema": dict(query.schema),
    }


def _content(kind: str, doc: Doc, schema: Any) -> dict[str, Any]:
    if kind == MSGPACK and doc.packed:
        return {"schema": {"description": doc.packed}}
    return {"schema": schema}


def _responses(
    route: Route, endpoint: Any, made: Mapping[Any, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    by_status: dict[int, list[type[JormungandrError]]] = {}
    for error in sorted({*_common(route, endpoint), *endpoint.doc.errors}, key=lambda e: e.code):
        by_status.setdefault(error.status, []).append(error)
    for status, reply in endpoint.doc.replies.items():
        response = _reply(status, reply, made)
        if status in by_status:  # 503 of a service that is not ready has two forms
            error = _error(by_status.pop(status))
            response["description"] += f"; or {error['description']}"
            content = response["content"][JSON]
            content["schema"] = {"anyOf": [content["schema"], error["content"][JSON]["schema"]]}
            response["headers"] = error["headers"]
        yield str(status), response
    for status, errors in by_status.items():
        yield str(status), _error(errors)


def _common(route: Route, endpoint: Any) -> Iterator[type[JormungandrError]]:
    """Yield what a route may answer for what it is, whatever it does."""
    # Whatever is not strict HTTP, is too slow, or is one too many; our own faults; the end.
    yield from (Malformed, RequestTimeout, Overloaded, InternalError, Draining)
    yield from (BodyTooLarge, UnknownField)  # a body where there is none, a query of no name
    if endpoint.needs is not None:
        yield from (Unauthenticated, Forbidden)
    if "{model_id}" in route.path:
        yield ModelUnknown
    if endpoint.query:
        yield InvalidValue
    if endpoint.accepts:
        yield from (TooDeep, UnsupportedMediaType)


def _reply(status: int, reply: Any, made: Mapping[Any, Any]) -> dict[str, Any]:
    if reply is None:
        return {"description": "no body"}
    if isinstance(reply, Raw):
        content = {reply.media_type: {"schema": {"description": reply.text}}}
        return {"description": reply.text, "content": content}
    text = (reply.__doc__ or f"{status}").strip().partition("\n")[0]
    return {"description": text, "content": {JSON: {"schema": made[reply]}}}


def _error(errors: Sequence[type[JormungandrError]]) -> dict[str, Any]:
    """Return the response of errors of one status."""
    lines = [f"`{e.code}`: {(e.__doc__ or '').strip().partition(chr(10))[0]}" for e in errors]
    codes = {"properties": {"error": {"properties": {"code": {"enum": [e.code for e in errors]}}}}}
    schema = {"allOf": [{"$ref": _REF.format(name="Error")}, codes]}
    response: dict[str, Any] = {"description": "\n\n".join(lines), "content": {}}
    response["content"][JSON] = {"schema": schema}
    if issubclass(errors[0], TooManyRequests | Unavailable):
        text = "seconds after which to send the same bytes again"
        response["headers"] = {
            "Retry-After": {"description": text, "schema": {"type": "integer", "minimum": 0}}
        }
    return response


def main() -> int:
    """Write the document to standard output."""
    from jormungandr.service.app import create_app

    service = create_app("unused", token=None)
    text = msgspec.json.format(msgspec.json.encode(document(service.routes)), indent=1)
    sys.stdout.write(text.decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
