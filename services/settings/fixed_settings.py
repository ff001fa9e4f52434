"""The settings that a running fleet keeps: a reload refuses another value."""

from pathlib import Path
from typing import Final

from schemas.settings import Settings
from services.settings.plugin_loader import setting_error

FIXED: Final = ("fleet", "data_dir")


def check_fixed(before: Settings, after: Settings, file: Path | None) -> None:
    """Raise ConfigurationError where a reload would change what only a restart can."""
    for key in FIXED:
        old, new = getattr(before, key), getattr(after, key)
        if old != new:
            raise setting_error(
                key,
                f"goes from {old} to {new}, which a running fleet cannot take over: write {old}, "
                "or stop every process and start it with the new value",
                file,
            )
