"""Quarantine: an unhealthy node gets no new work while its repair waits.

```
cordon
```

What unwinding leaves behind: the node cordoned, as far as is known; the pool-manager repeats the
cordon while the node is unhealthy. The work on the node goes on.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import QUARANTINE_CORDON

QUARANTINE_NODE: Final = Definition(
    kind="quarantine",
    steps=lambda _: (QUARANTINE_CORDON,),
    leaves="the node cordoned",
    cordons=True,
)
