"""The templates of the pages, their style sheet, and how values are written in them."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from services.operator_text.safe_text import escape


@cache
def template(name: str) -> Template:
    """A page's template; every text that it is given is escaped."""
    environment = Environment(
        autoescape=True,
        finalize=_escape_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(_text(name))


@cache
def style_sheet() -> Markup:
    """The style sheet of every page."""
    return Markup(_text("report_style.css"))  # noqa: S704 - our own file


def seconds(value: float) -> str:
    """Write `0.4 s`, `12 s` or `3 min 20 s`."""
    if value < 10:  # noqa: PLR2004 - where a tenth still matters
        return f"{value:.1f} s"
    if value < 120:  # noqa: PLR2004 - two minutes
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _escape_text(value: object) -> object:
    """What the page shows of a value: no character that hides or reorders its text."""
    return escape(value) if type(value) is str else value
