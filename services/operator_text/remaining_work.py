"""What a drain waits for, in words. Pure."""

from schemas.node_events import WorkRemains
from services.operator_text.quantities import local_time


def work_words(event: WorkRemains) -> str:
    """What a drain waits for, and until when at the latest."""
    named = [f"{each.id} of {each.owner}" if each.owner else each.id for each in event.work]
    if event.total > len(named):
        named.append(f"{event.total - len(named)} more")
    ends = [each.ends_at for each in event.work if each.ends_at is not None]
    last = max(ends) if len(ends) == event.total else None
    limits = [each for each in (last, event.until) if each is not None]
    until = f"until {local_time(min(limits))} at the latest" if limits else "without a time limit"
    return f"waits for {', '.join(named)}, {until}"
