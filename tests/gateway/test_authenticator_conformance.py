"""Every built-in authenticator passes the suite that authors of plugins run."""

from collections.abc import AsyncIterator

import pytest

from services.gateway.conformance import AuthenticatorConformance, AuthenticatorSite
from tests.gateway.authenticator_sites import CertificateSite, OidcSite, TokenSite
from tests.gateway.oidc_issuer import oidc_issuer


class TestTokens(AuthenticatorConformance):
    """Tokens of the configuration."""

    @pytest.fixture
    def site(self) -> AuthenticatorSite:
        """With some."""
        return TokenSite()


class TestOidc(AuthenticatorConformance):
    """Tokens of a provider."""

    @pytest.fixture
    async def site(self) -> AsyncIterator[AuthenticatorSite]:  # type: ignore[override]
        """With one that answers."""
        async with oidc_issuer() as issuer:
            yield OidcSite(issuer)


class TestCertificates(AuthenticatorConformance):
    """Client certificates."""

    @pytest.fixture
    def site(self) -> AuthenticatorSite:
        """With some."""
        return CertificateSite()
