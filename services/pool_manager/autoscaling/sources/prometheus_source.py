"""A queue, utilization or number of busy nodes from any PromQL."""

import asyncio
import math
from typing import Annotated, Any, Final

import httpx
import msgspec

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.primitives.redaction import public_url
from services.runtime.bounded_http import bounded_client, failure_text, status_text

ANSWER_BYTES_MAX: Final = 1_048_576
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
        """What the configuration may say."""

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
        self._where = f"metrics.url ({public_url(options.url)})"
        self._client = bounded_client(
            bytes_max=ANSWER_BYTES_MAX, headers=options.headers, timeout=float(options.timeout)
        )

    async def load(self, pool: str) -> Load:
        """Ask every query; `$pool` in them is the pool's name."""
        asked = [each for each in FIELDS if getattr(self._options, each)]
        async with asyncio.TaskGroup() as group:
            answers = {each: group.create_task(self._value(each, pool)) for each in asked}
        return _load({each: answer.result() for each, answer in answers.items()})

    async def _value(self, field: str, pool: str) -> float | SourceError:
        query = getattr(self._options, field).replace("$pool", pool)
        try:
            url = httpx.URL(self._options.url)
            url = url.copy_with(path=f"{url.path.rstrip('/')}/api/v1/query")
            response = await self._client.post(url, data={"query": query})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return SourceError(f"{self._where}: {failure_text(error)}")
        try:
            answer = msgspec.json.decode(response.content, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return SourceError(f"{self._where}: {status_text(response.status_code)}, no PromQL API")
        try:
            return number(answer)
        except ValueError as error:
            return SourceError(f"metrics.{field}: {error}")

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


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


def _load(values: dict[str, float | SourceError]) -> Load:
    """Every number as a Load; the first error where there is one."""
    for each in values.values():
        if isinstance(each, SourceError):
            raise each
    found = {
        name: min(value, 100.0) if name == "utilization" else math.ceil(value)
        for name, value in values.items()
        if not isinstance(value, SourceError)
    }
    try:
        return msgspec.convert(found, Load)
    except msgspec.ValidationError as error:
        raise SourceError(f"metrics: {error}") from error
