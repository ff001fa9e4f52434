"""The suite that authors of plugins run holds for each of our notifiers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.notifier.conformance import NotifierConformance, WorkloadSite
from tests.notifier.kubernetes_site import KubernetesSite
from tests.notifier.slurm_rest_site import SlurmRestSite
from tests.notifier.workload_sites import ExecSite, NoopSite, RaySite, SlurmFolder, WebhookSite


class TestNoop(NotifierConformance):
    @pytest.fixture
    def site(self) -> WorkloadSite:
        return NoopSite()


class TestWebhook(NotifierConformance):
    @pytest.fixture
    async def site(self) -> AsyncIterator[WorkloadSite]:
        async with WebhookSite().running() as site:
            yield site


class TestRay(NotifierConformance):
    @pytest.fixture
    async def site(self) -> AsyncIterator[WorkloadSite]:
        async with RaySite().running() as site:
            yield site


class TestExec(NotifierConformance):
    @pytest.fixture
    def site(self, tmp_path: Path) -> WorkloadSite:
        return ExecSite(folder=tmp_path)


class TestSlurm(NotifierConformance):
    @pytest.fixture
    def site(self, tmp_path: Path) -> WorkloadSite:
        return SlurmFolder(folder=tmp_path)


class TestSlurmRest(NotifierConformance):
    @pytest.fixture
    async def site(self) -> AsyncIterator[WorkloadSite]:
        async with SlurmRestSite().running() as site:
            yield site


class TestKubernetes(NotifierConformance):
    @pytest.fixture
    async def site(self, tmp_path: Path) -> AsyncIterator[WorkloadSite]:
        async with KubernetesSite(tmp_path).running() as site:
            yield site
