"""One file per saga: the drawing, what unwinding leaves behind, and the table."""

from typing import Final

from schemas.enums import SagaKind
from services.saga.definition import Definition
from services.saga.definitions.drain_saga import CORDON_NODE, DRAIN_NODE, UNCORDON_NODE
from services.saga.definitions.gpu_cordon_saga import CORDON_NODE_GPUS
from services.saga.definitions.promote_saga import PROMOTE_SPARE
from services.saga.definitions.quarantine_saga import QUARANTINE_NODE
from services.saga.definitions.reboot_saga import REBOOT_NODE
from services.saga.definitions.recheck_saga import RECHECK_NODE
from services.saga.definitions.replace_saga import REPLACE
from services.saga.definitions.reset_gpu_saga import RESET_GPU
from services.saga.definitions.scale_down_saga import SCALE_DOWN
from services.saga.definitions.scale_up_saga import SCALE_UP

DEFINITIONS: Final[dict[SagaKind, Definition]] = {
    each.kind: each
    for each in (
        REPLACE,
        RESET_GPU,
        REBOOT_NODE,
        PROMOTE_SPARE,
        SCALE_UP,
        SCALE_DOWN,
        DRAIN_NODE,
        CORDON_NODE,
        UNCORDON_NODE,
        QUARANTINE_NODE,
        RECHECK_NODE,
        CORDON_NODE_GPUS,
    )
}
"""Every saga there is; the generic checks run over all of them."""
ON_REQUEST: Final[dict[str, Definition]] = {
    str(kind): each for kind, each in DEFINITIONS.items() if each.on_request
} | {"terminate": SCALE_DOWN}
"""By the verb of the request."""
