"""Writes docs/health-policy.md from the files in `config/`; a test keeps it in step.

python -m services.health_monitor.rules.policy_document > docs/health-policy.md
"""

import sys
from collections.abc import Iterable
from typing import Final

from schemas.duration import format_duration
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.policy_explanation import Explanation, example, explain, lasts
from services.health_monitor.rules.policy_file import load_policy
from services.settings.packaged_files import resource
from services.settings.xid_catalogues import load_sxids, load_xids

_INTRODUCTION: Final = """\
# The health policy

Written by `python -m services.health_monitor.rules.policy_document > docs/health-policy.md` from
`config/health-policy.yaml`, `config/xid-catalog.yaml` and `config/sxid-catalog.yaml`: change those,
not this page. The head of the policy file says how to write a policy of your own.

A fault's **result** is `healthy` (noted, nothing else), `degraded` (the node stays in service,
operators are notified, it wears off) or `unhealthy` (the node leaves service, until it is
uncordoned or replaced). The **action** is what the fault calls for; the pool's remediation decides
what is done, by default a replacement. *At once*: one fault is enough, whatever the pool's
`unhealthy_after`.

Actions for XIDs follow NVIDIA's catalogue (October 2025, column *NVIDIA*). **The severities are
Navarch's own**: NVIDIA publishes none, except for the NVLink 5 codes 144 to 150. A code that no
rule knows is degraded, never unhealthy.
"""

_HOW: Final = """\
## How a node's health comes about

- The first rule whose condition matches decides. A condition on a metric that the fault lacks
  does not match, and is counted (`navarch_policy_conditions_raised_total`).
- *Degraded* is a set of conditions, one for each kind, code and GPU. Each ends by itself,
  `sticky` after its last fault, by a rule's `cancels`, or with the boot; the node is healthy when
  none is left.
- *Unhealthy* lasts until an uncordon or the node's end, whatever registration, reboot or fault
  follows. A worse action (reset, reboot, replacement) is published again.
- An uncordon clears what was reported before its request; after a reset or reboot, before that.
- In a pool with `health.cordon_scope: gpu` whose notifiers can do it, a rule with `cordon: gpu`
  makes the node *degraded* for as long as *unhealthy* lasts: only the faulty GPU gets no new
  work. A fault of a second GPU, one whose rule has no `cordon: gpu`, a workload system that does
  not carry out the order, or a failed repair makes it unhealthy. The repair waits for the pool's
  service windows; without any, until the node is idle (its GPUs rest, and no job runs), or for an
  operator (`navarch reset-gpu`, `navarch replace`). It counts in `budget.max_quarantined`.
- With `unhealthy_after: n`, results that are not *at once* count up within 24 hours, over all
  kinds and GPUs of the node; until the n-th it is degraded.
- A rule with `count` and `window` matches from the `count`-th fault within the window on, by the
  host's time: a late delivery is no burst.
- A *condition* is a state that an agent sees at each sample: all NVLinks down, a driver that hangs.
  It is judged once when it begins, under its name (`event.condition`), and degrades the node until
  the agent sees it no more, whatever `sticky` says; one that began three times within an hour
  counts for the rest of that hour. What holds is judged again after an uncordon, and by a changed
  policy. What cannot be read is shown as unknown, and ends nothing. Agents of releases before say
  nothing of conditions: their faults wear off as others do.
- A *level* is a reading in the samples beyond a bound. Once it has lasted, it is reported as one
  fault, and degrades the node until it is over (a day, if its end is missed). It is reported
  again after an uncordon or a boot.
- Each GPU has its own health (`navarch get NODE`): its worst condition, or unhealthy while its
  node is.
- The same fault on many nodes within a minute is one `incident`, which names what they share:
  job, rack, zone, provider or pool. `health.incident` says how many nodes it takes; of one job
  three (two, where another of its nodes crashed first), and a whole rack from three on. Unhealthy
  nodes are not repaired while the incident is fresh; of others operators are notified.
- XIDs that a program can cause (8, 13, 31, 32, 43, 45, 68, 69) are **the job's, not the node's**,
  where another node of the job shows the same within a minute or, for XID 45, showed anything in
  the last half hour: healthy, by the rule `(one job)`, counted in no window. A verdict that would
  degrade a node waits two seconds for that; one *at once* never waits. The kernel line's process
  names the job: Slurm's number, or the pod (pods of one Kubernetes job are judged one by one).
- A changed policy file is in force within a second; an invalid one is refused and the old one
  stays. Each verdict names its rule and the policy (12 digits of the file's SHA-256).
"""
_CONDITIONS: Final = """\
## Conditions by name

A rule rates a condition by its name, ignores it (`result: healthy`), or delays it. With `delay` a
condition is healthy until it has been held for so long, and then what the rule says; one that ends
before never counts, and no later rule is asked meanwhile. A changed `delay` counts from the moment
since when the condition is held. Write such rules before those of the same kind of fault:

```yaml
rules:
  - name: narrow-link
    condition: event.condition == "pcie-width"
    result: degraded
    action: reboot
    delay: 5m
  - name: cable-that-is-known
    condition: event.condition == "rdma-devices"
    result: healthy
```

`navarch policy explain --condition NAME` shows how a condition is declared (what reads it and how
often, GPU or host, when it holds and is over, severity and remedy) and what the policy makes of it.
"""
_PLAIN: Final = {
    "RESTART_APP": "healthy, restart_app",
    "IGNORE": "healthy, none",
    "RESET_GPU": "unhealthy, reset_gpu",
    "RESTART_BM": "unhealthy, reboot",
    "RESTART_VM": "unhealthy, reboot",
    "CONTACT_SUPPORT": "degraded, inspect",
    "UPDATE_SWFW": "degraded, inspect",
    "CHECK_MECHANICALS": "degraded, inspect",
    "": "degraded, inspect",
}
"""What NVIDIA's words come to where nothing else is known."""


