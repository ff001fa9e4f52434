"""What every `Provider` must keep: tests that the author of a plugin runs with pytest.

A class of tests in a package of yours inherits from the one here and says how the provider is made:

    import pytest
    from services.provisioner.conformance import ProviderConformance, environment

    class TestAcme(ProviderConformance):
        @pytest.fixture
        def make(self, tmp_path):
            account = AcmeTestServer()
            return lambda: Acme(options=Acme.Options(url=account.url),
                                environment=environment(tmp_path))

Each test begins with an account in which nothing stands, and makes the provider anew, as often as a
restarted provisioner would. It needs pytest and pytest-asyncio (`navarch[conformance]`).
"""

from services.provisioner.conformance.provider_suite import (
    ProviderConformance as ProviderConformance,
)
from services.provisioner.conformance.suite_fixtures import MakeProvider as MakeProvider
from services.provisioner.conformance.suite_fixtures import MakeRequest as MakeRequest
from services.provisioner.conformance.suite_fixtures import Refusal as Refusal
from services.provisioner.conformance.suite_fixtures import environment as environment
from services.provisioner.conformance.suite_fixtures import request_maker as request_maker
