"""Starts moto's EC2 with two things that it lacks and EC2 documents, for a test to rely on.

A repeated client token launches nothing new (and other parameters under it are refused), and
there is no capacity for instance types that begin with `x`. Everything else is moto as it is. So
idempotency by token is proven against these lines, and not against AWS.

Requests may also be limited as EC2 documents it: a bucket of tokens for each action, see
`throttling_app`.
"""

import sys
import threading
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer

from tests.provisioner.throttling_app import ThrottlingApp

plain = InstanceBackend.run_instances
one_at_a_time = threading.Lock()
"""Moto answers each request in a thread of its own."""


def run_instances(self: InstanceBackend, *args: Any, **kwargs: Any) -> Any:
    """Launch, unless this token has launched already."""
    token = kwargs.get("client_token") or ""
    kind = str(kwargs.get("instance_type"))
    if kind.startswith("x"):
        raise EC2ClientError("InsufficientInstanceCapacity", f"no capacity for {kind}")
    if not token:  # as an auto-scaling group launches
        return plain(self, *args, **kwargs)
    with one_at_a_time:
        launched: dict[str, tuple[Any, str]] = self.__dict__.setdefault("launched", {})
        reservation, before = launched.get(token, (None, ""))
        if reservation is not None and _exists(reservation):
            if before != kind:
                raise EC2ClientError("IdempotentParameterMismatch", "same token, other parameters")
            return reservation
        reservation = plain(self, *args, **kwargs)
        launched[token] = (reservation, kind)
        return reservation


def _exists(reservation: Any) -> bool:
    return all(each.state == "running" for each in reservation.instances)


InstanceBackend.run_instances = run_instances
dispatcher = threaded_moto_server.DomainDispatcherApplication
threaded_moto_server.DomainDispatcherApplication = lambda create: ThrottlingApp(dispatcher(create))

if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - who started it reads this
    sys.stdin.read()
    server.stop()
