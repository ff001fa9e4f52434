"""Start the health-monitor: `python -m services.health_monitor`."""

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from services.health_monitor.service import build, check
from services.runtime.process import main

if __name__ == "__main__":
    main("health-monitor", build, check)
