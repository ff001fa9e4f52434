"""Serves the agent's wheels to machines that have a token, so that they need no package index.

The port has the bus's certificate, which the machine checks by the authority in its token before
it sends anything. Who has no token that holds gets one sentence.
"""

import asyncio
import hmac
import re
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schemas.fleet_queries import Query
from schemas.join_tokens import JOIN_TOKENS, PREFIX, JoinRecord, digest_of
from schemas.settings import Settings
from services.cli.bus_client import connect_fleet
from services.cli.fleet_discovery import find_bus
from services.cli.served_bus import ServedBus
from services.cli.ssh_join import host_program, host_steps
from services.cli.ssh_join.agent_wheels import kept_wheels, with_files
from services.fleet_client.query_answers import decode_answer
from services.primitives.errors import NavarchError
from services.runtime.process_http import WebServer
from services.settings.packaged_files import resource
from services.settings.placeholders import UNIT

PROGRAM: Final = "/install.py"
BEARER: Final = re.compile(r"Bearer ([a-z0-9-]{1,80})/([a-z0-9-]{1,80})/([\w-]{16,128})")
AT_ONCE_MAX: Final = 4
"""Archives that are read at once, and questions to the bus: strangers cause no more."""
WHO: Final = "provisioner"
REFUSED: Final = (
    "the token was revoked, ended, or is of another fleet: make another (navarch join --print)"
)
Tokens = Callable[[], Awaitable[Sequence[JoinRecord]]]
"""Returns the tokens that are recorded."""


def printed_line(token: str, port: int) -> str:
    """Return the line that installs the agent on a machine, joins it and starts it. Pure.

    `echo` is the shell's own, so that the token is in no process's arguments.
    """
    skipped = len(PREFIX)
    program = (
        "import base64,http.client as h,json,ssl,sys,urllib.parse as u,zlib;"
        'sys.excepthook=lambda a,e,b:print("navarch: nothing was run:",e,file=sys.stderr);'
        "w=sys.stdin.read().split()[0];"
        f't=json.loads(zlib.decompress(base64.urlsafe_b64decode(w[{skipped}:]+"==")));'
        f'c=h.HTTPSConnection(u.urlsplit(t["url"]).hostname,{port},timeout=60,'
        'context=ssl.create_default_context(cadata=t["authority"]));'
        f'c.request("GET","{PROGRAM}",headers={{"Authorization":'
        '"Bearer %(pool)s/%(node)s/%(secret)s"%t});'
        "exec(c.getresponse().read())"
    )
    return f"echo {token} | python3 -c {shlex.quote(program)}"


def why_refused(header: str, records: Sequence[JoinRecord], now: datetime) -> str:
    """Return why who sends this header gets nothing; empty: a token that holds is shown. Pure."""
    match = BEARER.fullmatch(header)
    if match is None:
        return "a token is needed: navarch join --print"
    pool, node, secret = match.groups()
    digest = digest_of(secret)
    for each in records:
        same = hmac.compare_digest(each.digest, digest)
        if same and (each.pool, each.node) == (pool, node) and each.expires_at > now:
            return ""
    return REFUSED


def download_app(data: Path, tokens: Tokens, now: Callable[[], datetime]) -> Starlette:
    """Return what answers; `data`: the folder in which the wheels are kept."""
    room, asking = asyncio.Semaphore(AT_ONCE_MAX), asyncio.Semaphore(AT_ONCE_MAX)

    async def refused(request: Request) -> str:
        header = request.headers.get("authorization", "")
        # What has not the form of a token costs no question to the bus.
        if not BEARER.fullmatch(header):
            return why_refused(header, (), now())
        async with asking:
            return why_refused(header, await tokens(), now())

    async def program(request: Request) -> Response:
        try:
            why = await refused(request)
        except NavarchError as error:
            why = f"the fleet does not answer: {error}"
        if why:  # the line runs what it is answered
            return PlainTextResponse(f"import sys\nsys.exit({'navarch: ' + why!r})\n")
        source = await asyncio.to_thread(Path(host_program.__file__).read_text, "utf-8")
        return PlainTextResponse(f"{source}\n\nrun(w, t, c)\n")

    async def wheels(request: Request) -> Response:
        async with room:
            try:
                if why := await refused(request):
                    return PlainTextResponse(why, 403)
                found = await asyncio.to_thread(_archive, data)
            except NavarchError as error:
                return PlainTextResponse(str(error), 503)
            return Response(found, media_type="application/x-tar")

    return Starlette(routes=[Route(PROGRAM, program), Route(host_program.WHEELS, wheels)])


def _archive(data: Path) -> bytes:
    """Return the wheels, with the scripts of `navarch join`; NavarchError where none are kept."""
    kept = kept_wheels(data)
    if not kept.packed:
        raise NavarchError(
            f"no wheels are kept in {data}: on the machine of `navarch serve`, navarch join "
            "--print NODE --wheels FOLDER"
        )
    unit = resource(UNIT).read_text(encoding="utf-8")
    scripts = (host_steps.install_script("", unit), host_steps.JOIN, host_steps.START)
    texts = (each.encode() for each in scripts)
    return with_files(kept.packed, dict(zip(host_program.STEPS, texts, strict=True)))


class Serving(Protocol):
    """A fleet that is served."""

    settings: Settings
    config: Path | None
    directory: Path
    bus: ServedBus | None


@asynccontextmanager
async def downloads(serving: Serving) -> AsyncIterator[None]:
    """Give machines the agent as long as the context lasts, where a port is configured for that."""
    port = serving.settings.agent.install_port
    if not port:
        yield
        return
    certificate = serving.bus.certificate if serving.bus is not None else None
    if certificate is None:
        raise NavarchError(
            "agent.install_port needs the encrypted bus of `navarch serve`: set agent.bus_url to "
            "tls://HOST:PORT, or take install_port out"
        )
    try:
        listening = socket.create_server(("", port))
    except OSError as error:
        raise NavarchError(f"agent.install_port {port} cannot be used: {error.strerror}") from error
    with listening:
        async with connect_fleet(find_bus("", serving.config)) as fleet:

            async def tokens() -> Sequence[JoinRecord]:
                found = await fleet.query(JOIN_TOKENS, Query(), who=WHO)
                return decode_answer(list[JoinRecord], found, JOIN_TOKENS, WHO)

            app = download_app(serving.directory, tokens, lambda: datetime.now(UTC))
            server = WebServer(app, ssl_certfile=str(certificate))
            running = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                yield
            finally:
                server.should_exit = True
                await running
