"""Tests of the `Provider` contract, which the author of a plugin runs with pytest.

A test class in your package inherits from the one here and constructs the provider:

    import pytest
    from navarch.services.provisioner.conformance import ProviderConformance, environment

    class TestAcme(ProviderConformance):
        @pytest.fixture
        def make(self, tmp_path):
            account = AcmeTestServer()
            return lambda: Acme(options=Acme.Options(url=account.url),
                                environment=environment(tmp_path))

Each test starts with an empty account, and constructs the provider repeatedly, as a restarted
provisioner would. It needs pytest and pytest-asyncio (`navarch[conformance]`).
"""

from services.provisioner.conformance.provider_suite import (
    ProviderConformance as ProviderConformance,
)
from services.provisioner.conformance.suite_fixtures import MakeProvider as MakeProvider
from services.provisioner.conformance.suite_fixtures import MakeRequest as MakeRequest
from services.provisioner.conformance.suite_fixtures import Refusal as Refusal
from services.provisioner.conformance.suite_fixtures import environment as environment
from services.provisioner.conformance.suite_fixtures import request_maker as request_maker
