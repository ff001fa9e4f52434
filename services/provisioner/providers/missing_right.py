"""Logs once what is left out because an account lacks a right to read it."""

import logging

from services.provisioner.provider_client.provider_errors import ProviderError

log = logging.getLogger(__name__)


class MissingRight:
    """One thing that is not read without a right."""

    def __init__(self, message: str) -> None:
        """`message`: what is missing, as `no prices`."""
        self._message = message
        self._logged = False

    def log(self, remedy: str, error: ProviderError) -> None:
        """Log the first time which right the account needs."""
        if not self._logged:
            log.warning(self._message, extra={"remedy": remedy, "reason": str(error)})
        self._logged = True
