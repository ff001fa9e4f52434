"""The recorded run of the demo in the README: a picture that loads nothing and runs no script."""

from xml.etree import ElementTree as ET

from tests.real.demo_recording import COLUMNS, FILE, picture

SVG = "{http://www.w3.org/2000/svg}"


def test_the_readme_shows_the_recording() -> None:
    """The README shows the recorded run from the fault to the replacement."""
    readme = (FILE.parents[2] / "README.md").read_text(encoding="utf-8")
    assert f'src="docs/images/{FILE.name}"' in readme
    text = " ".join(each.text or "" for each in ET.parse(FILE).iter(f"{SVG}text"))
    for each in ("falls off the bus", "cordoned", "drained", "terminated", "replaced"):
        assert each in text


def test_the_recording_is_a_picture_alone() -> None:
    """Each line appears at its time, in its place, and text is text."""
    lines = [(0.0, "<script>&"), (0.5, ""), (1.25, "replaced " + "x" * 200)]
    found = ET.fromstring(picture(lines))
    first, last = found.iter(f"{SVG}text")
    assert first.text == "<script>&"
    assert last.text is not None
    assert len(last.text) == COLUMNS
    assert "animation-delay: 1.25s; fill: #7ee787" in last.attrib["style"]
    for root in (found, ET.parse(FILE).getroot()):
        kinds = {each.tag.removeprefix(SVG) for each in root.iter()}
        assert kinds == {"svg", "title", "style", "rect", "text"}
        assert not {"href", "src", "onload"} & {key for each in root.iter() for key in each.attrib}
