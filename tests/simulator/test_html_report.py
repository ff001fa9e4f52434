"""The page of a stress run: every chart and table shows the report's figures."""

import re

import pytest

from services.simulator.report import html_report
from services.simulator.report.report_format import (
    Cascades,
    Failures,
    Named,
    NodeStory,
    OutageReport,
    PlaceNodes,
    PoolBudget,
    RegionStory,
    Repairs,
    RepairStage,
    RepairStory,
    RunSummary,
    Spread,
    StressReport,
    TimelineMoment,
    TimelinePoint,
)

SUMMARY = RunSummary(
    nodes_wanted=10,
    nodes_at_end=7,
    healthy_least=4,
    healthy_mean=6.0,
    availability=0.9,
    up_at=10.0,
    failures=9,
    recoveries=2,
    repairs=3,
    repairs_failed=0,
    repairs_open=1,
    replacements=2,
    machines_made=12,
    lost=0,
    returned=0,
    dollars=1_234.4,
    dollars_out_of_service=12.0,
)
COLUMNS = ("at", "healthy", "degraded", "starting", "out", "failures", "recoveries", "repaired")
TIMELINE = [
    TimelinePoint(**dict(zip(COLUMNS, row, strict=True)))
    for row in (
        (10.0, 10, 0, 0, 0, 0, 0, 0),
        (20.0, 4, 2, 1, 3, 9, 0, 0),
        (30.0, 7, 1, 2, 0, 0, 2, 3),
    )
]
STORY = RepairStory(
    saga="replace-node-1-1",
    node="node-1",
    new_node="node-11",
    pool="p",
    fault_signature="xid-79",
    reason="XID 79: the GPU fell off the bus",
    at=12.0,
    seconds=10.0,
    outcome="done",
    stages=[
        RepairStage(name="detect", at=12.0, seconds=1.0),
        RepairStage(name="drain", at=13.0, seconds=3.0),
        RepairStage(name="reboot", at=16.0, seconds=6.0),
    ],
    moments=[
        TimelineMoment(at=12.0, text="the machine fails"),
        TimelineMoment(at=22.0, text="replace done"),
    ],
)
COUNTS = {"places": 5, "healthy": 3, "degraded": 1, "out": 1, "starting": 0, "serving_least": 2}
NODES = [
    NodeStory(
        node="node-1",
        pool="p",
        provider="gcp",
        region="east",
        zone="east-a",
        rack="r1",
        state="gone",
        failures=1,
        repairs=1,
        states=[(3.0, "starting"), (6.0, "healthy"), (12.0, "out"), (24.0, "gone")],
        moments=[
            TimelineMoment(at=12.0, text="fails: XID 79"),
            TimelineMoment(at=12.5, text="judged unhealthy: XID 79"),
        ],
        moments_left_out=2,
    ),
    NodeStory(
        node="node-2",
        pool="p",
        provider="aws",
        region="west",
        zone="west-a",
        state="healthy",
        states=[(0.0, "starting"), (15.0, "healthy")],
        moments=[],
    ),
]
REPORT = StressReport(
    name="known",
    description="What is known.",
    seed=1,
    history="0123456789abcdef0",
    seconds=30.0,
    summary=SUMMARY,
    failures=Failures(
        by_type={"xid_error": 6, "network": 3},
        by_xid={"79": 4, "31": 2},
        by_cause={"chance": 5, "outage": 4},
        recovered_by_type={"network": 2},
        missed={},
        top_xids=[Named(name="79", count=4, text="off the bus"), Named(name="31", count=2)],
    ),
    cascades=Cascades(chains=1, nodes=2, depth_max=2, size_max=3),
    outages=[
        OutageReport(
            name="away", scope="zone", target="z", type="network", at=15.0, seconds=10.0, struck=4
        )
    ],
    repairs={"reboot": Repairs(done=1), "replace": Repairs(done=2, open=1)},
    repair_seconds=Spread(count=3, mean=10.0, p50=10.0, p90=12.0, p99=12.0, max=12.0),
    stage_seconds={"reboot": Spread(count=1, mean=6.0, p50=6.0, p90=6.0, p99=6.0, max=6.0)},
    rules=[Named(name="gpu-off-the-bus", count=4), Named(name="xid-ignore", count=1)],
    verdicts={"unhealthy": 4},
    budget=[
        PoolBudget(
            pool="p",
            nodes=10,
            limit=2,
            most=2,
            begun=3,
            full_seconds=20.0,
            breaker_opened={"wave": 1},
            breaker_open_seconds=11.0,
        )
    ],
    slowest=[STORY],
    timeline=TIMELINE,
    notes=["the breaker opened once"],
    regions=[
        RegionStory(
            whole=PlaceNodes(name="east", failures=4, repairs=2, **COUNTS),
            zones=[PlaceNodes(name="east-a", failures=4, repairs=2, **COUNTS)],
            timeline={
                "healthy": [5, 2, 3],
                "degraded": [0, 1, 1],
                "starting": [0, 0, 0],
                "out": [0, 2, 1],
            },
        )
    ],
    nodes=NODES,
    nodes_left_out=1_200,
    defects=[],
    configuration={"seed": 1},
)


