"""How a recording goes, for people."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """How a recording goes."""

    topics: int
    messages: int
    megabytes: float
    """Of message data."""
    megabytes_per_s: float
    dropped: Mapping[str, int]
    """By topic: the queue to the disk was full."""
    lost: Mapping[str, int]
    """By topic: sent, but never came."""
    others: Mapping[str, str]
    """By topic: publishers of other types than the recorded one, also those that have gone."""
    refused: Mapping[str, str]
    """By topic: why it is not recorded."""

    def __str__(self) -> str:
        text = (
            f"{self.megabytes:.1f} MB, {self.messages} messages of {self.topics} topics, "
            f"{self.megabytes_per_s:.2f} MB/s, {sum(self.dropped.values())} dropped, "
            f"{sum(self.lost.values())} lost"
        )
        worst = Counter(self.dropped) + Counter(self.lost)
        if worst:
            text += f" ({', '.join(f'{n} of {topic}' for topic, n in worst.most_common(3))})"
        if self.others:
            text += f"; not recorded are publishers of other types: {listed(self.others)}"
        if self.refused:
            text += f"; topics that are not recorded: {listed(self.refused)}"
        return text


def listed(topics: Mapping[str, str]) -> str:
    told = [f"{name} ({text})" for name, text in list(topics.items())[:3]]
    return ", ".join(told) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
