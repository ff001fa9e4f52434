"""Metadata services as AWS, Google Cloud and Azure document them, and as strict as they are."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

Response = tuple[int, dict[str, str], bytes]
Serve = Callable[[type["Server"]], Awaitable[Any]]
"""Starts a server of this kind."""


class Server:
    """A small HTTP server on a free port; subclasses answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Method and path of every request, in order."""
        self.refused = 0
        """Requests that were not as documented."""
        self.silent = False
        """Whether to accept requests and never answer."""
        self.changed = asyncio.Event()
        self._came = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def was_asked(self, what: str, times: int) -> None:
        """Wait until requests that name `what` have come so often in all."""
        async with asyncio.timeout(60):
            while sum(what in each for each in self.asked) < times:
                self._came.clear()
                await self._came.wait()

    async def start(self) -> None:
        """Listen on a free port of this host."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Listen no more."""
        assert self._server is not None
        self._server.close()

    def change(self) -> None:
        """Wake the waiting requests."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines if x)}
            self.asked.append(f"{method} {urlsplit(target).path}")
            self._came.set()
            if self.silent:
                await reader.read()
                return
            status, more, body = await self.answer(method, target, headers)
            self.refused += status in (400, 401, 403, 405)
            more |= {"Content-Length": str(len(body))}
            lines = [f"HTTP/1.1 {status} x", *(f"{k}: {v}" for k, v in more.items()), "", ""]
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        """Answer a request."""
        raise NotImplementedError


class Aws(Server):
    """IMDSv2 with version 1 switched off: a token for every read, 404 for what is not announced."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[str, Any] = {}
        self.token = "t0"
        self._tokens = 0

    def expire(self) -> None:
        """Let every token run out."""
        self.token = ""

    async def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        if target == "/latest/api/token":
            ttl = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or "x-forwarded-for" in headers:
                return 405, {}, b""
            if not ttl.isdigit() or not 1 <= int(ttl) <= 21_600:
                return 400, {}, b""
            self._tokens += 1
            self.token = f"t{self._tokens}"
            return 200, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": ttl}, self.token.encode()
        if not self.token or headers.get("x-aws-ec2-metadata-token") != self.token:
            return 401, {}, b"Unauthorized"
        name = target.removeprefix("/latest/meta-data/")
        item = self.items.get(name)
        if name.startswith(("placement/", "instance-id")) and item is not None:
            return 200, {}, str(item).encode()
        return (404, {}, b"Not Found") if item is None else (200, {}, json.dumps(item).encode())


class Gcp(Server):
    """Google's: the flavour both ways, an ETag per value, and answers that wait for a change."""

    def __init__(self) -> None:
        super().__init__()
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.waiting = asyncio.Semaphore(0)
        """Released by each request that begins to wait."""

    def set(self, name: str, value: str) -> None:
        """Announce a value, and end the requests that wait for a change."""
        self.values[name] = value
        self.change()

    def _etag(self, name: str) -> str:
        return f"e{abs(hash((name, self.values[name]))):x}"

    async def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in headers:
            return 403, {}, b""
        name = parts.path.removeprefix("/computeMetadata/v1/instance/")
        if method != "GET" or name not in self.values:
            return 404, {"Metadata-Flavor": "Google"}, b""
        if query.get("wait_for_change") == "true":
            while query.get("last_etag") == self._etag(name):
                self.waiting.release()
                await self.changed.wait()
        head = {"Metadata-Flavor": "Google", "ETag": self._etag(name)}
        return 200, head, self.values[name].encode()


class Azure(Server):
    """Azure's: the header, a version it knows, one list for all VMs of the group."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.compute: dict[str, Any] = {}
        self.name = "gpu-pool_7"

    async def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        parts = urlsplit(target)
        version = parse_qs(parts.query).get("api-version", [""])[0]
        if headers.get("metadata") != "true" or "x-forwarded-for" in headers or method != "GET":
            return 400, {}, b'{"error": "Bad request. Required metadata header not specified"}'
        if not version.startswith("20"):
            return 400, {}, b'{"error": "Bad request. api-version is invalid or was not specified"}'
        if parts.path == "/metadata/instance/compute/name":
            return 200, {}, self.name.encode()
        if parts.path == "/metadata/instance/compute":
            return 200, {}, json.dumps(self.compute).encode()
        if parts.path != "/metadata/scheduledevents":
            return 404, {}, b""
        document = {"DocumentIncarnation": len(self.events), "Events": self.events}
        return 200, {}, json.dumps(document).encode()


class Raw(Server):
    """Answers with the given bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = b""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.bytes)
        writer.close()
