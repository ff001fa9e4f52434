"""An autoscaler's advice that is not followed, in a sentence. Pure."""

from schemas.autoscaling_advice import IDLE, AutoscalingAdvice
from schemas.duration import format_duration
from schemas.time_text import utc_seconds


def advice_sentence(advice: AutoscalingAdvice) -> str:
    """Return what is advised, why it is not followed, and when the autoscaler is queried again."""
    since = utc_seconds(advice.since)
    again = ""
    if advice.again_seconds:
        again = f" It is asked again every {format_duration(advice.again_seconds)}."
    if advice.limited_by == "failed":
        return (
            f"The autoscaler ({advice.autoscaler}) has failed since {since}: {advice.detail}; the "
            f"size stays as it is.{again}"
        )
    if advice.limited_by == "source" and advice.autoscaler == IDLE:
        return (
            f"Which nodes have no work (idle_after) has not been known since {since}: "
            f"{advice.detail}; such nodes stay.{again}"
        )
    if advice.limited_by == "source":
        return (
            f"The metrics source of the autoscaler ({advice.autoscaler}) has not answered since "
            f"{since}: {advice.detail}; how many jobs wait is not known.{again}"
        )
    nodes = "1 node" if advice.nodes == 1 else f"{advice.nodes} nodes"
    why = f" ({advice.reason})" if advice.reason else ""
    asks = f"The autoscaler ({advice.autoscaler}) asks for {nodes}{why}"
    match advice.limited_by:
        case "cooldown":
            when = f"; not before {utc_seconds(advice.until)}" if advice.until else ""
            bound = f", and {advice.detail}" if advice.detail else ""
            kept = f"the last change of size is too recent (cooldown){when}{bound}"
        case "limits":
            kept = advice.detail
        case "observe":
            kept = "the pool only observes (mode: observe)"
    return f"{asks}, not followed since {since}: {kept}.{again}"


def is_notable(advice: AutoscalingAdvice | None) -> bool:
    """Return whether `navarch status` shows the advice: not for an idle pool at min_nodes."""
    if advice is None:
        return False
    return not (advice.limited_by == "limits" and advice.detail.startswith("min_nodes"))
