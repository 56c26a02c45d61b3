"""The live view in the terminal, and the plain line for logs. Pure: `LiveFleet` in, text out."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kairos_ros.core.wire_check import TEXT_BYTES, printable
from kairos_ros.lab.testbed.live import LiveFleet, activity_of
from kairos_ros.lab.testbed.tiers import placement
from kairos_ros.telemetry.events import EngineReported, RobotScheduled
from kairos_ros.telemetry.fleet_view import RobotView

OURS = "dark_cyan"
_STYLES = {"executing": OURS, "holding": "red", "idle": "bright_black", "down": "bold red"}
_TIERS = {"edge": OURS, "cloud": "orange3"}
FASTEST_MBPS = 1000
_BUFFER_CELLS = 10
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def render(fleet: LiveFleet, width: int) -> Group:
    """The whole view for a terminal of `width` columns (80 and up)."""
    parts: list[RenderableType] = [
        _headline(fleet),
        _robots(fleet, wide=width >= 125),
        *(_engine(engine) for engine in fleet.engines),
        *([_link(fleet)] if fleet.link else []),
        _queue(fleet),
        Padding(_decisions(fleet), (1, 0, 0, 0)),
        *(Text(notice, style="bold red") for notice in fleet.notices),
    ]
    return Group(*parts)


def line(fleet: LiveFleet) -> str:
    """The same in one line, for output that is no terminal."""
    engines = ", ".join(
        f"{e.name} {e.state} batch {e.batch} load {e.load:.0%}{_link_line(e)}"
        for e in fleet.engines
    )
    moving = [r for r in fleet.robots.values() if activity_of(r) == "executing"]
    tiers = Counter(printable(r.chunk.tier) for r in moving if r.chunk)
    served = ", ".join(f"{count} from {tier}" for tier, count in sorted(tiers.items()))
    served = f" ({served})" if fleet.link and served else ""
    waiting = f", {fleet.tasks_waiting} tasks wait for a robot" if fleet.tasks_waiting else ""
    return (
        f"{fleet.phase}: {fleet.done} tasks done, {fleet.succeeded} succeeded; "
        f"{fleet.doing('executing')} executing{served}, "
        f"{fleet.doing('holding')} holding{waiting}; "
        f"queue {fleet.queue}; {engines or 'no engine'}; "
        + (f"{fleet.left_s:.0f} s left" if fleet.left_s > 0 else "the last tasks finish")
    )


def bar(share: float, cells: int) -> str:
    """A bar of `cells` characters, filled to `share` in 0..1."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(cells)


