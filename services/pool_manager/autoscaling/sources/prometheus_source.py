"""Reads a queue, utilization or number of busy nodes from any PromQL."""

import asyncio
import math
from typing import Annotated, Any, Final

import msgspec

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.pool_manager.autoscaling.sources.source_http import SourceHttp
from services.runtime.bounded_http import status_text

FIELDS: Final = ("pending_jobs", "queue_depth", "utilization", "busy_nodes")
"""Of Load, each by a query of its own; counts but for `utilization`."""

Query = Annotated[str, msgspec.Meta(max_length=4_096)]


class _Sample(msgspec.Struct, frozen=True):
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result_type: str = msgspec.field(name="resultType")
    result: Any = None


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""


class PrometheusSource:
    """Asks a Prometheus, or what has its API, for one number a query."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `prometheus` in the configuration name the server and the queries."""

        url: SecretText
        """Of the server: `/api/v1/query` is added."""
        pending_jobs: Query = ""
        """PromQL of the jobs that wait for nodes; `$pool` is the pool."""
        queue_depth: Query = ""
        """PromQL of the jobs that wait or run."""
        utilization: Query = ""
        """PromQL of the GPUs' utilization in percent; replaces telemetry."""
        busy_nodes: Query = ""
        """PromQL of the nodes with work on them."""
        headers: dict[str, SecretText] = msgspec.field(default_factory=dict)
        """HTTP headers of every request, such as Authorization."""
        timeout: Duration = Duration(10)
        """For one request."""

        def __post_init__(self) -> None:
            """Refuse a source that asks nothing."""
            if not any(getattr(self, each) for each in FIELDS):
                raise ValueError(f"has no query; add one of {', '.join(FIELDS)}")

    def __init__(self, *, options: Options) -> None:
        """Ask as the options say; nothing is opened yet."""
        self._options = options
        self._http = SourceHttp(options.url, options.headers, float(options.timeout))

    async def load(self, pool: str) -> Load:
        """Ask every query; `$pool` in them is the pool's name."""
        asked = [each for each in FIELDS if getattr(self._options, each)]
        found = await asyncio.gather(
            *(self._value(each, pool) for each in asked), return_exceptions=True
        )
        values: dict[str, float] = {}
        for field, value in zip(asked, found, strict=True):
            if isinstance(value, BaseException):
                raise value
            values[field] = value
        return _load(values)

    async def _value(self, field: str, pool: str) -> float:
        query = getattr(self._options, field).replace("$pool", pool)
        url = self._http.url()
        url = url.copy_with(path=f"{url.path.rstrip('/')}/api/v1/query")
        response = await self._http.ask("POST", url, data={"query": query})
        try:
            answer = msgspec.json.decode(response.content, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            status = status_text(response.status_code)
            raise SourceError(f"{self._http.where}: {status}, no PromQL API") from error
        try:
            return number(answer)
        except ValueError as error:
            raise SourceError(f"metrics.{field}: {error}") from error

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()


def number(answer: _Answer) -> float:
    """The only number of an answer; ValueError with the remedy where it is not one."""
    data = answer.data
    if answer.status != "success" or data is None:
        raise ValueError(f"Prometheus refuses the query: {answer.error[:300] or 'no reason'}")
    try:
        if data.result_type == "scalar":
            found = [float(msgspec.convert(data.result, tuple[float, str])[1])]
        elif data.result_type == "vector":
            samples = msgspec.convert(data.result, tuple[_Sample, ...])
            found = [float(each.value[1]) for each in samples]
        else:
            raise ValueError(f"is a {data.result_type}; write a query that gives one number")
    except msgspec.ValidationError as error:
        raise ValueError(f"the answer of Prometheus is not understood: {error}") from error
    if not found:
        raise ValueError(
            "has no result: its series are absent or stale; if that means none, "
            "append `or vector(0)`"
        )
    if len(found) > 1:
        raise ValueError(f"has {len(found)} results; write a query with one, such as sum(...)")
    if not math.isfinite(found[0]) or found[0] < 0:
        raise ValueError(f"its result is {found[0]}; it must be a finite number from 0")
    return found[0]


def _load(values: dict[str, float]) -> Load:
    """Every number as a Load."""
    found = {
        name: min(value, 100.0) if name == "utilization" else math.ceil(value)
        for name, value in values.items()
    }
    try:
        return msgspec.convert(found, Load)
    except msgspec.ValidationError as error:
        raise SourceError(f"metrics: {error}") from error
