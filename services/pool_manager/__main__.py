"""`python -m services.pool_manager` runs the pool-manager."""

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from services.pool_manager.service import build, check
from services.runtime.process import main

if __name__ == "__main__":
    main("pool-manager", build, check)
