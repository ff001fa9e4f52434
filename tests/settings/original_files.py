"""Holds the shapes of the YAML blocks and example files that documents about the original have.

Names and figures are our own.
"""

from typing import Any, Final

LAMBDA: Final = "providers:\n  lambda: {type: lambda, api_key_env: PATH}\n"
POOL: Final = """\
pools:
  - name: web
    provider: lambda
    instance_type: gpu_8x_h100_sxm5
    region: us-west-2
"""
SCALING: Final = """\
    scaling:
      min_nodes: 3
      max_nodes: 48
      cooldown_period: 8m
"""
QUEUE: Final = "      autoscaler: {type: queue, jobs_per_node: 1}\n"
HEALTH: Final = "    health: {unhealthy_threshold: 2, auto_replace: true}\n"
FLAT: Final = (
    LAMBDA
    + """\
pools:
  web:
    provider: lambda
    instance_type: gpu_1x_a100
    min_nodes: 1
    max_nodes: 9
"""
)
SCHEDULE: Final = """\
    autoscaling:
      type: scheduled
      schedule:
        - {days: [monday, friday], start: 9, end: 18, min_nodes: 5, max_nodes: 9}
        - {days: [saturday, sunday], start: 0, end: 24, min_nodes: 0, max_nodes: 2}
      fallback: {type: reactive, scale_up_at: 80, scale_down_at: 20}
"""

Expected = dict[str, Any]
"""Path in the settings -> value."""

