"""Secrets in settings, URLs, answers and exceptions are shown in no error, log, trace or record."""

import asyncio
import gzip
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from schemas.settings import Setting, Settings
from services.notifier.workload.webhook_notifier import WebhookDrain, WebhookNotifier
from services.notifier.workload.workload_notifier import NodeReference
from services.pool_manager.autoscaling.metrics_sources import SourceError
from services.pool_manager.autoscaling.sources.http_source import HttpSource
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import is_secret, public_url, redacted, register_secret
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.provider_http import read_body
from services.runtime.bounded_http import bounded_client
from services.runtime.logs import JsonFormatter
from services.runtime.tracing import Tracing
from services.saga.participant import StepFailure
from services.settings.settings_file import parse_settings
from tests.redteam.secret_settings import OPTIONS, structs_in
from tests.support.inprocess import eventually, path_of

CANARY = "canary-5f0c9ad1b2e34f67"
AT_ONCE = WebhookDrain(completes="at-once")


@asynccontextmanager
async def answering(head: str, body: bytes = b"") -> AsyncIterator[tuple[str, list[str]]]:
    """A server with one answer to everything, and the request lines it got."""
    lines: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0])
        writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", lines


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (f"HTTP/1.1 400 {CANARY}", CANARY.encode()),
        (f"HTTP/1.1 302 Found\r\nLocation: http://{CANARY}/", b""),
        ("HTTP/1.1 200 OK", f'{{"drained": "{CANARY}"}}'.encode()),
        (f"{CANARY} 200 OK", b""),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip", gzip.compress(b"0" * 10_000_000)),
        ("HTTP/1.1 200 OK", b" " * 2_000_000),
        ("HTTP/1.1 500 Oops", CANARY.encode()),
    ],
    ids=["refusal", "redirect", "no status", "no HTTP", "compressed", "long", "500"],
)
async def test_webhook_failure_shows_neither_its_url_nor_the_answer(
    head: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the setting, the host and the status; what is retried is logged alike."""
    async with answering(head, body) as (host, lines):
        url = f"http://user:{CANARY}@{host}/{CANARY}?token={CANARY}"
        options = WebhookNotifier.Options(drain_status_url=url)
        notifier = WebhookNotifier(options=options, clock=SystemClock())
        caplog.set_level(logging.DEBUG, logger="services")
        asked = asyncio.create_task(notifier.workloads([NodeReference(pool="p", node="n")]))

        async def texts() -> list[str]:
            """What was logged and raised, once something was."""
            found = [JsonFormatter("notifier").format(each) for each in caplog.records]
            found += [str(asked.exception())] if asked.done() else []
            return found if any("drain_status_url" in each for each in found) else []

        shown = "".join(await eventually(texts))
        asked.cancel()
        await asyncio.wait({asked})
        await notifier.close()
    assert CANARY not in shown
    assert f"token={CANARY}&node_id=n" in lines[0]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("HTTP/1.1 404 Not Found", CANARY.encode()),
        ("HTTP/1.1 200 OK", f'{{"pending_jobs": "{CANARY}"}}'.encode()),
        ("HTTP/1.1 200 OK", b" " * 100_000),
    ],
)
async def test_metrics_source_keeps_its_query_and_shows_no_url(head: str, body: bytes) -> None:
    """The URL's own query was dropped, and the error with the whole URL was stored in POOLS."""
    async with answering(head, body) as (host, lines):
        url = f"http://user:{CANARY}@{host}/{CANARY}?token={CANARY}"
        source = HttpSource(options=HttpSource.Options(url=url))
        with pytest.raises(SourceError) as error:
            await source.load("training")
        await source.close()
    assert CANARY not in str(error.value)
    assert f"/{CANARY}?token={CANARY}&pool=training " in lines[0]


async def test_long_answer_is_read_to_the_limit_only() -> None:
    """No more of an endless answer is read than is kept."""
    async with answering("HTTP/1.1 200 OK", b"x" * 3_000_000) as (host, _):
        client = bounded_client(bytes_max=1_000_000)
        with pytest.raises(httpx.ReadError, match="longer than 1000000 bytes"):
            await client.get(f"http://{host}/")
        await client.aclose()


def test_every_http_client_is_bounded() -> None:
    """A further client is made by `bounded_client` too."""
    made = [
        file.name
        for file in path_of("services").rglob("*.py")
        if "httpx.AsyncClient(" in file.read_text() or "httpx.Client(" in file.read_text()
    ]
    assert ["bounded_http.py"] == made


@pytest.mark.parametrize(
    "repeated",
    [
        f"refused: key {CANARY} is unknown",
        f"https://user:{CANARY}@h/x",
        f"token={CANARY}%2B1",
        f'{{"key": "{CANARY}"}}',
    ],
)
def test_registered_secret_is_removed_from_errors_logs_and_traces(repeated: str) -> None:
    """A secret is removed where another system's text repeats it."""
    register_secret(f"https://user:{CANARY}@h/x?token={CANARY}%2B1")
    exporter = InMemorySpanExporter()
    tracing = Tracing("t", SimpleSpanProcessor(exporter))
    with pytest.raises(ValueError, match=CANARY), tracing.span("s", {}):
        raise ValueError(repeated)
    tracing.close()
    refused = ProviderError("INVALID", repeated)
    refused.reword(redacted)
    record = logging.makeLogRecord({"msg": "failed: %s", "args": (repeated,)})
    shown = [
        str(StepFailure(repeated)),
        StepFailure(repeated).reason,
        str(refused),
        refused.message,
        JsonFormatter("s").format(record),
        *(span.to_json() for span in exporter.get_finished_spans()),
    ]
    assert CANARY not in "".join(shown)


def test_error_that_is_not_the_provider_s_shows_no_body() -> None:
    """A proxy's page may repeat the request with its headers."""
    body = read_body(httpx.Response(502, text=f"Authorization: Bearer {CANARY}"))
    assert CANARY not in str(body)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://u:{CANARY}@host:8443/{CANARY}?t={CANARY}#{CANARY}", "https://host:8443"),
        (f"https://{CANARY}@host/", "https://host"),
        (f"https://host:{CANARY}/", "[secret]"),
        (CANARY, "[secret]"),
    ],
)
def test_public_url_has_no_part_that_may_be_a_secret(url: str, shown: str) -> None:
    """Only scheme, host and port."""
    assert shown == public_url(url)


