"""One pass over a bag: the messages of a fleet as plain events, in order of time."""

from collections.abc import Iterator

from kairos_ros.core.errors import WireError
from kairos_ros.recording.reader import Bag
from kairos_ros.telemetry.decode import decode
from kairos_ros.telemetry.events import Event

TASKS = tuple(
    f"kairos_ros/msg/{name}"
    for name in ("RobotStatus", "ChunkRequest", "ActionChunk", "ChunkUpdates", "TaskEvent")
)
"""What runs and traces are made of."""


def events(bag: Bag, kinds: tuple[str, ...] = TASKS) -> Iterator[Event]:
    """What the fleet said in messages of these types, with times since the bag's first message.

    Messages that make no sense are left out and counted by `bag`. Raises ConfigError for damage.
    """
    for message in bag.messages(kinds):
        try:
            event = decode(message.type, message.topic, message.body, message.at_s, bag.names)
        except (AttributeError, TypeError, ValueError, WireError) as error:
            bag.leave_out(message, str(error))  # of another definition than ours, or nonsense
            continue
        if event is not None:
            yield event
