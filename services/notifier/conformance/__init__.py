"""Tests of the `Notifier` contract, which the author of a plugin runs with pytest.

A test class in your package inherits from the one here and gives it a workload system to drive:

    import pytest
    from navarch.services.notifier.conformance import NotifierConformance

    class TestAcme(NotifierConformance):
        @pytest.fixture
        def site(self):
            return AcmeSite()

It needs pytest and pytest-asyncio (`navarch[conformance]`).
"""

from services.notifier.conformance.channel_suite import ChannelConformance as ChannelConformance
from services.notifier.conformance.notifier_suite import (
    NotifierConformance as NotifierConformance,
)
from services.notifier.conformance.notifier_suite import WorkloadSite as WorkloadSite
