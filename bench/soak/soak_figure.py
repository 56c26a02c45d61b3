"""The picture of a soak."""

from pathlib import Path
from typing import Any

from bench.soak.soak_outcome import CUT, HOST, Outcome
from bench.support.process_growth import Sample
from kairos_ros.lab.metrics.figure_style import BASELINE, FAINT_INK, OTHERS, OURS, STALLED

COLOURS = {
    "serving node": OURS,
    "edge worker": OTHERS[0],
    "cloud worker": OTHERS[1],
    "link": OTHERS[2],
}
"""All others, which are robots, are grey."""


def plot(path: Path, outcome: Outcome) -> Path:
    """Round trips, who served, and memory, descriptors and threads of every process over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(5, 1, figsize=(9, 12), sharex=True)
    totals = outcome.totals
    lost = f"{totals.unanswered} lost, {totals.wrong} wrong"
    found = [one for one in outcome.problems() if " grows by " in one]
    flat = f"{len(found)} processes or measures grow" if found else "no process grows"
    minutes = outcome.intervals[-1].at_s / 60
    title = f"{totals.requests} requests in {minutes:.0f} minutes: {lost}; {flat}"
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold")
    about = (
        "dashed: a worker killed, a link cut, a host of robots lost; "
        "grey: processes of robots; robots, servers and other work share two cores"
    )
    figure.text(0.02, 0.955, about, fontsize=9, color=FAINT_INK)
    figure.subplots_adjust(top=0.93, bottom=0.05, left=0.1, right=0.98, hspace=0.14)
    trips, shares, *measures = rows
    at_min = [interval.at_s / 60 for interval in outcome.intervals]
    written = [interval.written() for interval in outcome.intervals]
    for q, style in ((99, ":"), (50, "-")):
        values = [interval[f"p{q}_ms"] for interval in written]
        trips.plot(at_min, values, style, color=OURS, label=f"p{q}")
    trips.set(ylabel="round trip (ms)", yscale="log")
    trips.legend(frameon=False, loc="upper right")
    chunks = [max(1, interval["chunks"]) for interval in written]
    cloud = [100 * i["cloud"] / n for i, n in zip(written, chunks, strict=True)]
    shares.plot(at_min, cloud, color=COLOURS["cloud worker"])
    shares.set(ylabel="served by the cloud (%)", ylim=(0, 105))
    for axis, measure, label in zip(
        measures,
        ("memory_mb", "descriptors", "threads"),
        ("memory (MB)", "file descriptors", "threads"),
        strict=True,
    ):
        for name, samples in outcome.processes.items():
            _lives(axis, name, samples, measure)
        axis.set(ylabel=label, ylim=(0, None))
    measures[0].legend(frameon=False, loc="center right")
    rows[-1].set(xlabel="minutes", xlim=(0, minutes))
    for axis in rows:
        axis.spines[["top", "right"]].set_visible(False)
        for fault in outcome.happened:
            colour = {CUT: STALLED, HOST: FAINT_INK}.get(fault.name, OTHERS[0])
            axis.axvline(fault.at_s / 60, color=colour, linestyle="--", linewidth=0.6, zorder=0)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _lives(axis: Any, name: str, samples: list[Sample], measure: str) -> None:
    """A line for each life of a process."""
    colour = COLOURS.get(name, BASELINE)
    label = name if name in COLOURS else None
    for pid in dict.fromkeys(one.pid for one in samples):
        life = [one for one in samples if one.pid == pid]
        times = [one.at_s / 60 for one in life]
        values = [getattr(one, measure) for one in life]
        axis.plot(times, values, color=colour, label=label, linewidth=1.0)
        label = None
