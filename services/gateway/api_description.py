"""The OpenAPI description of the HTTP API: made when it is first asked for, and once."""

import asyncio
from functools import cache
from importlib.metadata import version
from typing import Any, Final

import msgspec
from litestar import Litestar, Response, get
from litestar.di import Provide
from litestar.enums import OpenAPIMediaType
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import (
    Components,
    OpenAPIResponse,
    Reference,
    Schema,
    SecurityScheme,
)

from schemas.operation_bodies import BODIES
from services.gateway.change_routes import CHANGE_ROUTES
from services.gateway.event_routes import EVENT_ROUTES
from services.gateway.fleet_routes import FLEET_ROUTES
from services.gateway.history_routes import HISTORY_ROUTES, STREAM_ROUTES
from services.gateway.order_routes import ORDER_ROUTES
from services.gateway.problems import ROOT

DESCRIBED_ROUTES: Final = (
    *(*FLEET_ROUTES, *HISTORY_ROUTES, *EVENT_ROUTES),
    *(*STREAM_ROUTES, *CHANGE_ROUTES, *ORDER_ROUTES),
)
PROVIDED: Final = ("fleet", "changes", "histories", "streams", "now", "principal")
"""What the application gives to the routes: no parameters of a request."""
TITLE: Final = "Reads a Navarch fleet and changes it: docs/http-api.md."


@get(
    [ROOT, f"{ROOT}/openapi.json"],
    include_in_schema=False,
    media_type=OpenAPIMediaType.OPENAPI_JSON,
)
async def get_description() -> Response[bytes]:
    """Get the description; it is made in a thread, as that takes a quarter of a second."""
    content = msgspec.json.encode(await asyncio.to_thread(api_description))
    return Response(content, media_type=OpenAPIMediaType.OPENAPI_JSON)


DESCRIPTION_ROUTES: Final = (get_description,)


@cache
def api_description() -> dict[str, Any]:
    """The description, which needs no bus and no fleet; it is not to be changed."""
    app = Litestar(
        DESCRIBED_ROUTES,
        dependencies={name: provide(None) for name in PROVIDED},
        logging_config=None,
        openapi_config=_openapi(),
    )
    _complete(app)
    return app.openapi_schema.to_schema()


def _complete(app: Litestar) -> None:
    """Describe what the library leaves out.

    A body may have no other fields; patterns are read by other languages than Python; and a caller
    that has the answer already gets 304.
    """
    schemas, paths = app.openapi_schema.components.schemas, app.openapi_schema.paths
    assert schemas is not None
    assert paths is not None
    for each in BODIES:
        schemas[each.__name__].additional_properties = False
    for schema in schemas.values():
        _translate_patterns(schema)
    for path in paths.values():
        if path.get is not None and path.get.responses is not None:
            path.get.responses["304"] = OpenAPIResponse(description="Not Modified")


def _translate_patterns(schema: Schema | Reference) -> None:
    if isinstance(schema, Reference):
        return
    if schema.pattern is not None:
        schema.pattern = schema.pattern.replace(r"\Z", "$")
    inside = [*(schema.properties or {}).values(), *(schema.one_of or ())]
    if isinstance(schema.items, Schema):
        inside.append(schema.items)
    for each in inside:
        _translate_patterns(each)


def provide(value: Any) -> Provide:
    """Give a value to the routes that name it."""
    return Provide(lambda: value, sync_to_thread=False)


def _openapi() -> OpenAPIConfig:
    scheme = SecurityScheme(type="http", scheme="bearer")
    return OpenAPIConfig(
        title="Navarch",
        version=version("navarch"),
        description=TITLE,
        components=Components(security_schemes={"token": scheme}),
        security=[{"token": []}],
        operation_id_creator=_operation_id,
        use_handler_docstrings=True,
    )


def _operation_id(handler: Any, *_: Any) -> str:
    return str(handler.handler_name)
