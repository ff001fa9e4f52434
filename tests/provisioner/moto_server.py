"""Starts moto's EC2 with four things that it lacks and EC2 documents, for a test to rely on.

A repeated client token launches nothing new (and other parameters under it are refused). A request
launches as many as there is capacity for, up to its maximum; the tag CAPACITY says for how many,
and types that begin with `x` have none. One for more than the tag QUOTA allows is refused. Statuses
of instances can be filtered by scheduled events and failing checks, which the tags EVENT and
IMPAIRED of an instance give it, and instances by their lifecycle and client token.
AWS's price list is `aws_price_list`. Everything else is moto as it is. So idempotency by token is
proven against these lines, and not against AWS.

Requests may also be limited as EC2 documents it: a bucket of tokens for each action, see
`throttling_app`.
"""

import sys
import threading
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2 import utils
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.responses.instances import InstanceResponse
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer

from tests.provisioner.aws_price_list import PriceListApp
from tests.provisioner.throttling_app import ThrottlingApp

NOT_BEFORE = datetime(2030, 1, 1, tzinfo=UTC)
plain = InstanceBackend.run_instances
one_at_a_time = threading.Lock()
"""Moto answers each request in a thread of its own."""


requested = threading.local()
"""`instances_max`: of the request that this thread answers."""
CAPACITY, QUOTA = "moto-capacity", "moto-quota"
"""Tags of a request."""
plain_response = InstanceResponse.run_instances


def respond(self: InstanceResponse) -> ActionResult:
    """Answer RunInstances; moto reads its minimum only."""
    requested.instances_max = int(self._get_param("MaxCount"))
    return plain_response(self)


def run_instances(self: InstanceBackend, image: str, count: int, *args: Any, **kwargs: Any) -> Any:
    """Launch, unless this token has launched already."""
    token = kwargs.get("client_token") or ""
    kind = str(kwargs.get("instance_type"))
    if kind.startswith("x"):
        raise EC2ClientError("InsufficientInstanceCapacity", f"no capacity for {kind}")
    if not token:  # as an auto-scaling group launches
        return plain(self, image, count, *args, **kwargs)
    count = max(count, requested.instances_max)
    tags = kwargs["tags"].get("instance", {})
    parameters = repr((image, count, args, sorted(kwargs.items(), key=str)))
    with one_at_a_time:
        launched: dict[str, tuple[Any, str]] = self.__dict__.setdefault("launched", {})
        reservation, before = launched.get(token, (None, ""))
        if reservation is not None and _exists(reservation):
            if before != parameters:
                raise EC2ClientError("IdempotentParameterMismatch", "same token, other parameters")
            return reservation
        if count > int(tags.get(QUOTA, count)):
            raise EC2ClientError("VcpuLimitExceeded", f"{count} instances are too many")
        count = min(count, int(tags.get(CAPACITY, count)))
        reservation = plain(self, image, count, *args, **kwargs)
        launched[token] = (reservation, parameters)
        return reservation


EVENT, IMPAIRED = "moto-event", "moto-impaired"
"""Tags: the code of a scheduled event; `system` or `instance`, the check that fails."""
plain_statuses = InstanceBackend.describe_instance_status


def describe_instance_status(
    self: InstanceBackend, ids: list[str], everything: bool, filters: Any
) -> list[Instance]:
    """List instances by these filters alone; any other is refused."""
    found = plain_statuses(self, ids, everything, [])
    for each in filters or ():
        name, values = each["name"], each["values"]
        part = name.removesuffix("-status.status")
        if name == "event.code":
            found = [one for one in found if _tag(one, EVENT) in values]
        elif part in ("system", "instance"):
            is_wanted = "impaired" in values
            found = [one for one in found if (_tag(one, IMPAIRED) == part) is is_wanted]
        else:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return found


def events(self: Instance) -> list[dict[str, Any]]:
    """Return the events that are scheduled for an instance."""
    code = _tag(self, EVENT)
    about = {"InstanceEventId": f"instance-event-{self.id}", "Code": code}
    return [{**about, "Description": "announced", "NotBefore": NOT_BEFORE}] if code else []


def checked(part: str, plain_check: Any) -> property:
    """Return a property with a status check of an instance."""

    def check(self: Instance) -> dict[str, Any]:
        if _tag(self, IMPAIRED) != part:
            return dict(plain_check.fget(self))
        detail = {"Name": "reachability", "Status": "failed", "ImpairedSince": NOT_BEFORE}
        return {"Status": "impaired", "Details": [detail]}

    return property(check)


def _tag(instance: Instance, name: str) -> str:
    return next((str(each["value"]) for each in instance.get_tags() if each["key"] == name), "")


def _exists(reservation: Any) -> bool:
    return all(each.state == "running" for each in reservation.instances)


InstanceBackend.run_instances = run_instances
InstanceResponse.run_instances = respond
InstanceBackend.describe_instance_status = describe_instance_status
Instance.instance_status = checked("instance", Instance.instance_status)
Instance.system_status = checked("system", Instance.system_status)
Instance.events = property(events)
utils.filter_dict_attribute_mapping["instance-lifecycle"] = "lifecycle"
utils.filter_dict_attribute_mapping["client-token"] = "client_token"
dispatcher = threaded_moto_server.DomainDispatcherApplication
threaded_moto_server.DomainDispatcherApplication = lambda create: PriceListApp(
    ThrottlingApp(dispatcher(create))
)

if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - who started it reads this
    sys.stdin.read()
    server.stop()
