"""Promote: a spare goes into service, because the pool is to grow.

```
promote
```

What unwinding leaves behind: the spare in reserve. Where a spare takes an unhealthy node's place,
the same step is part of `replace`, and no saga of this kind is begun.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import PROMOTE_ALONE

PROMOTE_SPARE: Final = Definition(
    kind="promote", steps=lambda _: (PROMOTE_ALONE,), leaves="the spare in reserve", backs_off=True
)
