"""Checks the fleet's name and the addresses that the configuration names. Pure."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from schemas.names import InvalidNameError, token
from schemas.settings import Settings
from services.settings.provider_choices import Problem

BUS_SCHEMES: Final = ("nats", "tls", "ws", "wss")
HTTP_SCHEMES: Final = ("http", "https")


def address_problems(settings: Settings) -> Iterator[Problem]:
    """The keys that are wrong, and why; values may hold secrets and are not repeated."""
    try:
        token(settings.fleet, "fleet")
    except InvalidNameError as error:
        yield ("fleet",), str(error)
    for section, key, urls in bus_urls(settings):
        # One without a scheme is a host, as the client reads it.
        if any("://" in url and _scheme(url) not in BUS_SCHEMES for url in urls.split(",")):
            yield (section, key), "is no address of nats-server: write nats://host:4222 or tls://…"
    for section, signal, endpoint in (
        ("tracing", "traces", settings.tracing.otlp_endpoint),
        ("metrics", "metrics", settings.metrics.otlp_endpoint),
    ):
        if endpoint and _scheme(endpoint) not in HTTP_SCHEMES:
            remedy = f"is not a URL: write http://collector:4318/v1/{signal}"
            yield (section, "otlp_endpoint"), remedy


def bus_urls(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Section, key and URLs of each setting that says where the bus is."""
    yield "nats", "url", settings.nats.url
    yield "agent", "bus_url", settings.agent.bus_url
    for each in settings.agent.region_bus_urls.values():
        yield "agent", "region_bus_urls", each


def _scheme(url: str) -> str:
    try:
        return urlsplit(url.strip()).scheme
    except ValueError:
        return ""
