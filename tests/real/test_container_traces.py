"""The collector of compose/ on a real Docker engine: spans of the services pass it.

The collector is built by OpenTelemetry's own builder. A second one has the place of the store of
traces, and writes what it gets to its log.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.real.compose_project import (
    UP_SECONDS,
    WATCHED,
    Compose,
    break_gpu,
    build,
    project,
    two_nodes,
)
from tests.real.kustomize_base import tool
from tests.support.inprocess import eventually

# The first run builds the image.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
IMAGE: Final = "navarch-collector:test"
DOCKERFILE: Final = """
ARG BASE
FROM scratch
COPY otelcol /otelcol
USER 10001
ENTRYPOINT ["/otelcol"]
CMD ["--config=yaml:receivers::otlp::protocols::http::endpoint: 0.0.0.0:4318", \
"--config=yaml:exporters::debug::verbosity: detailed", \
"--config=yaml:service::pipelines::traces: {receivers: [otlp], exporters: [debug]}"]
"""


@pytest.fixture
def compose() -> Iterator[Compose]:
    """A fleet that sends its traces to the collector, with the file that is shipped."""
    program = tool("otelcol")
    if not program:
        pytest.skip("no collector: tests/real/kubernetes/install-tools.sh builds one")
    with project(
        NAVARCH_COLLECTOR_IMAGE=IMAGE,
        NAVARCH_TRACES_IMAGE=IMAGE,
        NAVARCH_TRACES="http://collector:4318/v1/traces",
    ) as found:
        build(IMAGE, "-f", "-", str(Path(program).parent), dockerfile=DOCKERFILE)
        found(*WATCHED, "up", "-d", "--no-build", "--no-deps", "traces", "collector")
        asyncio.run(found.start())
        yield found


async def test_spans_pass_the_collector(compose: Compose) -> None:
    """The collector passes spans of both services that take part in a node's replacement."""
    old, _ = await two_nodes(compose.listed)
    break_gpu(compose, old)
    await two_nodes(compose.listed, without=old)

    async def stored() -> bool:
        lines = await asyncio.to_thread(compose, *WATCHED, "logs", "traces")
        return "Str(provisioner)" in lines and "Str(pool-manager)" in lines

    await eventually(stored, within_seconds=UP_SECONDS, every=1.0)
