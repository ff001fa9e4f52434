"""A launch takes with it how a pool's new nodes are set up over SSH. Pure."""

from schemas.saga_params import SetupSpec
from schemas.settings import PoolSpec


def setup_of(spec: PoolSpec) -> SetupSpec | None:
    """The pool's commands and the way in; None where it has none."""
    if not spec.setup_commands:
        return None
    return SetupSpec(
        commands=spec.setup_commands,
        user=spec.ssh_user,
        private_key_path=spec.ssh_private_key_path,
        port=spec.setup.port,
        sudo=spec.setup.sudo,
        address_seconds=float(spec.setup.ip_wait_timeout),
        login_seconds=float(spec.setup.ssh_timeout),
        connect_seconds=float(spec.setup.ssh_connect_timeout),
        command_seconds=float(spec.setup.command_timeout),
    )
