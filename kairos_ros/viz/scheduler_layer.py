"""The board behind the fleet: the queue, and every engine with its load and its batch."""

from kairos_ros.telemetry.events import EngineReported
from kairos_ros.viz import colours
from kairos_ros.viz.scene import Scene, Serving
from kairos_ros.viz.shape import Colour, Shape, ShapeBuilder

WIDTH_M = 4.4
ROW_M = 0.36
FOOT_M = 0.55
"""Height of the lowest row."""
LONGEST_QUEUE = 24
_STATES: dict[str, Colour] = {
    "not loaded": colours.IDLE,
    "loading": colours.WAITING,
    "ending": colours.WAITING,
    "starting": colours.WAITING,
    "draining": colours.WAITING,
    "down": colours.UNSAFE,
    "unreachable": colours.UNSAFE,
    "refused": colours.UNSAFE,
}


def scheduler(scene: Scene) -> list[Shape]:
    """A wall at `scene.back` that faces +y, as the arms do. Of a silent serving node nothing but
    that is known."""
    title = ShapeBuilder("serving", scene.frame)
    rows = ShapeBuilder("engines", scene.frame)
    queue = ShapeBuilder("queue", scene.frame)
    serving, y = scene.serving, scene.back
    engines = serving.engines if serving and not serving.silent else ()
    top = FOOT_M + ROW_M * (len(engines) + 1)
    shapes = [
        title.box(
            0,
            (0.0, y - 0.03, (top + 0.55) / 2 + 0.05),
            (WIDTH_M + 0.5, 0.02, top + 0.45),
            colours.FLOOR,
        ),
        title.label(1, (0.0, y + 0.02, top + 0.28), 0.17, headline(scene), _ink(serving)),
    ]
    if serving is None or serving.silent:
        return shapes
    policies = f"{serving.scheduling} · {serving.horizon}"
    shapes.append(title.label(2, (0.0, y + 0.02, top + 0.06), 0.11, policies, colours.FAINT))
    shapes += _row(
        queue,
        0,
        y,
        FOOT_M + ROW_M * len(engines),
        f"queue {serving.queue}",
        serving.queue / LONGEST_QUEUE,
        colours.QUEUE,
    )
    for number, engine in enumerate(engines):
        height = FOOT_M + ROW_M * (len(engines) - 1 - number)
        shapes += _row(
            rows, 10 * number, y, height, engine_text(engine), engine.load, engine_colour(engine)
        )
    return shapes


def headline(scene: Scene) -> str:
    """Who is there, and how fast they are served."""
    robots = f"{len(scene.robots)} robot{'s' if len(scene.robots) != 1 else ''}"
    serving = scene.serving
    if serving is None:
        return f"{robots} · no serving node"
    if serving.silent:
        return f"{robots} · serving node silent for {serving.ago_s:.0f} s"
    if not serving.active:
        return f"{robots} · serving node not active"
    return f"{robots} · {serving.chunks_per_s:.1f} chunks/s"


def engine_text(engine: EngineReported) -> str:
    parts = [f"{engine.name} {engine.state}", f"load {100 * engine.load:.0f} %"]
    if engine.batch:
        parts.append(f"batch {engine.batch} of {engine.max_batch}")
    if engine.rtt_s > 0:
        parts.append(f"{1e3 * engine.rtt_s:.0f} ms away")
    return " · ".join(parts)


def engine_colour(engine: EngineReported) -> Colour:
    return _STATES.get(engine.state, colours.CLOUD if engine.tier == "cloud" else colours.EDGE)


def _ink(serving: Serving | None) -> Colour:
    well = serving is not None and serving.active and not serving.silent
    return colours.INK if well else colours.UNSAFE


def _row(
    builder: ShapeBuilder,
    first: int,
    y: float,
    height: float,
    text: str,
    share: float,
    colour: Colour,
) -> list[Shape]:
    """A text over a bar that fills from the viewer's left (+x)."""
    filled = round(max(0.004, min(1.0, share)) * WIDTH_M, 3)
    return [
        builder.label(first, (0.0, y + 0.02, height + 0.13), 0.11, text, colours.INK),
        builder.box(first + 1, (0.0, y, height), (WIDTH_M, 0.02, 0.08), colours.EMPTY),
        builder.box(
            first + 2,
            ((WIDTH_M - filled) / 2, y + 0.01, height),
            (filled, 0.03, 0.085),
            colour,
        ),
    ]
