"""Reboot: the node keeps its place, and its host is rebooted.

```
cordon ─► drain ─► reboot ─► return ─► check ─► uncordon
```

What unwinding leaves behind: the node cordoned, because an unhealthy node must not take work again.
The pool's remediation then takes its next rung, or a person does. A node that was well and in
service at the request is uncordoned, unless the reboot was begun.

The agent reboots its host; where it is gone, the provider does. The boot that is to end is named
when the saga begins, so that nothing is rebooted twice: `return` waits until the agent speaks of
another one. The check is the admission of the same node, and the uncordon has its health judged
again.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import CHECK, DRAIN, REBOOT, RETURN, UNCORDON, cordon

REBOOT_NODE: Final = Definition(
    kind="reboot",
    steps=lambda params: (cordon(params), DRAIN, REBOOT, RETURN, CHECK, UNCORDON),
    leaves="the node cordoned",
    leaves_restored="the node in service (or cordoned, where its reboot was begun)",
    on_request=True,
    out_of_service=True,
    disrupts=True,
    cordons=True,
)
