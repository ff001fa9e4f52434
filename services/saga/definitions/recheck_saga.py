"""Recheck: a quarantined node that only a wave accuses goes back into service if a test passes.

```
check ─► uncordon
```

What unwinding leaves behind: the node quarantined. The check disturbs no work, which goes on during
a quarantine. The uncordon has the node's health evaluated again: what it has reported since the
recheck began counts.
"""

from dataclasses import replace
from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import CHECK, UNCORDON

CHECK_SECONDS: Final = 360.0
"""An agent runs `dcgm` at level 1 for 300 s at most."""
CHECK_AT_ONCE: Final = replace(CHECK, deadline_seconds=lambda _: CHECK_SECONDS)

RECHECK_NODE: Final = Definition(
    kind="recheck",
    steps=lambda _: (CHECK_AT_ONCE, UNCORDON),
    leaves="the node quarantined",
    cordons=True,
)
