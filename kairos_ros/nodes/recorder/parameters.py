"""Parameters of the recorder node."""

from kairos_ros.nodes.parameters import ParameterSpec
from kairos_ros.recording.metadata import VERSIONS

P = ParameterSpec
RECORDER_PARAMETERS = (
    P("out", "", "Folder of the new bag; empty: runs/bag_<date and time>."),
    P("topics", "", "Regular expression for whole topic names; empty: what the fleet says."),
    P("full_updates", False, "Record the updates of every sampler step, not only their lengths."),
    P("duration_s", 0.0, "End by itself after so many seconds; 0: never.", 0.0, 1e6),
    P(
        "metadata_version",
        max(VERSIONS),
        "Of metadata.yaml: 5 (Humble), 7 (Iron) or 9 (Jazzy and later).",
        min(VERSIONS),
        max(VERSIONS),
    ),
    P("compression", "none", "Of the chunks in the MCAP file.", choices=("none", "zstd")),
    P("queue_mb", 256.0, "Memory for what is not written yet; more is dropped.", 1.0, 65536.0),
    P("depth", 1000, "Messages per topic that wait for the recorder.", 1, 100_000),
    P("poll_s", 0.01, "Pause between two looks at all topics.", 0.001, 1.0),
    P("status_every_s", 5.0, "Seconds between two status lines.", 0.5, 3600.0),
)
