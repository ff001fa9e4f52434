"""A day of jobs under each autoscaling strategy, in virtual time: nodes used, how long jobs wait.

`python -m benchmarks.autoscaling_day` prints the table of docs/autoscaling.md; each strategy takes
a minute or two. Up to 30 nodes that boot in 3 to 8 minutes; jobs of 40 minutes on a node each,
that arrive at random, at 6 an hour by night and 33 in the afternoon. The same jobs come in every
run. The services, the agents' messages and the metrics source are those of a stress run.
"""

import sys
from typing import Final

from services.simulator.inputs.scenario.scenario_file import read_text
from services.simulator.inputs.stress import stress_entry

FILE: Final = """
name: autoscaling-day
stress:
  duration: 24h
  metrics_interval: 5m
  seed: 4
  fleet_gen:
    total_nodes: 30
    templates:
      - {{name: h100-8gpu, gpu_count: 8, instance_type: h100-80gb-8x, price_per_hour: 1}}
    startup: {{cold_start_min: 3m, cold_start_max: 8m}}
    pool: {{min_nodes: 2, drain_timeout: 2h, autoscaling: {autoscaling}}}
  workload:
    jobs_per_node: 1
    job_mean: 40m
    job_stddev: 15m
    demand:
      - {{at: 0s, jobs_per_minute: 0.1}}
      - {{at: 7h, jobs_per_minute: 0.3}}
      - {{at: 9h, jobs_per_minute: 0.5}}
      - {{at: 12h, jobs_per_minute: 0.4}}
      - {{at: 14h, jobs_per_minute: 0.55}}
      - {{at: 18h, jobs_per_minute: 0.25}}
      - {{at: 21h, jobs_per_minute: 0.1}}
settings:
  agent: {{heartbeat_interval: 30s, telemetry_interval: 60s}}
"""
ALWAYS: Final = '{start: "0 0 * * *", duration: 24h, nodes: 30}'
OFFICE: Final = '{start: "0 7 * * *", duration: 14h, nodes: 26}'
STRATEGIES: Final = {
    "none: 30 nodes all day": f"{{type: scheduled, schedule: [{ALWAYS}]}}",
    "`queue`": "{type: queue}",
    "`reactive`": "{type: reactive}",
    "`reactive`, `grow_without_queue: true`": "{type: reactive, grow_without_queue: true}",
    "`predictive`": "{type: predictive}",
    "`scheduled`: 26 nodes from 7 to 21 h": f"{{type: scheduled, schedule: [{OFFICE}]}}",
    "`composite`, the larger of `queue` and `predictive`": (
        "{type: composite, autoscalers: [{type: queue}, {type: predictive}]}"
    ),
}


def row(name: str, autoscaling: str) -> str:
    """Run one day; its line of the table."""
    scenario = read_text("autoscaling-day.yaml", FILE.format(autoscaling=autoscaling))
    assert scenario.stress is not None
    report = stress_entry.simulate(scenario.stress, name=scenario.name, base=scenario.configuration)
    demand = report.demand
    assert demand is not None
    waits = demand.wait_seconds
    return (
        f"| {name} | {report.summary.dollars:.0f} | {demand.idle_share:.0%} | "
        f"{waits.mean / 60:.1f} | {waits.p99 / 60:.1f} | {report.summary.machines_made} |"
    )


def main() -> None:
    """Print the table."""
    lines = [
        "| strategy | node-hours | idle | mean wait, min | p99 wait, min | nodes launched |",
        "|---|---|---|---|---|---|",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    for name, autoscaling in STRATEGIES.items():
        sys.stdout.write(row(name, autoscaling) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
