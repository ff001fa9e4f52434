"""`python -m services.pool_manager`."""

from services.pool_manager.service import build
from services.runtime.process import main

if __name__ == "__main__":
    main("pool-manager", build)
