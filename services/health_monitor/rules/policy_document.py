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

This page is written by
`python -m services.health_monitor.rules.policy_document > docs/health-policy.md` from
`config/health-policy.yaml`, `config/xid-catalog.yaml` and `config/sxid-catalog.yaml`; change
those, not this. How to write a policy of your own is said at the head of the policy file.

A fault's **result** is `healthy` (noted, nothing else), `degraded` (the node stays in service,
operators are notified, it wears off) or `unhealthy` (the node leaves service; it lasts until it is
uncordoned or replaced). The **action** is what the fault calls for; what is done about an
unhealthy node is the pool's remediation, by default a replacement. *At once* means that one fault
is enough whatever the pool's `unhealthy_after` says.

The actions for XIDs follow NVIDIA's catalogue (October 2025, column *NVIDIA*). **The severities
are Navarch's own**: NVIDIA publishes none, except for the NVLink 5 codes 144 to 150. A code that
no rule knows is degraded, never unhealthy.
"""

_HOW: Final = """\
## How a node's health comes about

- The first rule whose condition matches decides. A condition that asks for a metric which the
  fault does not have does not match, and is counted (`navarch_policy_conditions_raised_total`).
- *Degraded* is a set of conditions, one for each kind, code and GPU. Each wears off by itself,
  `sticky` after its last fault; is cancelled by a rule's `cancels`; or ends with the boot. None
  touches another's time. The node is healthy again when the last is gone.
- *Unhealthy* is sticky: a new registration, a reboot or any other fault does not lift it, an
  uncordon or the node's end does. A worse action (reset, then reboot, then replacement) is
  published again.
- An uncordon clears the node as of its request. What the node reports from then on
  counts, also while the workload system keeps the uncordon waiting; after a reset or a reboot it is
  what the node has reported since that.
- Where a pool has `health.cordon_scope: gpu` and its notifiers can, a rule with `cordon: gpu` makes
  the node *degraded*: the faulty GPU gets no new work, the node stays in service. That lasts as
  *unhealthy* does. A fault of a second GPU, or one whose rule has no `cordon: gpu`, makes the node
  unhealthy; so does a workload system that does not carry out the order, and a repair that fails.
  Such a node is repaired as an unhealthy one is, but in the pool's service windows; without a
  window once its GPUs have rested for five minutes, or by an operator (`navarch reset-gpu`,
  `navarch replace`). It counts in `budget.max_quarantined`.
- Where a pool has `unhealthy_after: n`, results that are not fatal count up, over all kinds and
  GPUs of the node, within 24 hours; until the n-th the node is degraded.
- A rule with `count` and `window` matches from the `count`-th fault within the window on. It
  counts the faults that reach it, by the host's time, so that a late delivery is no burst.
- A *level* is a reading in the samples that stays beyond a bound: once it has lasted, it becomes
  one fault, judged by the same rules. It is reported once however long it lasts, degrades the
  node until it is over (or for a day, if its end is missed), and is reported again after an
  uncordon or a boot.
- Each GPU has its own health beside its node's (`navarch get NODE`): the worst condition that
  is in force on it, or unhealthy for as long as its node is.
- The same fault on many nodes within a minute is one incident, published as `incident`, which
  names what they share: a job, a rack, a zone, a provider or the pool (`health.incident` of the
  pool says how many nodes that takes; three of one job are enough, two where another node of it
  crashed first, and a whole rack from three on). Where it makes nodes unhealthy, none of
  them is repaired while it is fresh; where it does not, operators are notified.
- What a program can bring about (XIDs 8, 13, 31, 32, 43, 45, 68, 69) is **its job's and not the
  node's** where another node of the same job shows the same within a minute, or, for the clean-up
  XID 45, showed anything in the half hour before. It is noted as healthy with the rule `(one job)`
  and counts in no window. Where such a fault would degrade a node or make it unhealthy, its
  verdict waits two seconds for the other nodes; what is fatal (*at once*) never waits and is never
  forgiven. The agent learns the job from the kernel line's process: Slurm's number, or the pod;
  the pods of one Kubernetes job have nothing in common there, so they are judged one by one.
- A changed policy file is in force within a second; a wrong one is refused and the old one
  stays. Each verdict names its rule and the policy (the first 12 digits of the file's SHA-256).
"""


def render() -> str:
    """Write the whole page."""
    policy = load_policy(resource("health-policy.yaml"))
    tables = (*_rules(policy), *_levels(policy), *_xids(policy), *_sxids(policy))
    return "\n".join((_INTRODUCTION, _HOW, *tables))


def _rules(policy: Policy) -> Iterable[str]:
    yield "## Rules, in order\n"
    yield "| rule | fault | result | action | lasts, counts, ends | why |"
    yield "|---|---|---|---|---|---|"
    for rule in policy.rules:
        notes = [lasts(rule)] if rule.result == "degraded" else []
        if rule.window_seconds:
            window = format_duration(rule.window_seconds)
            notes.insert(0, f"from {rule.count} within {window} per {rule.per} on")
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
    yield "## XIDs\n"
    yield "| XID | what it says | on | NVIDIA | result | action | rule | why |"
    yield "|---|---|---|---|---|---|---|---|"
    for entry in catalog.codes:
        explained = explain(policy, example("xid", entry.code))
        yield _row(
            str(entry.code),
            entry.description,
            " ".join(entry.generations) or "-",
            entry.action or "-",
            *_cells(explained),
        )
    yield (
        "\n144 to 150 are judged by the severity in their line, 154 by the action it names; the\n"
        "table shows what a line without either comes to.\n"
    )
    unused = ", ".join(str(each.code) for each in catalog.unused)
    explained = explain(policy, example("xid", catalog.unused[0].code))
    yield (
        f"In NVIDIA's catalogue but in use on no present GPU, and so judged by `{explained.rule}` "
        f"({explained.result},\n{explained.action}): {unused}.\n"
    )


def _sxids(policy: Policy) -> Iterable[str]:
    yield "## SXIDs\n"
    yield "| SXID | what it says | NVIDIA | result | action | rule | why |"
    yield "|---|---|---|---|---|---|---|"
    for entry in load_sxids().codes:
        explained = explain(policy, example("sxid", entry.code, gpu_index=-1))
        yield _row(str(entry.code), entry.description, entry.severity, *_cells(explained))
    yield ""


def _cells(explained: Explanation) -> tuple[str, str, str, str]:
    result = f"{explained.result}, at once" if explained.fatal else explained.result
    why = explained.why
    for repeat in explained.repeats:
        also = f"{repeat.count} within {repeat.window}: {repeat.result}, {repeat.action}"
        why = f"{why} {also[0].upper()}{also[1:]} (`{repeat.rule}`)."
    return result, explained.action, f"`{explained.rule}`", why


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
