"""Names what an alert's message in Slack has to press, for who sends it and who is called."""

from typing import Final, Literal

Verb = Literal["acknowledge", "resolve", "note"]
"""What a person may do about an alert from outside."""

ACTIONS: Final[dict[str, Verb]] = {
    "navarch-acknowledge": "acknowledge",
    "navarch-resolve": "resolve",
    "navarch-note": "note",
}
"""ID of a button -> what it does; its value is the alert's key."""
LABELS: Final[dict[Verb, str]] = {
    "acknowledge": "Acknowledge",
    "resolve": "Resolve",
    "note": "Add note",
}
"""What the buttons say."""
NOTE_BLOCK: Final = "navarch-note-block"
"""The block with the field for a note."""
NOTE_FIELD: Final = "navarch-note-field"
"""The field itself, whose text goes with whichever button is pressed."""