LOADS: dict[str, tuple[str, Expected, tuple[str, ...]]] = {
    # the guide to deployment
    "pools by name, two clouds": (
        """
        providers:
          gcp: {type: gcp, project: acme}
          aws: {type: aws, region: us-east-1}
        pools:
          train:
            provider: gcp
            instance_type: a3-highgpu-8g
            region: us-central1
            zones: [us-central1-a, us-central1-b]
            min_nodes: 2
            max_nodes: 90
            cooldown: 10m
            autoscaling: {type: reactive, scale_up_at: 80, scale_down_at: 20}
            health: {unhealthy_after: 2, auto_replace: true}
          serve: {provider: aws, instance_type: p4d.24xlarge, min_nodes: 4, max_nodes: 50}
        """,
        {"pools.train.zones": ("us-central1-a", "us-central1-b"), "pools.serve.max_nodes": 50},
        (),
    ),
    "set-up over SSH, a part of a file": (
        """
        pools:
          train:
            provider: lambda
            instance_type: gpu_8x_h100_sxm5
            min_nodes: 2
            max_nodes: 20
            ssh_user: ubuntu
            ssh_private_key_path: /etc/keys/fleet
            setup_commands:
              - |
                curl -L https://example.com/agent -o /usr/local/bin/agent
              - agent --server {{.ControlPlane}} --node-id {{.NodeID}} --pool ${NOT_OURS} &
        """,
        {"providers.lambda.type": "lambda", "pools.train.ssh_private_key_path": "/etc/keys/fleet"},
        ("provider 'lambda' has its default options; add it under `providers:`",),
    ),
    # the guide to Slurm
    "a list of pools with `scaling`": (
        "server: {address: 0.0.0.0:50051, heartbeat_interval: 20s, health_check_interval: 60s,"
        " autoscale_interval: 45s}\n" + LAMBDA + POOL + SCALING + QUEUE + HEALTH,
        {
            "agent.heartbeat_interval": 20.0,
            "agent.heartbeat_ttl": 60.0,
            "server.autoscale_interval": 45.0,
            "pools.web.min_nodes": 3,
            "pools.web.cooldown": 480.0,
            "pools.web.autoscaling": {"type": "queue", "jobs_per_node": 1},
            "pools.web.health.unhealthy_after": 2,
        },
        (
            "`server.address` has no effect: agents and commands use the bus",
            "`agent.heartbeat_ttl` is 1m, three heartbeat intervals",
            "`server.heartbeat_interval` is now `agent.heartbeat_interval`",
            "`health_check_interval` has no effect: agents report faults as they occur",
            "the keys of `scaling` are now the pool's own",
            "`autoscaler` is now `autoscaling`",
            "`cooldown_period` is now `cooldown`",
            "`unhealthy_threshold` is now `unhealthy_after`",
        ),
    ),
    "composite of a queue and thresholds": (
        LAMBDA
        + POOL
        + SCALING
        + """\
      autoscaler:
        type: composite
        mode: max
        autoscalers:
          - {type: queue, jobs_per_node: 2}
          - {type: reactive, scale_up_threshold: 90, scale_down_threshold: 10}
    labels: {scheduler: slurm, partition: gpu}
""",
        {
            "pools.web.autoscaling": {
                "type": "composite",
                "mode": "max",
                "autoscalers": [
                    {"type": "queue", "jobs_per_node": 2},
                    {"type": "reactive", "scale_up_at": 90, "scale_down_at": 10},
                ],
            },
            "pools.web.labels": {"scheduler": "slurm", "partition": "gpu"},
        },
        ("`scale_up_threshold` is now `scale_up_at`",),
    ),
    "several partitions, without providers": (
        POOL
        + SCALING
        + HEALTH
        + """\
  - name: dev
    provider: gcp
    instance_type: a2-highgpu-1g
    region: us-central1
    scaling:
      min_nodes: 2
      max_nodes: 16
      autoscaler: {type: reactive, scale_up_threshold: 70, scale_down_threshold: 20}
""",
        {"pools.dev.autoscaling": {"type": "reactive", "scale_up_at": 70, "scale_down_at": 20}},
        ("provider 'gcp' has its default options",),
    ),
    # the original's own files
    "several providers and defaults": (
        LAMBDA
        + """\
  gcp: {type: gcp, project: acme, zone: us-central1-b}
pools:
  mixed:
    providers:
      - {name: lambda, priority: 2, weight: 3, regions: [us-west-2]}
      - {name: gcp, priority: 1, regions: [us-central1], instance_type: a3-highgpu-8g}
    strategy: round-robin
    instance_type: h100-8x
    min_nodes: 4
    max_nodes: 32
defaults:
  ssh_keys: [ops, research]
  health: {unhealthy_after: 2, auto_replace: false}
""",
        {
            "pools.mixed.provider": "gcp",
            "pools.mixed.providers.0.zones": ("us-central1-b",),
            "pools.mixed.strategy.options": {"weights": {"lambda": 3}},
            "pools.mixed.ssh_keys": ("ops", "research"),
            "pools.mixed.health.auto_replace": False,
        },
        (
            "the zone of provider 'gcp' is now in `zones` of its pools",
            "`weight` is now in `weights` of the strategy round-robin",
        ),
    ),
    "weights without round-robin": (
        LAMBDA
        + "pools: {a: {providers: [{name: lambda, weight: 2}], instance_type: x, min_nodes: 0,"
        " max_nodes: 1}}",
        {"pools.a.strategy.type": "priority"},
        ("`weight` has no effect but with `strategy: round-robin`; remove it",),
    ),
    "a schedule of days and hours": (
        FLAT + SCHEDULE,
        {
            "pools.web.autoscaling": {
                "type": "scheduled",
                "schedule": [
                    {"start": "0 9 * * 1,5", "duration": "9h", "min_nodes": 5, "max_nodes": 9},
                    {"start": "0 0 * * 0,6", "duration": "24h", "min_nodes": 0, "max_nodes": 2},
                ],
                "fallback": {"type": "reactive", "scale_up_at": 80, "scale_down_at": 20},
            }
        },
        ("`days`, `start` and `end` are now `start` (a cron expression) and `duration`",),
    ),
    "hours by other names, over midnight": (
        FLAT
        + """\
    autoscaling:
      type: scheduled
      schedule:
        - {start_hour: 22, end_hour: 6, min_nodes: 2, max_nodes: 4, fallback: {type: queue}}
""",
        {
            "pools.web.autoscaling.schedule": [
                {
                    "start": "0 22 * * *",
                    "duration": "8h",
                    "min_nodes": 2,
                    "max_nodes": 4,
                    "autoscaler": {"type": "queue"},
                }
            ]
        },
        ("`fallback` is now `autoscaler`",),
    ),
    "predictive": (
        FLAT + "    autoscaling: {type: predictive, lookback_window: 30, growth_factor: 1.5,"
        " fallback: {type: reactive, scale_up_threshold: 70, scale_down_threshold: 30}}\n",
        {
            "pools.web.autoscaling": {
                "type": "predictive",
                "window": 30,
                "growth_factor": 1.5,
                "fallback": {"type": "reactive", "scale_up_at": 70, "scale_down_at": 30},
            }
        },
        ("`lookback_window` is now `window`", "`scale_up_threshold` is now `scale_up_at`"),
    ),
    "an average": (
        FLAT + "    autoscaling: {type: composite, mode: avg, autoscalers: [{type: queue}]}\n",
        {"pools.web.autoscaling.mode": "avg"},
        (),
    ),
    "simulated agents": (
        """
        server: {address: ":50051", heartbeat_interval: 5s, heartbeat_timeout: 11s}
        providers: {fake: {type: fake}, more: {type: fake, gpu_count: 4}}
        pools:
          test:
            {provider: fake, instance_type: fake-8xgpu, region: us-fake-1, min_nodes: 2,
             max_nodes: 5, cooldown: 10s, health: {unhealthy_after: 1, auto_replace: true}}
        """,
        {
            "providers.fake.type": "local",
            "providers.more.options": {"gpu_count": 4},
            "agent.heartbeat_ttl": 11.0,
        },
        (
            "a `fake` provider runs simulated agents, as processes on this machine",
            "`server.heartbeat_timeout` is now `agent.heartbeat_ttl`",
        ),
    ),
    "instances without agents": (
        "providers: {fake: {type: fake, file: cloud.db}}",
        {"providers.fake.type": "fake"},
        (),
    ),
    "an address that nodes reach": (
        "server: {external_address: 'https://fleet.example.com:8443/api'}",
        {"agent.bus_url": "nats://fleet.example.com:4222"},
        ("`server.external_address` is now `agent.bus_url`: nats://fleet.example.com:4222",),
    ),
    "global settings": (
        FLAT
        + """\
global:
  ssh_key_names: [ops]
  agent: {server: https://fleet.example.com, heartbeat_interval: 30s, health_check_interval: 60s}
  cost: {max_monthly_spend_usd: 7300, alert_at_percent: [50, 90]}
""",
        {
            "pools.web.ssh_keys": ("ops",),
            "agent.bus_url": "nats://fleet.example.com:4222",
            "agent.heartbeat_interval": 30.0,
            "spend_cap": 10.0,
        },
        (
            "`global.agent.server` is now `agent.bus_url`",
            "`max_monthly_spend_usd` is now `spend_cap`: 10.0 dollars an hour",
            "`alert_at_percent` has no effect",
            "`global.ssh_key_names` is now `defaults.ssh_key_names`",
            "`ssh_key_names` is now `ssh_keys`",
        ),
    ),
    "thresholds beside the limits": (
        LAMBDA
        + POOL
        + SCALING
        + "      scale_up_threshold: 70\n      scale_down_threshold: 30\n"
        + "      scale_down_delay: 5m\n",
        {"pools.web.autoscaling": {"type": "reactive", "scale_up_at": 70, "scale_down_at": 30}},
        (
            "`scale_up_threshold` of a pool means an autoscaler of type reactive",
            "`scale_down_delay` has no effect: `cooldown` separates two changes",
        ),
    ),
    "time limits of the set-up": (
        FLAT + "    ssh_timeout: 4m\n    ip_wait_timeout: 3m\n    command_timeout: 2m\n",
        {
            "pools.web.setup.ssh_timeout": 240.0,
            "pools.web.setup.ip_wait_timeout": 180.0,
            "pools.web.setup.command_timeout": 120.0,
        },
        ("`ssh_timeout` is now `setup.ssh_timeout`",),
    ),
    "secrets by name": (
        """
        providers:
          lambda: {api_key_secret: acme/key}
          gcp: {project: acme, credentials_secret: acme/gcp}
        notifier:
          type: webhook
          webhook:
            drain_status_url: https://jobs.example.com/drained
            webhook_secret: a-long-enough-secret-of-ours
        """,
        {"notifier.options.secret": "a-long-enough-secret-of-ours"},
        (
            "`api_key_secret` is not read: export the key as the variable",
            "`credentials_secret` is not read",
            "`webhook_secret` is now `secret`",
        ),
    ),
    "the notifier and the policy below `server`": (
        "server: {health_policy: policy.yaml, coordinator: {type: noop}}",
        {"health_policy": "policy.yaml", "notifier.type": "noop"},
        ("`server.health_policy` is now `health_policy`", "`server.coordinator` is now `notifier`"),
    ),
}

