"""Launches and removes instances at AWS EC2, of one account in one region.

RunInstances takes a client token and drops a repeated request by itself (`aws_launch_requests`). A
launch's own token is derived from the intention, the zone and the market, because EC2 refuses the
same token with other parameters.
Fleet, pool and node are tags. Instances terminate, not stop, when they shut down, so that a machine
that powers itself off costs nothing more.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from schemas.duration import Duration
from schemas.launch_offers import Market, OpenMarket
from schemas.lease_records import BatchedLaunch
from schemas.offering_records import OfferingPrice
from schemas.settings import Setting
from services.provisioner.instances.instance_tags import FLEET_TAG, tags_of, with_tags
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    HostReport,
    Instance,
    InstanceStatus,
    ProvisionRequest,
    QueuedNotice,
)
from services.provisioner.provider_client.provider_errors import none_if
from services.provisioner.providers import aws_launch
from services.provisioner.providers.aws_clients import AwsClients, described
from services.provisioner.providers.aws_errors import ABSENT
from services.provisioner.providers.aws_launch import DiskOptions, EfaCards
from services.provisioner.providers.aws_launch_requests import (
    LaunchParameters,
    LaunchRequests,
    shared_tags,
    tags_of_instance,
)
from services.provisioner.providers.aws_notices import AwsNotices
from services.provisioner.providers.aws_prices import AwsPrices
from services.provisioner.providers.aws_reports import AwsHostReports
from services.provisioner.providers.aws_terminations import Terminations
from services.provisioner.providers.provider_ids import aws_instance_id
from services.provisioner.providers.request_checks import (
    check_region,
    invalid,
    market_of,
    options_of,
    ssh_keys,
)

CLIENT_TOKEN_CHARS: Final = 64
UBUNTU_ROOT_DEVICE: Final = "/dev/sda1"
LOOKED_UP: Final = "resolve:"
"""Of an image that EC2 itself looks up at a launch."""
LIST_LAG_SECONDS: Final = 5.0

STATUSES: Final[dict[str, InstanceStatus]] = {
    "pending": "pending",
    "running": "running",
    "shutting-down": "stopping",
    "stopping": "stopped",
    "stopped": "stopped",
}
"""EC2's state -> ours; `terminated` costs nothing any more."""


