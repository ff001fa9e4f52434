"""Names, for every subject that a role may publish, what checks that the sender may do it.

Where nats-server decides by the subject alone, a row names the declaration of the permission, else
the function that looks at the sender again. tests/redteam/test_authority.py compares the rows with
the roles.
"""

from typing import Final, NamedTuple

from schemas.permissions import (
    ADMIN,
    AGENT,
    BOOTSTRAP,
    GATEWAY,
    OPERATOR,
    POD,
    POOL_ADMIN,
    REGION,
    SCHEDULER,
    SERVICES,
    SINK_READER,
    VIEWER,
)

USERS: Final = (VIEWER, OPERATOR, POOL_ADMIN, SCHEDULER, SINK_READER, GATEWAY)
READERS: Final = (VIEWER, OPERATOR, POOL_ADMIN, SINK_READER, GATEWAY)
MANAGERS: Final = (OPERATOR, POOL_ADMIN)
AGENTS: Final = (AGENT, BOOTSTRAP, POD, REGION)
EVERYONE: Final = (*SERVICES, *USERS, *AGENTS)
PLACE: Final = r"\{\{tag\(pool\)\}\}\.(\{\{tag\(node\)\}\}|\*)"
NAME: Final = r"(\{\{name\(\)\}\}|gateway)"
ROOT: Final = r"navarch\.v1"
NODE_FACT: Final = rf"{ROOT}\.node\.{PLACE}"


class Authority(NamedTuple):
    """Says what checks the senders of the subjects that a pattern matches."""

    roles: tuple[str, ...]
    subjects: str
    """A regular expression of permitted subjects."""
    check: str
    """`file::name` of the function or declaration that checks the sender."""
    tried: str
    """`file::name` of the test that attacks it."""


