"""GET: the dashboard's page and its files, for every caller: they hold nothing of the fleet."""

from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from services.gateway.authentication import PUBLIC
from services.gateway.problems import ProblemError

FOLDER: Final = Path(__file__).parent / "dashboard"
PAGE: Final = "index.html"
MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def dashboard_routes() -> list[HTTPRouteHandler]:
    """Read the files once, and serve them from memory."""
    files = {
        path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in MEDIA_TYPES
    }
    options: dict[str, Any] = {
        "opt": {PUBLIC: True},
        "include_in_schema": False,
        "cache": False,
        "sync_to_thread": False,
    }

    def answer(name: str) -> Response[bytes]:
        if name not in files:
            raise ProblemError(HTTPStatus.NOT_FOUND, f"the dashboard has no file {name!r}", "GET /")
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers=HEADERS)

    @get("/", **options)
    def dashboard_page() -> Response[bytes]:
        return answer(PAGE)

    @get("/dashboard/{name:str}", **options)
    def dashboard_file(name: FromPath[str]) -> Response[bytes]:
        return answer(name)

    return [dashboard_page, dashboard_file]
