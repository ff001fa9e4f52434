"""Checks a configuration as every service does at its start."""

from pathlib import Path
from typing import Final

from schemas.settings import Settings
from services.gateway.gateway_start import check as check_gateway
from services.health_monitor.service import check as check_health_monitor
from services.notifier.service import check as check_notifier
from services.pool_manager.service import check as check_pool_manager
from services.provisioner.service import check as check_provisioner
from services.runtime.process import Check, check_service, no_check

CHECKS: Final[dict[str, Check]] = {
    "pool-manager": check_pool_manager,
    "health-monitor": check_health_monitor,
    "provisioner": check_provisioner,
    "notifier": check_notifier,
    "metrics": no_check,
}


def check_configuration(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if a service would not start with these settings from `file`."""
    for name, check in CHECKS.items():
        check_service(name, check, settings, file)
    check_gateway(settings, file)