PERMISSIONS: Final = "tests/bus/test_permissions.py"
EVERYBODY: Final = f"{PERMISSIONS}::test_everybody_may_say_what_is_theirs_and_nothing_else"
DISAGREES: Final = (
    "tests/redteam/test_names.py::test_a_message_that_disagrees_with_its_subject_is_refused"
)
APART: Final = "tests/redteam/test_services_apart.py"
CALLS: Final = f"{APART}::test_a_service_may_make_the_calls_that_it_needs_and_no_others"
WALLS: Final = "tests/redteam/test_account_walls.py"
REGIONS: Final = "tests/redteam/test_region_servers.py"
AUTHORITY: Final = (
    Authority((ADMIN,), r">", "services/cli/bus_users.py::credentials_file", EVERYBODY),
    Authority(
        EVERYONE,
        r"(_INBOX\..*|_R_\.>)",
        "services/bus/protocol/endpoint_replies.py::may_answer",
        f"{WALLS}::test_no_user_hears_or_answers_for_another",
    ),
    Authority(
        (*SERVICES, *READERS, AGENT),
        r"\$JS\.API\.(INFO|STREAM\.(INFO|NAMES|LIST|MSG\.GET)|CONSUMER\.(INFO|NAMES|LIST)"
        r"|DIRECT\.GET)(\..*)?",
        "schemas/account_shares.py::shares",
        f"{WALLS}::test_outsiders_change_nothing_that_is_stored",
    ),
    Authority(
        SERVICES,
        r"\$JS\.(ACK|API\.CONSUMER\.(CREATE|DELETE|DURABLE\.CREATE|MSG\.NEXT))\..*",
        "schemas/permissions.py::durables_of",
        f"{APART}::test_a_service_takes_nothing_out_of_anothers_work_queue",
    ),
    Authority(
        ("pool-manager", "health-monitor", "notifier", "metrics"),
        r"\$JS\.API\.STREAM\.(CREATE|UPDATE|PURGE|LEADER\.STEPDOWN)\..*",
        "schemas/permissions.py::ALSO_PUBLISHED",
        CALLS,
    ),
    Authority(
        SERVICES,
        r"(\$KV\.(?!HEARTBEATS)\w+|\$O\.\w+)\..*",
        "schemas/topology.py::BUCKETS",
        f"{APART}::test_a_service_stores_into_its_own_streams_alone",
    ),
    Authority(
        SERVICES,
        rf"{ROOT}\.(node\.\*\.\*|pool\.\*|fleet)\.event\.[a-z-]+",
        "schemas/stored_messages.py::decode_stored",
        DISAGREES,
    ),
    Authority(
        (GATEWAY,),
        rf"{ROOT}\.fleet\.event\.http-change",
        "schemas/stored_messages.py::decode_stored",
        DISAGREES,
    ),
    Authority(
        ("pool-manager", "provisioner", "notifier"),
        rf"{ROOT}\.saga\.(>|\*\.[a-z-]+\.(undo-)?(failed|succeeded))",
        "schemas/permissions.py::steps_of",
        f"{PERMISSIONS}::test_only_the_pool_manager_may_write_any_entry_of_a_sagas_log",
    ),
    Authority(
        SERVICES,
        rf"{ROOT}\.(timer\.schedule|dead|sink)\..*",
        "schemas/permissions.py::durables_of",
        f"{APART}::test_a_service_stores_into_its_own_streams_alone",
    ),
    Authority(
        ("provisioner",),
        rf"{ROOT}\.node\.\*\.\*\.command\.>",
        "schemas/permissions.py::NODE_COMMANDS",
        EVERYBODY,
    ),
    Authority(
        ("pool-manager",),
        rf"{ROOT}\.order\.sweep-now\.pool-manager",
        "services/bus/protocol/endpoint_replies.py::requester",
        EVERYBODY,
    ),
    Authority(
        (*SERVICES, VIEWER, OPERATOR, POOL_ADMIN, GATEWAY),
        rf"{ROOT}\.query\.(>|[a-z-]+)",
        "schemas/permissions.py::SERVICE_QUERIES",
        "tests/redteam/test_roles.py::test_the_bus_and_the_http_api_let_a_role_do_the_same",
    ),
    Authority((VIEWER, *MANAGERS), r"\$SRV\.>", "schemas/account_shares.py::shares", EVERYBODY),
    Authority(
        (*MANAGERS, GATEWAY),
        rf"{ROOT}\.pool\.\*\.request\.([a-z-]+|\*)\.{NAME}",
        "services/pool_manager/requests/request_replies.py::read_stored_request",
        f"{WALLS}::test_the_name_of_a_requester_is_the_servers",
    ),
    Authority(
        (*MANAGERS, SCHEDULER, GATEWAY),
        rf"{ROOT}\.order\.[a-z-]+\.{NAME}",
        "services/bus/protocol/endpoint_replies.py::requester",
        f"{WALLS}::test_the_name_of_a_requester_is_the_servers",
    ),
    Authority(
        (*MANAGERS, GATEWAY),
        rf"{ROOT}\.(logs\..*|gateway-logs|node\.\*\.\*\.command\..*)",
        "schemas/permissions.py::NODE_COMMANDS",
        "tests/redteam/test_roles.py::test_the_bus_and_the_http_api_let_a_role_do_the_same",
    ),
    Authority(
        (AGENT, REGION),
        rf"{NODE_FACT}\.(telemetry|event\.[a-z-]+)",
        "schemas/stored_messages.py::decode_stored",
        DISAGREES,
    ),
    Authority(
        (AGENT,),
        rf"({NODE_FACT}\.command\.>|\$KV\.HEARTBEATS\.{PLACE})",
        "schemas/permissions.py::AGENT",
        f"{PERMISSIONS}::test_a_node_reads_its_own_record_and_beats",
    ),
    Authority(
        AGENTS,
        rf"{ROOT}\.enroll(-pod)?\.{PLACE}",
        "services/provisioner/bootstrap/enrollment_endpoint.py::why_refused",
        "tests/provisioner/test_join_endpoints.py::test_a_stolen_token_joins_no_second_machine",
    ),
    Authority(
        (REGION,),
        rf"{ROOT}\.region\.(heartbeat|record)\.{PLACE}",
        "schemas/region_permissions.py::region",
        f"{REGIONS}::test_the_credentials_change_nothing_of_other_pools_and_services",
    ),
)
