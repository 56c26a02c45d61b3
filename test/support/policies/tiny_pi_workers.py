"""Workers in whose processes pi0 and pi05 are small: LeRobot has two hard-coded sizes of them."""

import os
from pathlib import Path

import kairos_ros

SMALL = """\
import sys

if "kairos_ros.engine.worker" in sys.orig_argv:
    sys.path.insert(0, {support!r})
    from tiny_families.pi import small_pi

    small = small_pi()
    small.__enter__()
"""


def tiny_pi_workers(folder: Path) -> dict[str, str]:
    """The environment of such workers, or of the serving node that starts them; what Python runs
    first there is written to the folder."""
    (folder / "sitecustomize.py").write_text(SMALL.format(support=str(Path(__file__).parent)))
    package = Path(kairos_ros.__file__).parents[1]
    path = (str(folder), str(package), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HF_HUB_OFFLINE": "1"}
