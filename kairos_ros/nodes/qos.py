"""The QoS profiles of the whole stack, by what a topic is for.

| profile        | topics                              | reliability | durability      | depth |
|----------------|-------------------------------------|-------------|-----------------|-------|
| `EXCHANGE`     | `chunk_request`, `action_chunk`,    | reliable    | volatile        | 5     |
|                | verdicts, progress, plans           |             |                 |       |
| `ANNOUNCEMENT` | writers of `/kairos/*_status`       | reliable    | transient local | 1     |
| `ROSTER`       | readers of `/kairos/*_status`       | reliable    | transient local | 512   |
| `TELEMETRY`    | `execution_info`, `fleet_state`, …  | reliable    | volatile        | 1     |
| `EVENTS`       | `task_events`, `chunk_updates`, …   | reliable    | volatile        | 100   |
| `DIAGNOSTICS`  | `/diagnostics`                      | reliable    | volatile        | 10    |
| `SENSOR`       | `camera/KEY/compressed`             | best effort | volatile        | 1     |

Telemetry is offered as reliable because such a writer matches every reader (rviz, bags, `ros2 topic
echo`), and with a depth of one nothing old is ever resent.
"""

from rclpy.qos import QoSDurabilityPolicy, QoSHistoryPolicy, QoSProfile, QoSReliabilityPolicy


def _reliable(depth: int, durability: QoSDurabilityPolicy) -> QoSProfile:
    return QoSProfile(
        history=QoSHistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=QoSReliabilityPolicy.RELIABLE,
        durability=durability,
    )


EXCHANGE = _reliable(5, QoSDurabilityPolicy.VOLATILE)
"""Requests and their answers: nothing is lost, and nobody gets what was sent before they came."""

ANNOUNCEMENT = _reliable(1, QoSDurabilityPolicy.TRANSIENT_LOCAL)
"""A writer's newest sample, also for readers that start later."""

ROSTER = _reliable(512, QoSDurabilityPolicy.TRANSIENT_LOCAL)
"""Reads the announcements of many writers: the depth is shared by all of them, one sample each."""

TELEMETRY = _reliable(1, QoSDurabilityPolicy.VOLATILE)
"""State for people and tools, where only the newest sample matters."""

EVENTS = _reliable(100, QoSDurabilityPolicy.VOLATILE)
"""For bags and tools that want every one of them."""

DIAGNOSTICS = _reliable(10, QoSDurabilityPolicy.VOLATILE)
"""What diagnostic aggregators expect."""

SENSOR = QoSProfile(
    history=QoSHistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=QoSReliabilityPolicy.BEST_EFFORT,
    durability=QoSDurabilityPolicy.VOLATILE,
)
"""Pictures: the newest one or none; a late one is worth nothing."""
