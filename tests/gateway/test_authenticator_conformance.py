"""Every built-in authenticator passes the suite that authors of plugins run."""

from collections.abc import AsyncIterator

import pytest

from services.gateway.conformance import AuthenticatorConformance, AuthenticatorSite
from tests.gateway.authenticator_sites import CertificateSite, OidcSite, TokenSite
from tests.gateway.oidc_issuer import oidc_issuer


class TestTokens(AuthenticatorConformance):
    """Runs the suite with tokens of the configuration."""

    @pytest.fixture
    def site(self) -> AuthenticatorSite:
        """Return a site with tokens."""
        return TokenSite()


class TestOidc(AuthenticatorConformance):
    """Runs the suite with tokens of a provider."""

    @pytest.fixture
    async def site(self) -> AsyncIterator[AuthenticatorSite]:  # type: ignore[override]
        """Yield a site whose provider answers."""
        async with oidc_issuer() as issuer:
            yield OidcSite(issuer)


class TestCertificates(AuthenticatorConformance):
    """Runs the suite with client certificates."""

    @pytest.fixture
    def site(self) -> AuthenticatorSite:
        """Return a site with certificates."""
        return CertificateSite()