class AwsProvider:
    """Launches and removes instances of one account in one region."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `providers: {aws: {type: aws, region: us-east-1, image: ami-…}}`."""

        region: str
        """The region: `us-east-1`."""
        image: str = ""
        """AMI with the driver and the agent. Empty: AWS's Deep Learning Base AMI, which lacks the
        agent: see `user_data`."""
        profile: str = ""
        """In the shared AWS configuration; empty: the SDK searches for credentials."""
        market: OpenMarket = "on-demand"
        """The market of pools that name none; with a `capacity_reservation` that is `reserved`."""
        max_price: str = ""
        """Spot only, in dollars per hour; empty: up to the on-demand price."""
        subnets: dict[str, str] = {}  # noqa: RUF012 - msgspec makes each its own
        """Zone -> subnet; empty: the zone's default subnet."""
        security_groups: tuple[str, ...] = ()
        """Ids of the nodes' security groups; empty: the network's default group."""
        ssh_key: str = ""
        """Name of the key pair, for pools that name none under `ssh_keys`."""
        instance_profile: str = ""
        """Name of the profile whose role the node itself has; empty: none."""
        placement_group: str = ""
        """Name of the placement group, for pools that name none."""
        efa: bool = False
        """Attach every EFA interface that the instance type has. Then nodes have no public address,
        and a security group must allow all traffic within itself."""
        capacity_reservation: str = ""
        """`cr-…`, or the ARN of a resource group of reservations: the market `reserved`."""
        capacity_block: bool = False
        """The reservation is a capacity block."""
        notice_queue: str = ""
        """URL of an SQS queue to which EventBridge sends events of EC2 and AWS Health; empty: none.
        """
        tags: dict[str, str] = {}  # noqa: RUF012
        """More tags of instances and volumes, for the account's own accounting."""
        disk: DiskOptions = DiskOptions()
        root_gb: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 0
        """The same as `disk.gb`."""
        root_device: str = ""
        """Empty: the image's, which EC2 is asked for once where `root_gb` is set."""
        endpoint_url: str = ""
        """Empty: AWS's own."""
        timeout: Duration = Duration(30)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what EC2 would refuse at each launch."""
            if self.capacity_block and not self.capacity_reservation:
                raise ValueError("capacity_block needs `capacity_reservation: cr-…`")
            if self.capacity_reservation and self.market == "spot":
                raise ValueError("a capacity_reservation has no spot instances; remove one of both")
            if self.efa and not self.security_groups:
                raise ValueError("efa needs `security_groups`: one that allows its own traffic")

        @property
        def root_disk(self) -> DiskOptions:
            """Return what the root volume is to be."""
            return msgspec.structs.replace(self.disk, gb=self.disk.gb or self.root_gb)

    per_pool: ClassVar = frozenset(
        {"image", "subnets", "security_groups", "ssh_key", "instance_profile", "placement_group"}
        | {"efa", "disk", "root_gb", "root_device", "tags"}
    )
    """Options that a pool may set for its own nodes."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._root_devices: dict[str, str] = {"": UBUNTU_ROOT_DEVICE}
        """Image -> its root device; empty: of the default image."""
        self._efa_cards: dict[str, EfaCards] = {}
        """Instance type -> its network cards, asked for once."""
        self._clients = AwsClients(
            options.region,
            profile=options.profile,
            endpoint_url=options.endpoint_url,
            timeout_seconds=options.timeout,
            rate_limiter=environment.rate_limiter,
        )
        self._launches = LaunchRequests(self._clients, environment.launch_batches(environment.name))
        self._terminations = Terminations(self._clients)
        self._reports = AwsHostReports(self._clients)
        self._notices = AwsNotices(self._clients, options.notice_queue)
        self._prices = AwsPrices(self._clients)

    @property
    def capabilities(self) -> Capabilities:
        """EC2 drops a repeated launch by itself."""
        return Capabilities(
            idempotency_token=True,
            reboot=True,
            prices=True,
            list_lag_seconds=LIST_LAG_SECONDS,
            region=self.options.region,
            sees_region_only=True,
            queued_notices=bool(self.options.notice_queue),
            market="reserved" if self.options.capacity_reservation else self.options.market,
            spot=True,
            reserved=bool(self.options.capacity_reservation),
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch an instance, or return the one of this token."""
        options = options_of(self, self.options, request)
        given = self._launch(request)
        token = _client_token(request, options, self._market(request))
        disk, device = options.root_disk, options.root_device
        if disk.is_set and not device:
            device = await self._image_root_device(options.image)
        given |= aws_launch.machine(options.instance_profile, disk, device)
        if options.efa:
            cards = await self._cards(request.instance_type)
            given = aws_launch.with_efa(given, cards)
        tags = shared_tags(options.tags | tags_of(request))
        launch = BatchedLaunch(launch=token, node=request.name, token=request.token)
        made = await self._launches.launch(launch, LaunchParameters(given, tags))
        return _instance(made, self.options.region)

    def joins_fabric(self, request: ProvisionRequest) -> bool:
        """Return whether the node gets EFA interfaces."""
        return options_of(self, self.options, request).efa

    canonical_id = staticmethod(aws_instance_id)

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; one that EC2 does not know is gone."""
        await self._terminations.terminate(provider_id)

    async def reboot(self, instance: Instance) -> None:
        """Reboot it; INVALID if it does not exist."""
        asked = self._call("describe_instances", InstanceIds=[instance.provider_id])
        found = await none_if(asked, *ABSENT) or {"Reservations": []}
        states = [each["State"]["Name"] for each in described(found)]
        if states not in (["running"], ["pending"]):
            state = states[0] if states else "not listed"
            raise invalid(f"{instance.provider_id} cannot be rebooted: it is {state}")
        await self._call("reboot_instances", InstanceIds=[instance.provider_id])

    async def list(self) -> list[Instance]:
        """Every instance with a fleet's tag that may still cost money."""
        wanted = [
            {"Name": "tag-key", "Values": [FLEET_TAG]},
            {"Name": "instance-state-name", "Values": list(STATUSES)},
        ]
        found: list[Instance] = []
        async for page in self._clients.pages("ec2", "describe_instances", Filters=wanted):
            instances = described(page)
            found += [_instance(each, self.options.region) for each in instances]
            self._launches.name(instances)
        return found

    async def report_hosts(self) -> HostReport:
        """Scheduled events, failing status checks, and the ends of capacity blocks."""
        return await self._reports.read()

    async def queued_notices(self) -> Sequence[QueuedNotice]:
        """Return some messages of the queue."""
        return await self._notices.read()

    async def delete_notices(self, receipts: Sequence[str]) -> None:
        """Remove messages from the queue."""
        await self._notices.delete(receipts)

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """Return the on-demand price of each type, and its current spot prices by zone."""
        return await self._prices.read(instance_types)

    async def close(self) -> None:
        """Close the connections."""
        await self._launches.close()
        await self._terminations.close()
        await self._clients.close()

    def _launch(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return RunInstances' parameters; INVALID with the remedy if EC2 cannot do it."""
        options = options_of(self, self.options, request)
        check_region(request, options.region, self.name, "aws")
        market = self._market(request)
        if options.subnets and request.zone and request.zone not in options.subnets:
            raise invalid(
                f"provider {self.name} has no subnet in zone {request.zone}; add it to `subnets`"
            )
        given: dict[str, Any] = {
            "ImageId": options.image or aws_launch.default_image(request.instance_type),
            "InstanceType": request.instance_type,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        }
        keys = ssh_keys(request, options.ssh_key)
        if len(keys) > 1:
            raise invalid(f"EC2 takes one key pair, pool {request.pool} names {len(keys)}")
        given |= {"KeyName": keys[0]} if keys else {}
        given |= {"UserData": request.user_data} if request.user_data else {}
        where = aws_launch.place(
            request, options.subnets, options.security_groups, options.placement_group
        )
        if market == "reserved":
            paid = aws_launch.reservation(
                options.capacity_reservation, block=options.capacity_block
            )
        else:
            paid = aws_launch.market(market, request.max_price, options.max_price)
        return given | where | paid

    def _market(self, request: ProvisionRequest) -> Market:
        return market_of(request, self.capabilities, self.name, "capacity_reservation")

    async def _image_root_device(self, image: str) -> str:
        """The image's root device: a disk under any other name is a second one."""
        if image not in self._root_devices:
            asked = not image.startswith(LOOKED_UP)
            found = asked and (await self._call("describe_images", ImageIds=[image]))["Images"]
            if not found or not found[0].get("RootDeviceName"):
                raise invalid(f"EC2 names no root device of {image}; set `root_device`")
            self._root_devices[image] = str(found[0]["RootDeviceName"])
        return self._root_devices[image]

    async def _cards(self, instance_type: str) -> EfaCards:
        """Its network cards; INVALID if it has no EFA."""
        if instance_type not in self._efa_cards:
            asked = self._call("describe_instance_types", InstanceTypes=[instance_type])
            [found] = (await asked)["InstanceTypes"]
            cards = aws_launch.efa_cards(found.get("NetworkInfo", {}))
            if not cards.interfaces:
                raise invalid(
                    f"{instance_type} has no EFA; give its pools a provider without `efa`"
                )
            self._efa_cards[instance_type] = cards
        return self._efa_cards[instance_type]

    async def _call(self, what: str, **given: Any) -> Any:
        return await self._clients.call("ec2", what, **given)


# --- parts ---------------------------------------------------------------------------------------


def _client_token(request: ProvisionRequest, options: AwsProvider.Options, market: Market) -> str:
    """EC2 refuses other parameters under the same token, so they are part of it."""
    about = f"{request.token}/{options.region}/{request.zone}/{request.instance_type}"
    return hashlib.sha256(f"{about}/{market}".encode()).hexdigest()[:CLIENT_TOKEN_CHARS]


def _instance(made: Any, region: str) -> Instance:
    instance = Instance(
        name=made["InstanceId"],
        provider_id=made["InstanceId"],
        # An instance with an unknown state exists, and must not be lost.
        status=STATUSES.get(made["State"]["Name"], "running"),
        instance_type=made["InstanceType"],
        region=region,
        zone=made.get("Placement", {}).get("AvailabilityZone", ""),
        address=made.get("PublicIpAddress") or made.get("PrivateIpAddress", ""),
        created_at=made.get("LaunchTime"),
    )
    return with_tags(instance, tags_of_instance(made))