@pytest.fixture(scope="module")
def text() -> str:
    """Return the page of the report."""
    return html_report.render(REPORT)


def _section(text: str, heading: str) -> str:
    return text.partition(f"<h2>{heading}</h2>")[2].partition("</section>")[0]


@pytest.mark.parametrize(
    ("heading", "bars"),
    [
        ("Kinds of failure", [("XID", "100.0", "6"), ("network, silent", "50.0", "3")]),
        ("What brought them about", [("by chance", "100.0", "5"), ("outages", "80.0", "4")]),
        ("XIDs", [("79", "100.0", "4"), ("31", "50.0", "2")]),
        (
            "Rules of the health policy",
            [("gpu-off-the-bus", "100.0", "4"), ("xid-ignore", "25.0", "1")],
        ),
    ],
)
def test_each_bar_is_as_long_as_its_count(
    text: str, heading: str, bars: list[tuple[str, str, str]]
) -> None:
    """Name, length in percent of the longest, and count."""
    found = re.findall(
        r'<div>([^<]+)</div>\s*<div class="track"><div class="fill" style="width:([\d.]+)%">'
        r'</div></div>\s*<div class="count">([\d,]+)</div>',
        _section(text, heading),
    )
    assert bars == found


def test_the_areas_are_stacked(text: str) -> None:
    """An area ends, at each sample, at the sum of its own nodes and those below."""
    wide = _section(text, "How the nodes stood").partition("</svg>")[0]
    found = {
        style: points.split()[:3]
        for style, points in re.findall(r'class="area (\w+)" points="([^"]+)"', wide)
    }
    # Ten nodes are 222 high, half a minute is 864 wide.
    assert {
        "healthy": ["334.0,12.0", "622.0,145.2", "910.0,78.6"],
        "degraded": ["334.0,12.0", "622.0,100.8", "910.0,56.4"],
        "starting": ["334.0,12.0", "622.0,78.6", "910.0,12.0"],
        "out": ["334.0,12.0", "622.0,12.0", "910.0,12.0"],
    } == found
    assert [("478.0", "288.0")] == re.findall(
        r'class="band" x="([\d.]+)" y="12" width="([\d.]+)"', wide
    )


def test_failures_and_recoveries_are_drawn_in_their_interval(text: str) -> None:
    """A column counts what happened since the column before."""
    wide = _section(text, "Failures and what became of them").partition("</svg>")[0]
    assert [
        "0:00 to 0:10: 0 failures, 0 passed by themselves, 0 repaired",
        "0:10 to 0:20: 9 failures, 0 passed by themselves, 0 repaired",
        "0:20 to 0:30: 0 failures, 2 passed by themselves, 3 repaired",
    ] == re.findall(r"<title>([^<]+)</title>", wide)
    columns = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="[\d.]+" width="230.4"', wide)
    assert [("out", "362.8"), ("degraded", "650.8"), ("healthy", "650.8")] == columns


def test_a_slow_repair_has_its_timeline(text: str) -> None:
    """A repair's stages form a strip in proportion to their duration; its moments have times."""
    story = _section(text, "The slowest repairs")
    assert [
        ("10.00", "failure until noticed: 1.0 s"),
        ("30.00", "drain: 3.0 s"),
        ("60.00", "reboot: 6.0 s"),
    ] == re.findall(r'style="width:([\d.]+)%" title="([^"]+)"', story)
    assert [("0:12", "the machine fails"), ("0:22", "replace done")] == re.findall(
        r'<li><span class="soft">([\d:]+)</span><span>([^<]+)</span></li>', story
    )
    assert "XID 79: the GPU fell off the bus" in story


