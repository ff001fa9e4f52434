"""`python -m services.gateway`."""

import argparse
import logging
import os
import sys
from pathlib import Path

import uvloop

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from schemas.settings import Settings
from services.gateway.gateway_process import run
from services.gateway.gateway_start import check
from services.primitives.errors import NavarchError
from services.runtime.configuration_reload import ConfigurationReload, execute_again
from services.runtime.logs import set_up_logs
from services.settings.settings_file import DEFAULTS, load_settings, parse_settings

log = logging.getLogger(__name__)


def main() -> None:
    """Run the gateway."""
    parser = argparse.ArgumentParser(prog="python -m services.gateway")
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("NAVARCH_CONFIG"),
        help="configuration file (default: $NAVARCH_CONFIG)",
    )
    arguments = parser.parse_args()
    set_up_logs("gateway", os.environ.get("NAVARCH_LOG_LEVEL", "INFO"))
    file = Path(arguments.config) if arguments.config else None

    def read() -> Settings:
        found = load_settings(file) if file else parse_settings("(defaults)", DEFAULTS, os.environ)
        check(found, file)
        return found

    reload = ConfigurationReload(read, str(file or "(defaults)"))
    reload.install()
    try:
        uvloop.run(run(read(), file, reload))
    except NavarchError as error:
        log.error("%s", error)  # noqa: TRY400 - the text is the whole story
        sys.exit(2)
    if reload.restarts:
        execute_again()


if __name__ == "__main__":
    main()
