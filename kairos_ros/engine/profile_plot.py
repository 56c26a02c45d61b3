"""The picture of a profile: what batching costs a robot, and what it saves. Needs matplotlib."""

from pathlib import Path

from kairos_ros.core.profile import EngineProfile

OURS, BASELINE = "#0b7a75", "#9a9a9a"
"""As in the figures of runs."""


def plot_profile(profile: EngineProfile, file: Path) -> None:
    """Writes latency against batch size, with p10 to p90, beside one robot after the other."""
    from matplotlib.figure import Figure

    sizes = profile.batch_sizes
    p50, p10, p90 = (
        [1e3 * s for s in line] for line in (profile.p50_s, profile.p10_s, profile.p90_s)
    )
    best = profile.saturation_batch
    gain = best * profile.latency_s(1) / profile.latency_s(best)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(sizes, [p50[0] * b for b in sizes], "--", color=BASELINE, label="one after the other")
    axes.fill_between(sizes, p10, p90, color=OURS, alpha=0.2, lw=0, label="p10 to p90")
    axes.plot(sizes, p50, "o-", color=OURS, label="one batch, median")
    if profile.eager_p50_s:
        eager = [1e3 * s for s in profile.eager_p50_s]
        axes.plot(sizes, eager, "o-", color=BASELINE, label="one batch, not compiled")
    axes.axvline(best, color=OURS, lw=0.8, ls=":")
    axes.annotate(
        f"saturates at {best} ", (best, 0.02 * p50[0] * sizes[-1]), ha="right", color=OURS
    )
    axes.set(
        xlabel="robots in the batch",
        ylabel="latency (ms)",
        xticks=sizes,
        ylim=(0, None),
        title=f"A batch of {best} gives {gain:.1f} times the chunks per second of single requests",
    )
    axes.title.set_fontsize(11)
    axes.legend(frameon=False, loc="upper left")
    setting = f"{profile.policy_id}, {profile.dtype} on {profile.device}; {profile.machine}"
    figure.supxlabel(setting, fontsize=7, color="0.4")
    figure.savefig(file, dpi=150)
