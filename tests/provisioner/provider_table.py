"""The providers that every rule about providers is tried on: one row each.

A provider joins with a row here and a fixture `make_<kind>` in conftest.py. The fixture returns a
function that makes the provider again, on an empty account; what that is given are
changes of the provider's options.
"""

from typing import Any

import msgspec

from schemas.duration import Duration
from services.provisioner.providers.ssh_inventory import InventoryMachine


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, and how it is asked."""

    kind: str
    """The fixture is `make_<kind>`, with _ for -."""
    variant: str = ""
    """What distinguishes it from others of its kind."""
    options: dict[str, Any] = {}
    """That it has beside those of its fixture."""
    asks: dict[str, Any] = {}
    """What its requests must say; they say no GPUs, so that no compiler is needed."""
    unreachable: dict[str, Any] = {}
    """Options of one without `url`, with which nothing answers it."""
    url: str = ""
    """The option that names its API over HTTP: with it calls are lost between it and its cloud."""
    impatient: dict[str, Any] = {}
    """Options with which it soon gives up on an answer that does not come."""
    refused: tuple[tuple[dict[str, Any], str], ...] = ()
    """Requests that it must refuse, and as what."""

    @property
    def label(self) -> str:
        """Return the name that the row's tests have."""
        return f"{self.kind} {self.variant}".strip()

    @property
    def fixture(self) -> str:
        """The name of the fixture that makes it."""
        return f"make_{self.kind.replace('-', '_')}"


SOON = {"timeout": Duration(0.8)}
PLACE = {"region": "us-east-1", "zone": "us-east-1a"}

ROWS = (
    Row(kind="fake"),
    Row(kind="fake-file"),
    Row(kind="local"),
    Row(
        kind="docker",
        url="socket",
        impatient=SOON,
        refused=(({"ssh_keys": ("a-name",)}, "INVALID"), ({"name": "no/name"}, "INVALID")),
    ),
    Row(
        kind="ssh",
        unreachable={
            "machines": tuple(
                InventoryMachine(
                    name=f"gpu-{each:03d}", host="127.0.0.1", port=each + 1, type="h100"
                )
                for each in range(8)
            )
        },
        refused=(
            ({"instance_type": "none-such"}, "UNSUPPORTED"),
            ({"user_data": "#!/bin/sh"}, "INVALID"),
        ),
    ),
    Row(
        kind="aws",
        asks=PLACE,
        url="endpoint_url",
        impatient=SOON,
        refused=(({"region": "eu-1"}, "INVALID"),),
    ),
    Row(
        kind="azure",
        asks={"region": "eastus", "zone": "1", "instance_type": "Standard_ND96isr_H100_v5"},
        url="base_url",
        impatient=SOON,
        refused=(({"region": "westus"}, "INVALID"), ({"zone": "eastus-1"}, "INVALID")),
    ),
    Row(
        kind="coreweave",
        asks={"instance_type": "gd-8xh100ib-i128", "zone": "US-EAST-04A"},
        url="server",
        impatient=SOON,
        refused=(({"zone": "US-WEST-01A"}, "INVALID"), ({"user_data": "#!/bin/sh"}, "INVALID")),
    ),
    Row(
        kind="gcp",
        asks=PLACE,
        url="base_url",
        impatient=SOON | {"wait_timeout": Duration(0.8)},
        refused=(({"zone": ""}, "INVALID"),),
    ),
    Row(
        kind="lambda",
        asks={"region": "us-east-1"},
        url="base_url",
        impatient=SOON,
        refused=(({"region": ""}, "INVALID"), ({"instance_type": "none-such"}, "INVALID")),
    ),
    # Launches that name no market take what is reserved.
    Row(
        kind="aws",
        variant="reserved",
        options={"capacity_reservation": "cr-0123456789abcdef0"},
        asks=PLACE,
        url="endpoint_url",
        impatient=SOON,
    ),
    Row(
        kind="gcp",
        variant="reserved",
        options={"reservation": "h100"},
        asks=PLACE,
        url="base_url",
        impatient=SOON | {"wait_timeout": Duration(0.8)},
    ),
    Row(
        kind="azure",
        variant="group",
        options={"capacity_reservation_group": "h100", "scale_set": "ib"},
        asks={"region": "eastus", "zone": "1", "instance_type": "Standard_ND96isr_H100_v5"},
        url="base_url",
        impatient=SOON,
    ),
)
