"""Tests of the `Authenticator` contract, which the author of a plugin runs with pytest.

A test class in your package inherits from the one here and gives it credentials to present:

    import pytest
    from navarch.services.gateway.conformance import AuthenticatorConformance

    class TestAcme(AuthenticatorConformance):
        @pytest.fixture
        def site(self):
            return AcmeSite()

It needs pytest and pytest-asyncio (`navarch[conformance]`).
"""

from services.gateway.conformance.authenticator_suite import (
    AuthenticatorConformance as AuthenticatorConformance,
)
from services.gateway.conformance.authenticator_suite import (
    AuthenticatorSite as AuthenticatorSite,
)
