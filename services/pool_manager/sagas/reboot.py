"""Reboot: the node keeps its place, and its host begins anew.

```
cordon ─► drain ─► reboot ─► return ─► check ─► uncordon
```

What unwinding leaves behind: the node cordoned, because a sick node must not take work again. The
pool's remediation then takes its next rung, or a person does.

The agent reboots its host; where it is gone, the provider does. The boot that is to end is named
when the saga begins, so that nothing is rebooted twice: `return` waits until the agent speaks of
another one. The check is the admission of the same node, and the uncordon has its health judged
anew.
"""

from typing import Final

from services.pool_manager.sagas.steps import CHECK, CORDON, DRAIN, REBOOT, RETURN, UNCORDON
from services.saga.definition import Definition

REBOOT_NODE: Final = Definition(
    kind="reboot",
    steps=lambda _: (CORDON, DRAIN, REBOOT, RETURN, CHECK, UNCORDON),
    leaves="the node cordoned",
)
