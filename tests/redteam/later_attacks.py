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
    Attack(
        35,
        "Another machine on the way to a mirror gives every new node a package that runs as root.",
        (
            *tests_of(
                "redteam/test_agents_package",
                "test_a_package_that_anyone_may_replace_is_refused",
                "test_no_launch_renders_such_a_package",
                "test_a_wheel_with_another_checksum_is_not_installed",
            ),
            *tests_of(
                "redteam/test_install_script",
                "test_a_package_that_another_may_have_made_is_not_installed",
            ),
        ),
    ),
    Attack(
        36,
        "A container of another, by its name or the beginning of its ID, is removed as a node.",
        tests_of("provisioner/test_docker", "test_a_container_of_another_is_not_removed"),
    ),
    Attack(
        37,
        "A cloud's answer sends the provisioner, with its key, to an address of its own network.",
        tests_of(
            "redteam/test_redirects",
            "test_no_service_follows_redirects",
            "test_a_cloud_that_redirects_is_not_followed",
        ),
    ),
    Attack(
        38,
        "A link where evidence is to be saved has an operator overwrite a file of their own.",
        tests_of(
            "redteam/test_evidence_files",
            "test_a_link_in_place_of_the_folder_is_refused",
            "test_a_folder_of_another_user_is_refused",
            "test_links_in_place_of_files_are_replaced",
            "test_a_link_that_is_put_there_while_files_are_written_is_not_followed",
        ),
    ),
    Attack(
        39,
        "A request that waited for a day is carried out then, on a node that is well again.",
        tests_of(
            "pool_manager/test_request_ordering",
            "test_a_request_that_waited_for_hours_ends_no_node",
            "test_a_request_that_was_begun_is_answered_again_hours_later",
        ),
    ),
    Attack(
        40,
        "Complete requests of strangers delay a probe that asks on a listener of its own.",
        tests_of("redteam/test_gateway_flood", "test_callers_are_answered_under_a_flood"),
    ),
    Attack(
        41,
        "A sink's, issuer's or source's name leads elsewhere once it is connected to.",
        tests_of(
            "redteam/test_rebinding",
            "test_a_name_that_changes_leads_to_nothing_of_this_machine",
            "test_a_strangers_name_leads_to_no_address_of_this_machine",
            "test_clients_are_made_in_one_place",
        ),
    ),
    Attack(
        42,
        "A viewer's token holds every slot of callers with answers that it does not read.",
        (
            *tests_of(
                "redteam/test_slow_clients",
                "test_a_caller_that_reads_nothing_keeps_no_other_caller_out",
            ),
            *tests_of("redteam/test_gateway_flood", "test_one_caller_has_a_share_of_them"),
        ),
    ),
    Attack(
        43,
        "A token of one pool learns of the stops of other pools by a stop or resume of its own.",
        (
            *tests_of(
                "gateway/test_orders",
                "test_an_answer_has_no_stop_of_a_pool_that_its_caller_does_not_see",
            ),
            *tests_of("pool_manager/test_stops_on_the_bus", "test_what_makes_no_sense_is_refused"),
        ),
    ),
    Attack(
        44,
        "A machine installs a wheel that serve did not hand out, or serve hands it to a stranger.",
        (
            *tests_of(
                "cli/test_agent_wheels",
                "test_what_was_changed_since_is_not_installed",
                "test_requirements_of_a_stranger_are_not_used",
                "test_a_machine_checks_hashes_before_it_installs",
                "test_only_machines_of_the_pool_are_upgraded",
            ),
            *tests_of(
                "cli/test_agent_download",
                "test_who_has_no_token_that_holds_gets_nothing",
                "test_a_damaged_file_is_handed_to_no_one",
                "test_the_printed_line_runs_what_the_fleet_says_and_nothing_else",
                "test_a_machine_of_another_node_is_left_as_it_is",
            ),
        ),
    ),
    Attack(
        45,
        "A node that an operator had forgotten comes back by a sweep, its agent or its token.",
        tests_of(
            "provisioner/test_forgotten_nodes",
            "test_a_forgotten_node_does_not_come_back_by_itself",
            "test_a_launched_node_is_not_forgotten",
            "test_a_viewer_forgets_nothing",
        ),
    ),
)