def render() -> str:
    """Write the whole page."""
    policy = load_policy(resource("health-policy.yaml"))
    xids = (*_xids(policy), *_differences(policy))
    tables = (*_rules(policy), *_levels(policy), *xids, *_sxids(policy))
    return "\n".join((_INTRODUCTION, _HOW, _CONDITIONS, *tables))


def _rules(policy: Policy) -> Iterable[str]:
    yield "## Rules, in order\n"
    yield "| rule | fault | result | action | lasts, counts, ends | why |"
    yield "|---|---|---|---|---|---|"
    for rule in policy.rules:
        notes = [lasts(rule)] if rule.result == "degraded" else []
        if rule.window_seconds:
            window = format_duration(rule.window_seconds)
            notes.insert(0, f"from {rule.count} within {window} per {rule.per} on")
        if rule.delay_seconds:
            notes.insert(0, f"once it has held for {format_duration(rule.delay_seconds)}")
        if rule.cancels:
            notes.append(f"ends {', '.join(map(str, rule.cancels))}")
        if rule.cordon == "gpu":
            notes.append("its GPU alone may be cordoned")
        result = "unhealthy, at once" if rule.fatal else rule.result
        explained = "; ".join(notes)
        yield _row(f"`{rule.name}`", rule.description, result, rule.action, explained, rule.why)
    yield ""


def _levels(policy: Policy) -> Iterable[str]:
    yield "## Levels in telemetry\n"
    yield "Judged by the rules above, as faults of their kind with source `telemetry`.\n"
    yield "| level | what it says | begins | after | is over | kind |"
    yield "|---|---|---|---|---|---|"
    for each in policy.levels:
        over = "when no bit is set" if each.bits is not None else f"at {each.until:g}"
        begins = f"{each.reading} {each.bound()}"
        lasts_for = format_duration(each.for_seconds)
        yield _row(f"`{each.name}`", each.description, begins, lasts_for, over, each.kind)
    yield ""


def _xids(policy: Policy) -> Iterable[str]:
    catalog = load_xids()
    everywhere = max((entry.generations for entry in catalog.codes), key=len)
    yield "## XIDs\n"
    yield f"Where *only on* is empty: {', '.join(everywhere)}.\n"
    yield "| XID | what it says | only on | NVIDIA | verdict | rule |"
    yield "|---|---|---|---|---|---|"
    for entry in catalog.codes:
        explained = explain(policy, example("xid", entry.code))
        generations = () if entry.generations == everywhere else entry.generations or ("-",)
        rules = [explained.rule, *(repeat.rule for repeat in explained.repeats)]
        yield _row(
            str(entry.code),
            entry.description,
            " ".join(generations),
            entry.action or "-",
            _verdict(explained),
            ", then ".join(f"`{rule}`" for rule in rules),
        )
    yield (
        "\nThe first rule decides; the one after *then* once such faults repeat. 144 to 150 are\n"
        "judged by the severity in their line, 154 by the action it names; the table shows what a\n"
        "line without either comes to.\n"
    )
    unused = ", ".join(str(each.code) for each in catalog.unused)
    explained = explain(policy, example("xid", catalog.unused[0].code))
    yield (
        f"In NVIDIA's catalogue but in use on no present GPU, and so judged by `{explained.rule}` "
        f"({explained.result},\n{explained.action}): {unused}.\n"
    )


def _differences(policy: Policy) -> Iterable[str]:
    yield "## Where the verdict is another than NVIDIA's\n"
    yield (
        "NVIDIA's word for the immediate action, and what it comes to by itself, beside the\n"
        "verdict of a line with nothing but the code.\n"
    )
    yield "| XID | NVIDIA | by itself | verdict | why |"
    yield "|---|---|---|---|---|"
    for entry in load_xids().codes:
        explained = explain(policy, example("xid", entry.code))
        plain = _PLAIN.get(entry.action, "a workflow")
        if plain == f"{explained.result}, {explained.action}" or not entry.generations:
            continue
        yield _row(
            str(entry.code),
            entry.action or "nothing yet",
            plain,
            _verdict(explained),
            explained.why,
        )
    yield ""


def _sxids(policy: Policy) -> Iterable[str]:
    groups: dict[str, list[str]] = {}
    for entry in load_sxids().codes:
        explained = explain(policy, example("sxid", entry.code, gpu_index=-1))
        title = f"### {entry.severity}: {_verdict(explained)}, by `{explained.rule}`\n"
        groups.setdefault(title, []).append(_row(str(entry.code), entry.description))
    yield "## SXIDs\n"
    yield "By NVIDIA's severity.\n"
    for title, rows in groups.items():
        yield from (title, "| SXID | what it says |", "|---|---|", *rows, "")


def _verdict(explained: Explanation) -> str:
    at_once = " at once" if explained.fatal else ""
    return f"{explained.result}{at_once}, {explained.action}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
