"""`python -m services.NAME --config FILE`: a process that runs as its configuration says."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from schemas.settings import Settings
from services.primitives.errors import NavarchError
from services.primitives.garbage_collection import collect_rarely
from services.primitives.module_names import installed_name
from services.runtime.configuration_reload import ConfigurationReload
from services.runtime.logs import set_up_logs
from services.settings.settings_file import DEFAULTS, load_settings, parse_settings

log = logging.getLogger(__name__)

Check = Callable[[Settings, Path | None], None]
"""Raises ConfigurationError if the process cannot start with these settings, from this file."""

Run = Callable[[Settings, Path | None, ConfigurationReload], Coroutine[Any, Any, None]]


def run_configured(name: str, check: Check, run: Run) -> None:
    """Run until a signal ends the process; a wrong configuration ends it with exit code 2."""
    collect_rarely()
    module = installed_name(f"services.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("NAVARCH_CONFIG"),
        help="configuration file (default: $NAVARCH_CONFIG)",
    )
    arguments = parser.parse_args()
    set_up_logs(name, os.environ.get("NAVARCH_LOG_LEVEL", "INFO"))
    file = Path(arguments.config) if arguments.config else None

    def read() -> Settings:
        found = load_settings(file) if file else parse_settings("(defaults)", DEFAULTS, os.environ)
        check(found, file)
        return found

    try:
        reload = ConfigurationReload(read, file)
        uvloop.run(run(reload.settings, file, reload))
    except NavarchError as error:
        log.error("%s", error)  # noqa: TRY400 - the text is the whole story
        sys.exit(2)
    if reload.restarts:
        reload.restart()