def test_tiles_and_tables_have_the_figures(text: str) -> None:
    """Costs, budgets and the kinds of repairs."""
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text.partition("<body>")[2]))
    for each in (
        "90.00 % of wanted node time in service",
        "9 failures, 2 passed by themselves",
        "3 nodes repaired, 1 under way",
        "10 s from failure to filled place, median; p99 12 s",
        "4 nodes healthy at the worst moment",
        "$1,234 paid, $12 of it while out of service",
        "away zone z network 0:15 10 s 4",
        "p 10 2 2 3 20 s 1 \u00d7 wave 11 s",
        "reboot: 1 done · replace: 2 done, 1 under way",
        "the longest chain had 2 links, the largest 3 failures",
    ):
        assert each in words


def test_every_part_has_a_colour(text: str) -> None:
    """The page's style sheet has the style of each stage, for light and dark."""
    styles = set(re.findall(r"\.(stage-\w+) \{", text))
    assert {f"stage-{number}" for number in range(len(set(html_report.STAGES.values())))} <= styles
    assert "stage-other" in styles
    for variable in set(re.findall(r"background: var\((--s\d+)\)", text)):
        assert 2 == len(re.findall(rf"{variable}: #", text)), variable


def test_a_node_has_its_strip_and_its_moments(text: str) -> None:
    """States in proportion to their time, failures as marks, and everything in order of time."""
    nodes = _section(text, "Every node")
    first, second = re.findall(r"<details.*?</details>", nodes, re.DOTALL)
    assert [
        ("gone", "10.00", "gone: 3.0 s"),
        ("starting", "10.00", "starting: 3.0 s"),
        ("healthy", "20.00", "in service, healthy: 6.0 s"),
        ("out", "40.00", "out of service: 12 s"),
        ("gone", "20.00", "gone: 6.0 s"),
    ] == re.findall(r'<span class="(\w+)" style="width:([\d.]+)%" title="([^"]+)"', first)
    assert ["40.00"] == re.findall(r'<i style="left:([\d.]+)%">', first)
    assert [
        ("0:03", "starting"),
        ("0:06", "in service, healthy"),
        ("0:12", "out of service"),
        ("0:12", "fails: XID 79"),
        ("0:12", "judged unhealthy: XID 79"),
        ("0:24", "gone"),
    ] == re.findall(r'<li><span class="soft">([\d:]+)</span><span>([^<]+)</span></li>', first)
    assert "and 2 more" in first
    assert "fails" not in second
    assert "1,200 more nodes are not listed" in nodes


def test_every_filter_shows_the_rows_of_its_style(text: str) -> None:
    """A style of each option is of the rows that it names; there is no script."""
    nodes = _section(text, "Every node")
    styles = re.findall(r'<details class="row ([^"]+)"', nodes)
    rules = dict(re.findall(r"\.list:has\(#([\w-]+):checked\) \.row:not\(\.([\w-]+)\)", text))
    options = re.findall(r'name="([\w-]+)" id="([\w-]+)"( checked)?>([^<]+)</label>', nodes)
    assert {"state", "had", "region", "provider"} == {group for group, *_ in options}
    shown = {
        name: [number for number, each in enumerate(styles) if rules[key] in each.split()]
        for _, key, _, name in options
        if key in rules
    }
    assert {"gone": [0], "in service, healthy": [1], "failures": [0], "neither": [1]}.items() <= (
        shown.items()
    )
    assert {"east": [0], "west": [1], "gcp": [0], "aws": [1]}.items() <= shown.items()
    assert 4 == sum(bool(checked) for *_, checked, _ in options)
    assert "<script" not in text


def test_a_region_has_its_chart_and_its_zones(text: str) -> None:
    """Each with what its nodes are at the end."""
    regions = _section(text, "Regions and zones")
    assert 'aria-label="Nodes by state over time in east"' in regions
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", regions))
    assert "east all 5 3 1 1 0 2 4 2 east-a 5 3 1 1 0 2 4 2" in words


def test_the_page_needs_nothing_else(text: str) -> None:
    """No other file is asked for, and what to know about the run comes first."""
    assert not re.findall(r"""(?:src|href|url|@import)[=( ]""", text)
    assert "the breaker opened once" in _section(text, "What to know about this run")
