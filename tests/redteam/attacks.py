"""The attacks that once succeeded, each with the tests that try it; tests/house checks those."""

from typing import Final, NamedTuple


class Attack(NamedTuple):
    """One attack, and `file::test` of each test that tries it."""

    number: int
    what: str
    tests: tuple[str, ...]


def _of(module: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{module}.py::{each}" for each in tests)


ATTACKS: Final = (
    Attack(
        1,
        "An agent's message to itself permits it the reply subject, after its end too.",
        (
            *_of(
                "redteam/test_account_walls",
                "test_a_request_to_itself_permits_an_agent_no_reply_elsewhere",
                "test_outsiders_change_nothing_that_is_stored",
            ),
            *_of(
                "redteam/test_revocation",
                "test_a_terminated_nodes_connection_ends_and_others_go_on",
            ),
        ),
    ),
    Attack(
        2,
        "A request whose reply subject is a record's has the server store its answer there.",
        _of(
            "redteam/test_account_walls",
            "test_an_answer_cannot_be_sent_to_a_subject_of_another_account",
        ),
    ),
    Attack(
        3,
        "A viewer answers an operator's query, and names in the answer reach files and arguments.",
        (
            *_of(
                "redteam/test_account_walls",
                "test_no_user_hears_or_answers_for_another",
            ),
            *_of(
                "redteam/test_names",
                "test_a_hostile_name_is_refused_when_it_is_decoded",
                "test_no_answer_names_a_file_outside_the_data_directory",
                "test_no_user_is_an_option_of_ssh",
            ),
        ),
    ),
    Attack(
        4,
        "A header removes what others have stored, and a guessed message ID suppresses a message.",
        (
            *_of(
                "redteam/test_headers",
                "test_no_header_touches_what_others_have_stored",
            ),
            *_of(
                "redteam/test_account_walls",
                "test_a_guessed_message_id_suppresses_nothing",
            ),
        ),
    ),
    Attack(
        5,
        "One agent's messages evict the history of all.",
        (
            *_of(
                "redteam/test_floods",
                "test_an_agent_that_fills_the_history_removes_only_its_own",
            ),
            *_of(
                "redteam/test_account_walls",
                "test_an_agent_sends_no_large_messages",
            ),
            *_of(
                "redteam/test_revocation",
                "test_a_flooding_node_is_disconnected_until_an_operator_readmits_it",
            ),
        ),
    ),
    Attack(
        6,
        "Notices that are withdrawn again launch machines beyond budget and breaker.",
        _of(
            "redteam/test_facts_as_levers",
            "test_alternating_facts_launch_within_the_limits",
            "test_every_fact_that_changes_a_node_has_a_limit",
        ),
    ),
    Attack(
        7,
        "One service's credentials truncate a stream, change another's durable and take its lease.",
        (
            *_of(
                "redteam/test_services_apart",
                "test_a_service_may_make_the_calls_that_it_needs_and_no_others",
                "test_a_service_stores_into_its_own_streams_alone",
                "test_a_service_takes_nothing_out_of_anothers_work_queue",
            ),
            *_of(
                "redteam/test_account_walls",
                "test_a_services_credentials_reach_its_own_durables_and_keys_alone",
            ),
        ),
    ),
    Attack(
        8,
        "A message names a Python module to import, or a file of the host to read.",
        _of(
            "redteam/test_received_settings",
            "test_request_with_a_module_or_a_file_is_refused",
            "test_record_with_a_module_imports_nothing",
            "test_launch_names_no_file_of_the_host",
        ),
    ),
    Attack(
        9,
        "A server without TLS receives the credentials of a client that is to use TLS.",
        (
            *_of(
                "redteam/test_encryption",
                "test_credentials_are_not_sent_to_a_server_without_tls",
                "test_only_the_authority_that_is_named_is_believed",
            ),
            *_of(
                "cli/test_nats_config",
                "test_the_files_make_a_server_with_tls",
            ),
        ),
    ),
    Attack(
        10,
        "Another user of the host controls a served fleet, or a requester claims another's name.",
        (
            *_of(
                "cli/test_served_bus",
                "test_another_local_user_is_refused",
                "test_keys_are_their_owners_alone_and_kept",
            ),
            *_of(
                "cli/test_serve",
                "test_a_served_fleet_answers_restarts_services_and_stops",
            ),
            *_of(
                "redteam/test_account_walls",
                "test_the_name_of_a_requester_is_the_servers",
            ),
        ),
    ),
    Attack(
        11,
        "A fault's text controls the terminal, and its body names another node than its subject.",
        (
            *_of(
                "redteam/test_terminal",
                "test_an_output_shows_hostile_text_and_obeys_none_of_it",
                "test_log_lines_are_escaped",
            ),
            *_of(
                "redteam/test_names",
                "test_a_message_that_disagrees_with_its_subject_is_refused",
            ),
        ),
    ),
    Attack(
        12,
        "Secrets of a webhook or a metrics source are in streams, records and logs.",
        (
            *_of(
                "redteam/test_secret_texts",
                "test_webhook_failure_shows_neither_its_url_nor_the_answer",
                "test_metrics_source_keeps_its_query_and_shows_no_url",
            ),
            *_of(
                "whole_fleet/test_canary_secrets",
                "test_planted_secrets_are_found_nowhere",
            ),
        ),
    ),
    Attack(
        13,
        "Conditions, aliases or answers without bounds end a program; agents outlive a fleet.",
        (
            *_of(
                "redteam/test_input_limits",
                "test_policy_that_could_delay_faults_is_refused",
                "test_yaml_bomb_is_refused",
            ),
            *_of(
                "redteam/test_secret_texts",
                "test_long_answer_is_read_to_the_limit_only",
            ),
            *_of(
                "redteam/test_answers",
                "test_a_malformed_answer_is_one_sentence",
            ),
            *_of(
                "cli/test_serve",
                "test_the_agents_of_a_killed_serve_end_too",
            ),
        ),
    ),
    Attack(
        14,
        "A request with a length and chunks carries a second one past a proxy.",
        _of(
            "redteam/test_request_smuggling",
            "test_a_body_with_two_ends_is_refused",
        ),
    ),
    Attack(
        15,
        "Unfinished requests without a token have the gateway refuse all callers, and its probes.",
        (
            *_of(
                "redteam/test_gateway_flood",
                "test_callers_are_answered_under_a_flood",
                "test_the_oldest_connection_of_a_stranger_ends",
                "test_known_callers_have_slots_of_their_own",
            ),
            *_of(
                "redteam/test_slow_clients",
                "test_a_connection_without_a_request_ends",
                "test_a_handshake_that_never_comes_ends",
            ),
        ),
    ),
    Attack(
        16,
        "A region, an instance type or a name is a command that runs as root on each new machine.",
        _of(
            "redteam/test_shell_values",
            "test_no_value_of_a_template_is_a_command",
            "test_no_value_of_the_packaged_template_is_a_command",
            "test_the_scripts_of_machines_quote_what_they_are_given",
            "test_settings_and_requests_refuse_such_values",
            "test_the_fleets_own_settings_refuse_such_values",
            "test_what_a_provider_answers_counts_as_not_reported",
        ),
    ),
    Attack(
        17,
        "An operator's credentials on the bus do what an operator's token may not.",
        (
            *_of(
                "redteam/test_roles",
                "test_the_bus_and_the_http_api_let_a_role_do_the_same",
                "test_each_route_needs_the_role_that_its_operation_declares",
            ),
            *_of(
                "bus/test_permissions",
                "test_everybody_may_say_what_is_theirs_and_nothing_else",
            ),
        ),
    ),
    Attack(
        18,
        "An agent registers with other machines' GPUs or rack: they are condemned or replaced.",
        (
            *_of(
                "redteam/test_claimed_identity",
                "test_a_forged_registration_condemns_no_other_machine",
                "test_a_new_machine_with_a_live_nodes_gpus_is_not_admitted",
                "test_only_what_was_shown_is_accepted",
            ),
            *_of(
                "pool_manager/test_fixed_identity",
                "test_another_identity_changes_nothing_and_is_a_condition",
                "test_a_repair_that_navarch_ordered_accepts_what_it_ordered",
            ),
            *_of(
                "redteam/test_agents_fields",
                "test_every_field_of_an_agent_has_a_class",
            ),
        ),
    ),
    Attack(
        19,
        "One agent's connections take the files with which nats-server stores.",
        (
            *_of(
                "redteam/test_open_files",
                "test_one_agents_connections_leave_the_store_and_services_theirs",
                "test_connections_without_credentials_leave_the_store_its_files",
            ),
            *_of(
                "cli/test_store_restart",
                "test_a_server_that_stores_nothing_is_stopped_once",
            ),
        ),
    ),
    Attack(
        20,
        "A termination, a stop's end, a join token or an identity is ordered without the role.",
        (
            *_of(
                "redteam/test_new_orders",
                "test_an_outsider_orders_nothing",
                "test_an_operator_orders_in_no_other_name",
                "test_a_service_orders_no_termination_of_its_own",
                "test_a_host_invents_nothing_about_another",
            ),
            *_of(
                "redteam/test_authority",
                "test_every_permitted_subject_of_a_role_has_its_check",
            ),
            *_of("provisioner/test_join_endpoints", "test_only_operators_make_tokens"),
        ),
    ),
    Attack(
        21,
        "A join token or a callback of a drain is used again, late, or for another node.",
        (
            *_of(
                "provisioner/test_join_endpoints",
                "test_a_stolen_token_joins_no_second_machine",
                "test_a_revoked_token_joins_nothing",
                "test_a_machine_of_another_node_is_refused",
            ),
            *_of(
                "notifier/test_drain_callbacks",
                "test_a_forged_or_stale_callback_changes_nothing",
            ),
        ),
    ),
    Attack(
        22,
        "A sample of 33 kB unpacks to a million GPUs, or packed again and again ends its reader.",
        _of(
            "redteam/test_packed_messages",
            "test_a_packed_sample_costs_the_metrics_service_nothing",
            "test_nothing_that_an_agent_writes_is_unpacked",
            "test_the_records_that_are_unpacked_are_written_by_services_alone",
        ),
    ),
    Attack(
        23,
        "A backup that another has written calls the server, or has a file of the host be read.",
        _of(
            "bus/test_foreign_backups",
            "test_a_forged_backup_is_refused_and_nothing_is_changed",
            "test_a_backup_calls_nothing_of_the_server",
        ),
    ),
    Attack(
        24,
        "A token opens event streams at once beyond its share, and long facts fill the gateway.",
        _of(
            "gateway/test_full_streams",
            "test_streams_that_are_opened_at_once_are_limited_too",
            "test_long_facts_of_an_agent_do_not_fill_the_gateway",
            "test_callers_that_read_nothing_hold_a_batch_each",
        ),
    ),
    Attack(
        25,
        "Another program's page of this machine has the browser order of a gateway without tokens.",
        _of(
            "gateway/test_hostile_callers",
            "test_no_page_of_another_asks_an_open_gateway",
        ),
    ),
    Attack(
        26,
        "A token of few pools confirms a plan of others; a logout token is taken for its caller's.",
        _of(
            "gateway/test_hostile_callers",
            "test_a_token_of_few_pools_confirms_no_plan_of_another",
            "test_a_changed_token_confirms_nothing",
            "test_a_token_that_its_provider_made_for_something_else_is_refused",
        ),
    ),
    Attack(
        27,
        "A reset of another machine's GPU resets every GPU of this one.",
        _of(
            "agent/test_reset_and_reboot",
            "test_a_reset_of_another_machines_gpu_resets_none",
            "test_a_key_is_served_once",
            "test_another_boot_is_not_rebooted",
        ),
    ),
    Attack(
        28,
        "The script that installs an agent runs a package as root that came over plain HTTP.",
        _of(
            "redteam/test_install_script",
            "test_a_package_that_another_may_have_made_is_not_installed",
        ),
    ),
    Attack(
        29,
        "A caller's body that is no text is a traceback in the gateway's log.",
        _of(
            "gateway/test_hostile_callers",
            "test_a_body_of_any_form_is_refused_in_a_moment",
        ),
    ),
    Attack(
        30,
        "A forged, altered, late or repeated webhook acknowledges or annotates an alert.",
        (
            *_of(
                "redteam/test_inbound_answers",
                "test_a_gateway_without_secrets_has_no_such_routes",
                "test_only_what_the_vendors_signed_just_now_is_carried_out",
            ),
            *_of(
                "gateway/test_inbound",
                "test_what_is_not_the_vendors_is_refused",
                "test_a_repetition_does_nothing",
                "test_a_name_there_cannot_be_taken_for_another",
            ),
            *_of(
                "gateway/test_inbound_signatures",
                "test_no_altered_body_or_other_secret_passes",
            ),
        ),
    ),
    Attack(
        31,
        "A drill is begun without the role or on another's node, or a real fault passes as one.",
        (
            *_of(
                "redteam/test_new_orders",
                "test_an_outsider_orders_nothing",
                "test_a_host_invents_nothing_about_another",
            ),
            *_of(
                "health_monitor/test_drills",
                "test_a_fault_that_an_agent_calls_a_drill_counts_nowhere",
                "test_a_drill_never_takes_the_place_of_a_real_fault",
            ),
            *_of(
                "pool_manager/test_drills",
                "test_a_drill_on_such_a_node_is_refused_with_its_remedy",
                "test_no_hardware_is_listed_for_a_drill",
            ),
        ),
    ),
)