def _headline(fleet: LiveFleet) -> Text:
    minutes, seconds = divmod(round(max(fleet.left_s, 0.0)), 60)
    left = f"   {minutes}:{seconds:02d} left" if fleet.left_s > 0 else "   the last tasks finish"
    return Text.assemble(
        (fleet.phase, "bold"),
        ("  ", ""),
        (f"{fleet.done} tasks done, {fleet.succeeded} succeeded", f"bold {OURS}"),
        f"   {fleet.scheduling} · {fleet.horizon}",
        (left, "bold"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _robots(fleet: LiveFleet, *, wide: bool) -> Table:
    tiers = any(engine.remote for engine in fleet.engines)
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    table.add_column("robot", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("task", no_wrap=True, overflow="ellipsis", ratio=3, min_width=20)
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column("horizon", justify="right", no_wrap=True)
    if tiers:
        table.add_column("from", no_wrap=True)
    if wide:
        table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=4, style="bright_black")
    table.add_column("buffer, 1 s", no_wrap=True, min_width=_BUFFER_CELLS)
    table.add_column("wait", justify="right", no_wrap=True)
    table.add_column("stalled", justify="right", no_wrap=True)
    table.add_column("done", justify="right", no_wrap=True)
    for name, robot in fleet.robots.items():
        done = f"{fleet.successes[name]}/{fleet.finished[name]}"
        table.add_row(name, *_cells(robot, wide=wide, tiers=tiers), done)
    return table


def _cells(robot: RobotView, *, wide: bool, tiers: bool) -> list[Text | str]:
    status, activity = robot.status, activity_of(robot)
    state = Text(activity or "starting", style=_STYLES.get(activity or "", ""))
    if status is None or activity not in ("executing", "holding"):
        return [state, *[""] * (6 + wide + tiers)]
    scheduled, chunk = robot.scheduled or RobotScheduled(), robot.chunk
    tier = printable(chunk.tier) if chunk else ""
    placed = placement(printable(chunk.reason, TEXT_BYTES)) if chunk else ""
    why = placed if tiers else scheduled.horizon_reason
    asks = "▸" if scheduled.running else "·" if scheduled.pending else " "
    return [
        state,
        Text(printable(status.instruction)),
        f"{status.round}{asks}",
        str(scheduled.horizon),
        *([Text(tier, style=_TIERS.get(tier, ""))] if tiers else []),
        *([Text(why)] if wide else []),
        Text(bar(status.buffered_s, _BUFFER_CELLS), style=f"{OURS} on grey15"),
        f"{scheduled.wait_ratio:.0%}",
        Text(f"{status.stalled_s:.1f} s", style="red" if status.stalled_s >= 1 else ""),
    ]


def _engine(engine: EngineReported) -> Padding:
    healthy = engine.state in ("ready", "standby", "busy")
    text = Text.assemble(
        ("engine ", "bright_black"),
        f"{engine.name} ({engine.tier}) ",
        (f"{engine.state:<8}", OURS if healthy else "bold yellow"),
        (" batch ", "bright_black"),
        f"{engine.batch:>2}/{engine.max_batch} ",
        (bar(engine.batch / max(engine.max_batch, 1), 8), f"{OURS} on grey15"),
        (" load ", "bright_black"),
        f"{engine.load:>4.0%} ",
        (bar(engine.load, 8), f"{OURS} on grey15"),
        (" batches ", "bright_black"),
        str(engine.batches),
        (" restarts ", "bright_black"),
        (str(engine.restarts), "bold red" if engine.restarts else ""),
        no_wrap=True,
        overflow="ellipsis",
    )
    if engine.remote:
        text.append(_link_line(engine))
    if engine.error and not healthy:
        text.append(f"  {engine.error}", style="red")
    return Padding(text, (1, 0, 0, 0))


def _link_line(engine: EngineReported) -> str:
    """What the serving node has measured of the link to an engine elsewhere."""
    if not engine.remote:
        return ""
    fast = engine.mbps > FASTEST_MBPS  # uploads this small say no more than that
    rate = f"over {FASTEST_MBPS}" if fast else f"{engine.mbps:.0f}"
    return f" rtt {1e3 * engine.rtt_s:.0f} ms, {rate} Mbit/s, {engine.in_flight} in flight"


def _link(fleet: LiveFleet) -> Text:
    style = "bold red" if fleet.link.startswith("CUT") else ""
    return Text.assemble(("link   ", "bright_black"), (f"emulated: {fleet.link}", style))


def _queue(fleet: LiveFleet) -> Text:
    text = Text.assemble(
        ("queue  ", "bright_black"),
        f"{fleet.queue} requests · {fleet.requests_per_s:.1f} requests/s · "
        f"{fleet.chunks_per_s:.1f} chunks/s",
        no_wrap=True,
        overflow="ellipsis",
    )
    if fleet.tasks_waiting:
        text.append(f" · {fleet.tasks_waiting} tasks wait for a free robot")
    counted = [f"{n} {value}" for n, value in fleet.counters.items() if value and n != "chunks"]
    if counted:
        text.append(f" · {', '.join(counted)}", style="yellow")
    return text


def _decisions(fleet: LiveFleet) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bright_black")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    rows = [*fleet.decisions][::-1]
    rows += [("", "")] * ((fleet.decisions.maxlen or 0) - len(rows))  # keeps the view's height
    for i, (robot, reason) in enumerate(rows):
        table.add_row("decided" if i == 0 else "", Text(f"{robot}: {reason}" if robot else ""))
    return table
