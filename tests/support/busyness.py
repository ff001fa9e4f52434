"""How long something may take that is promised within so many seconds on a machine of its own."""

import os


def allowed(seconds: float) -> float:
    """The same on this machine now: where three processes want each core, thrice as long."""
    wanting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.5, wanting)
