"""The table names the figures that are printed, in order, and the aims that some of them have."""

from typing import Final, NamedTuple

from benchmarks.comparison import COMMANDS, command_figure


class Row(NamedTuple):
    """A row says how one figure is printed."""

    label: str
    name: str
    """In latest.json."""
    unit: str
    aim: str = ""
    """Of the ratio where the figure has a floor, else of the figure."""


def _waves() -> list[Row]:
    return [
        row
        for count in ("200", "600", "1000", "5000")
        for row in (
            Row(
                f"{count} nodes fail at once: last cordon", f"wave_{count}_last_cordon_seconds", "s"
            ),
            Row("  last replacement begun", f"wave_{count}_last_replacement_started_seconds", "s"),
            Row("  last replacement done", f"wave_{count}_last_done_seconds", "s"),
        )
    ]


def _listings() -> list[Row]:
    return [
        Row(f"`navarch list`, {nodes}, {way}: {label}", f"listing_{name}_{way}_{figure}", "s")
        for name, nodes in (("small", "2 nodes"), ("medium", "2,000"), ("large", "10,000"))
        for way in ("bus", "http")
        for label, figure in (
            ("first", "first_seconds"),
            ("then", "seconds"),
            ("processor time", "cpu_seconds"),
        )
    ]


def _commands() -> list[Row]:
    return [
        Row(f"`navarch {line}`: processor time", command_figure(name), "s")
        for name, line in COMMANDS.items()
    ]


def _security() -> list[Row]:
    return [
        Row(f"{what} with accounts and TLS: {label}", f"secured_{name}_{figure}", unit)
        for name, what in (
            ("fact", "Fact stored"),
            ("heartbeat", "Heartbeat"),
            ("query", "Query answered"),
        )
        for label, figure, unit in (
            ("p50", "ms_p50", "ms"),
            ("p99", "ms_p99", "ms"),
            ("100 at once", "per_second", "/s"),
            ("server's processor time", "server_us", "us"),
            ("server's, open", "server_us_open", "us"),
        )
    ]


ROWS: Final = (
    Row("Kernel log line to cordon, p50", "kmsg_to_cordon_ms_p50", "ms", "<= 2.5"),
    Row("Kernel log line to cordon, p99", "kmsg_to_cordon_ms_p99", "ms", "<= 3"),
    Row("500 nodes join: last in service", "join_500_seconds", "s"),
    *_waves(),
    Row("5,000 at once to 1,000: last cordon", "wave_5000_to_1000_last_cordon", "", "<= 5.5"),
    Row("  last replacement begun", "wave_5000_to_1000_last_replacement_started", "", "<= 5.5"),
    Row("Telemetry ingested", "telemetry_ingest_samples_per_second", "/s"),
    Row("  a second of processor time", "telemetry_ingest_samples_per_cpu_second", "/s"),
    Row("Telemetry lost", "telemetry_lost", "samples", "0"),
    Row("Telemetry decoded, one core", "telemetry_decode_samples_per_second", "/s"),
    Row("Telemetry evaluated, one core", "level_evaluation_samples_per_second", "/s"),
    Row("Telemetry not evaluated", "level_evaluation_lost", "samples", "0"),
    Row("`navarch events`, one core", "events_printed_per_cpu_second", "/s"),
    *_listings(),
    *_commands(),
    Row("Verdict to the scheduler's own cordon, p50", "scheduler_cordon_ms_p50", "ms"),
    Row("Verdict to the scheduler's own cordon, p99", "scheduler_cordon_ms_p99", "ms"),
    Row("200 simultaneous drains: last cordon", "drains_200_last_cordon_seconds", "s"),
    Row("  last drained", "drains_200_last_drain_seconds", "s"),
    Row("1,000 nodes simulated for 10 min", "simulation_1000_nodes_wall_seconds", "s"),
    Row("  memory", "simulation_1000_nodes_memory_gib", "GiB", "<= 0.4"),
    Row("5,000 nodes simulated for 30 min", "simulation_5000_nodes_wall_seconds", "s"),
    Row("  memory", "simulation_5000_nodes_memory_gib", "GiB", "<= 1"),
    Row("Gateway, before any stream: memory", "streams_gateway_mib_before", "MiB"),
    Row("Gateway, 1,000 event streams: memory", "streams_gateway_mib", "MiB"),
    Row("  nothing happens", "streams_idle_cores", "cores"),
    Row("  one event on all streams: processor time", "streams_event_cpu_ms", "ms"),
    Row("    of the 1,000 clients, in one process", "streams_clients_cpu_ms", "ms"),
    Row("  ten events a second: delay, p50", "streams_delay_ms_p50", "ms"),
    Row("  delay, p99", "streams_delay_ms_p99", "ms"),
    Row("  events missing", "streams_events_missing", "", "0"),
    Row("Agent, 8 GPUs: memory", "agent_resident_mib", "MiB"),
    Row("Agent, sampling each 15 s", "agent_cores_15s", "cores"),
    Row("Agent, sampling each 1 s", "agent_cores_1s", "cores"),
    Row("Agent, 1,600 kernel lines/s", "agent_cores_storm", "cores"),
    *_security(),
    *(
        Row(f"Line to cordon, {label}, p50", f"flood_{kind}_cordon_ms_p50", "ms", "<= 2")
        for kind, label in (
            ("bus", "1,000 connections to nats-server"),
            ("unfinished", "4,300 unfinished requests"),
            ("metrics", "4,300 for the metrics"),
        )
    ),
)
