"""The picture of one task: where each joint was, against the chunks that it was sent."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kairos_ros.lab.demos.arm_recording import ArmRecording
from kairos_ros.lab.metrics.figure_style import BASELINE, INK, OURS
from kairos_ros.robot.adapters.contract.contract import ContractJoint, RobotContract
from kairos_ros.robot.adapters.contract.joint_units import JointUnits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 2


def draw_task(path: Path, title: str, contract: RobotContract, recording: ArmRecording) -> None:
    """One panel for each joint, as PNG: chunks from the moment of their observation on."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    joints = contract.joints
    rows = -(-len(joints) // COLUMNS)
    figure, axes = pyplot.subplots(
        rows, COLUMNS, figsize=(12, 1.2 + 1.6 * rows), layout="constrained", sharex=True
    )
    for i, (joint, ax) in enumerate(zip(joints, axes.T.flat, strict=False)):
        _panel(ax, i, joint, contract, recording)
    for ax in axes[-1]:
        ax.set_xlabel("time since the task was given (s)")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="upper right", frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(
    ax: "Axes", i: int, joint: ContractJoint, contract: RobotContract, recording: ArmRecording
) -> None:
    measured = [(at_s, positions[joint.name]) for at_s, positions in recording.positions]
    ax.plot(*zip(*measured, strict=True), color=INK, linewidth=1.6, label="measured", zorder=3)
    units = JointUnits(contract.joints)
    low, high = min(at for _, at in measured), max(at for _, at in measured)
    for n, chunk in enumerate(recording.chunks):
        targets = np.stack([units.positions(action) for action in chunk.actions])[:, i]
        times = chunk.at_s + np.arange(len(targets)) / contract.control_rate_hz
        label = "a chunk's targets, from its observation on" if n == 0 else None
        ax.plot(
            times,
            targets,
            "-o",
            color=OURS,
            linewidth=1.1,
            markersize=3.5,
            markevery=[0],
            label=label,
        )
        low, high = min(low, targets.min()), max(high, targets.max())
    margin = max(0.05 * (high - low), 0.002)
    ax.set_ylim(low - margin, high + 2 * margin)
    for limit in (joint.lower, joint.upper):
        ax.axhline(limit, color=BASELINE, linestyle=":", linewidth=1.0)
    ax.set_ylabel(f"{joint.name}\n({'rad' if joint.kind == 'revolute' else 'm'})", fontsize=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
