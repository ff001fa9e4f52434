"""`python -m services.health_monitor`."""

from services.health_monitor.service import build
from services.runtime.process import main

if __name__ == "__main__":
    main("health-monitor", build)