@pytest.mark.parametrize(
    "key", ["nats: {url: %s}", "agent: {bus_url: %s}", "agent: {region_bus_urls: {eu: %s}}"]
)
def test_bus_url_with_credentials_is_refused(key: str) -> None:
    """Every node is given the URL."""
    text = key % f"'nats://a:4222,nats://user:{CANARY}@b:4222'"
    with pytest.raises(ConfigurationError, match="has credentials in it") as error:
        parse_settings("navarch.yaml", text, {})
    assert CANARY not in str(error.value)


def test_words_of_settings_are_not_redacted() -> None:
    """A path or user name of an ordinary URL occurs everywhere."""
    register_secret("https://navarch:pw@host/cordon?cluster=training")
    assert "replace-1/cordon of navarch in training" == redacted(
        "replace-1/cordon of navarch in training"
    )


SECRET_NAME = re.compile(r"url|password|secret|token|key|header|credential|endpoint", re.IGNORECASE)
PUBLIC: dict[str, str] = {
    "NatsSettings.url": "refused with credentials in it",
    "AgentSettings.bus_url": "refused with credentials in it",
    "AgentSettings.region_bus_urls": "refused with credentials in it",
    "Taint.key": "a Kubernetes label",
    "GatewaySettings.tokens": "digests alone; the variable NAVARCH_AUTH_TOKEN is no setting",
    "PoolSpec.ssh_keys": "public keys, or their names",
    "InventoryMachine.host_key": "a public key",
    "DiskOptions.kms_key": "the name of a key",
    "GcpOptions.disk_kms_key": "the name of a key",
    **dict.fromkeys(
        ("AwsProvider.Options.ssh_key", "AzureOptions.ssh_key", "LambdaProvider.Options.ssh_key"),
        "a public key, or its name",
    ),
    **dict.fromkeys(
        (
            "AwsProvider.Options.endpoint_url",
            "AzureOptions.base_url",
            "AzureOptions.login_url",
            "AzureOptions.metadata_url",
            "AzureOptions.prices_url",
            "GcpOptions.base_url",
            "GcpOptions.metadata_url",
            "GcpOptions.prices_url",
            "KubernetesProvider.Options.endpoint_url",
            "LambdaProvider.Options.base_url",
        ),
        "the cloud's API; its credentials have options of their own",
    ),
}
"""Setting -> why it holds no secret."""


@pytest.mark.parametrize(
    "kind", structs_in(Settings, *OPTIONS.values()), ids=lambda each: each.__qualname__
)
def test_setting_with_the_name_of_a_secret_is_one(kind: type[Setting]) -> None:
    """A field named like a secret is one, or names a file or variable; new ones are found so."""
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    suspicious = [
        name
        for name, hint in hints.items()
        if SECRET_NAME.search(name)
        and not is_secret(hint)
        and str in (hint, *get_args(hint))
        and not name.endswith(("_file", "_env", "_path"))
    ]
    assert [] == [each for each in suspicious if f"{kind.__qualname__}.{each}" not in PUBLIC]