REFUSED: dict[str, tuple[str, str]] = {
    "a Kubernetes manifest": (
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent}\n",
        "navarch.yaml:1: (the whole file): is a Kubernetes manifest, not a configuration: apply it",
    ),
    "a scenario of the simulator": (
        "name: a\nfleet:\n  - {id: node-1, provider: fake}\nevents: []\n",
        "navarch.yaml:1: (the whole file): is a scenario of the simulator, not a configuration",
    ),
    "a stress file": (
        "name: a\nfleet: []\nstress: {duration: 1m}\n",
        "navarch.yaml:1: (the whole file): is a scenario of the simulator, not a configuration",
    ),
    "a health policy": (
        "version: 1\nrules: [{name: a}]\n",
        "navarch.yaml:1: (the whole file): is a health policy, not a configuration",
    ),
    "resources": (
        "apiVersion: navarch.io/v1alpha1\nkind: Pool\nspec: {}\n",
        "navarch.yaml:1: (the whole file): is written as resources with `kind` and `spec`, which",
    ),
    "several documents": (
        "fleet: a\n---\nfleet: b\n",
        "navarch.yaml:2: a second YAML document begins here; write one, with the sections",
    ),
    "both spellings": (
        FLAT + "    cooldown: 1m\n    cooldown_period: 2m\n",
        "navarch.yaml:10: pools.web.cooldown_period: `pools.web.cooldown_period` means `pools.web.",
    ),
    "both places": (
        FLAT + "    scaling: {max_nodes: 4}\n",
        "navarch.yaml:9: pools.web.scaling.max_nodes: `pools.web.scaling.max_nodes` means `pools.",
    ),
    "files for new nodes": (
        FLAT + "    file_uploads: [{local: a, remote: /b}]\n",
        "navarch.yaml:9: pools.web.file_uploads: files are not copied to new nodes: write the file",
    ),
    "an hour that is none": (
        FLAT + "    autoscaling: {type: scheduled, schedule: [{days: [monday], start: 9h}]}\n",
        "navarch.yaml:9: pools.web.autoscaling.schedule.0: needs `start` and `end`, hours from 0",
    ),
    "a day that is none": (
        FLAT
        + "    autoscaling: {type: scheduled, schedule: [{days: [noday], start: 9, end: 10}]}\n",
        "navarch.yaml:9: pools.web.autoscaling.schedule.0.days: must be a list of days",
    ),
    "a period of no time": (
        FLAT + "    autoscaling: {type: scheduled, schedule: [{start: 9, end: 9}]}\n",
        "navarch.yaml:9: pools.web.autoscaling.schedule.0: begins at 9 and ends at 9, so it never",
    ),
    "an unknown global setting": (
        "global:\n  agent:\n    image: agent:latest\n",
        "navarch.yaml:3: global.agent.image: has no meaning here; remove it",
    ),
    "an unknown server setting": (
        "server:\n  listen: 1\n",
        "navarch.yaml:2: server.listen: unknown key; known here: autoscale_interval",
    ),
    "an interval that is none": (
        "server: {heartbeat_interval: soon}\n",
        "navarch.yaml:1: agent.heartbeat_interval: 'soon' is not a duration: write 30s, 10m or",
    ),
    "a line far from the current place": (
        LAMBDA + POOL + SCALING.replace("8m", "soon"),
        "navarch.yaml:11: pools.web.cooldown: 'soon' is not a duration",
    ),
}
