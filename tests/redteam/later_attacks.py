"""The attacks that the tries before had not reached: floods of requests, archives and the like."""

from typing import Final

from tests.redteam.attack import Attack, tests_of

LATER_ATTACKS: Final = (
    Attack(
        32,
        "Complete requests without a token, 4,300 of them for the metrics, keep a probe waiting.",
        (
            *tests_of(
                "redteam/test_request_floods",
                "test_a_request_waits_for_one_of_each_other_address",
                "test_a_callers_request_waits_for_none",
                "test_metrics_are_written_once_for_all_who_ask_at_once",
                "test_the_server_has_strangers_wait_alone",
            ),
            *tests_of(
                "redteam/test_gateway_flood",
                "test_callers_are_answered_under_a_flood",
            ),
        ),
    ),
    Attack(
        33,
        "One agent's credentials take all connections that the agents of a fleet share.",
        tests_of(
            "redteam/test_connection_crowds",
            "test_a_node_that_crowds_the_others_out_is_disconnected",
            "test_a_key_of_no_instance_is_refused_too",
        ),
    ),
    Attack(
        34,
        "A stream's archive brings a consumer that commands an agent once it is restored.",
        tests_of("bus/test_foreign_archives", "test_a_forged_archive_is_refused"),
    ),
)
