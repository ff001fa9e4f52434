"""Starts the gateway: `python -m services.gateway`."""

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from schemas.permissions import GATEWAY
from services.gateway.gateway_process import run
from services.gateway.gateway_start import check
from services.runtime.configured_process import run_configured

if __name__ == "__main__":
    run_configured(GATEWAY, check, run)
