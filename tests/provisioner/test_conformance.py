"""The suite that authors of plugins run holds for all of our providers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from services.provisioner.conformance import MakeProvider, ProviderConformance, Refusal
from services.provisioner.provider_client.provider import Provider
from tests.provisioner.provider_table import ROWS, Row

pytestmark = pytest.mark.slow

UNREACHABLE = "http://127.0.0.1:1"


class TestOurs(ProviderConformance):
    @pytest.fixture(params=ROWS, ids=lambda row: row.label)
    def row(self, request: pytest.FixtureRequest) -> Row:
        row: Row = request.param
        return row

    @pytest.fixture
    def make(self, row: Row, request: pytest.FixtureRequest) -> Callable[..., Provider]:
        make: Callable[..., Provider] = request.getfixturevalue(row.fixture)
        return partial(make, **row.options)

    @pytest.fixture
    def asks(self, row: Row) -> Mapping[str, Any]:
        return row.asks

    @pytest.fixture
    def refused(self, row: Row) -> tuple[Refusal, ...]:
        return row.refused

    @pytest.fixture
    def make_unreachable(self, row: Row, make: Callable[..., Provider]) -> MakeProvider | None:
        unreachable = row.unreachable or ({row.url: UNREACHABLE} if row.url else {})
        return (lambda: make(**unreachable)) if unreachable else None
