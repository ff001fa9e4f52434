"""Reset GPU: the node keeps its place, and its GPUs are reset.

```
cordon ─► drain ─► reset ─► check ─► uncordon
```

What unwinding leaves behind: the node cordoned, because an unhealthy node must not take work again.
The pool's remediation then takes its next rung, or a person does. A node that was well and in
service at the request is uncordoned, unless the reset was begun.

The agent resets, and only a node that is cordoned and on whose GPUs no process runs. Once begun, a
reset cannot be called off. The check is the admission of the same node; what it reported after the
reset counts in it, what it reported before does not: the uncordon has its health evaluated again.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import CHECK, DRAIN, RESET, UNCORDON, cordon

RESET_GPU: Final = Definition(
    kind="reset-gpu",
    steps=lambda params: (cordon(params), DRAIN, RESET, CHECK, UNCORDON),
    leaves="the node cordoned",
    leaves_restored="the node in service (or cordoned, where its reset was begun)",
    on_request=True,
    out_of_service=True,
    disrupts=True,
    cordons=True,
)
