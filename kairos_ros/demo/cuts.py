"""When the link to the cloud is cut during a demo."""

from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cut:
    """Seconds since the run began."""

    from_s: float
    for_s: float

    def holds_at(self, now_s: float) -> bool:
        return self.from_s <= now_s < self.from_s + self.for_s


def parse_cuts(text: str) -> tuple[Cut, ...]:
    """Reads `20:5` or `20:5,60:30`, seconds from:for. Raises ConfigError."""
    try:
        pairs = [part.split(":") for part in text.split(",")] if text else []
        cuts = tuple(Cut(float(from_s), float(for_s)) for from_s, for_s in pairs)
    except ValueError:
        cuts = (Cut(-1.0, 0.0),)
    if not all(0 <= cut.from_s < 86400 and 0 < cut.for_s < 86400 for cut in cuts):
        raise ConfigError(
            f"cloud cut {text!r}: write FROM:FOR in seconds since robots get tasks, for example "
            "20:5, several separated by commas"
        )
    return cuts
