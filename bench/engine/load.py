"""What loading a policy costs, ours against LeRobot's own: `python -m bench load`.

A pi05 with random weights is saved once, in float32. Fresh processes then load it, one at a time
and alternating: ours (`load_policy`, as an engine worker does) and LeRobot's (`from_pretrained` and
`make_pre_post_processors`). Both load the same file, in float32 and in bfloat16, with one thread.
What is counted begins when everything is imported, and ends when the policy and its processors are
ready. Ours contains verifying every weight against the file, the fingerprint of the folder, and its
checks; LeRobot's has none of these. Ours skips the random initialisation that the file replaces.

Memory is the peak of RssAnon (what a process allocates, without the pages of the file that it maps
into memory), sampled every 2 ms, minus RssAnon at the start. It is given as a multiple of the
parameters' size in memory once the policy is loaded.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.engine.load_side import DTYPES, SIDES, SIZES
from bench.support.arguments import positive_int
from bench.support.servers import ROOT

MIB = 1 << 20


def child(*arguments: str | Path) -> str:
    """What a fresh `bench.engine.load_side` prints last."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            filter(
                None,
                (str(ROOT / "test" / "support" / "policies"), os.environ.get("PYTHONPATH", "")),
            )
        ),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "bench.engine.load_side", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


def table_of(found: Mapping[tuple[str, str], list[dict[str, Any]]]) -> Table:
    """Medians over the repeats, a row for each dtype and side."""
    table = Table(title="loading a pi05 with random weights, medians")
    columns = ("CPU s", "of it verifying", "wall s", "least, most", "peak MiB", "peak / weights")
    table.add_column("dtype")
    table.add_column("side")
    for column in columns:
        table.add_column(column, justify="right")
    for dtype in DTYPES:
        for side in SIDES:
            runs = found[dtype, side]
            walls = [run["wall_s"] for run in runs]
            peak, weights = (median(run[key] for run in runs) for key in ("peak_b", "weights_b"))
            verifying = [s for run in runs if (s := run["verifying_cpu_s"]) is not None]
            table.add_row(
                dtype,
                side,
                f"{median(run['cpu_s'] for run in runs):.2f}",
                f"{median(verifying):.2f}" if verifying else "none",
                f"{median(walls):.2f}",
                f"{min(walls):.2f}, {max(walls):.2f}",
                f"{peak / MIB:.0f}",
                f"{peak / weights:.2f}",
            )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench load", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--parameters",
        choices=SIZES,
        default="small",
        help="small: 170 million, medium: 330 million [small]",
    )
    parser.add_argument(
        "--repeats", type=positive_int, default=3, help="loads per side and dtype [3]"
    )
    parser.add_argument("--json", type=Path, help="everything measured, written there")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="kairos-load-") as folder:
        console.log(f"saving a policy of size {arguments.parameters}")
        saved = json.loads(child("save", folder, "--parameters", arguments.parameters))
        console.log(f"{saved['parameters'] / 1e6:.0f} million parameters, float32 on disk")
        for repeat in range(arguments.repeats):
            for dtype in DTYPES:
                for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                    options = ("--parameters", arguments.parameters, "--dtype", dtype)
                    run = json.loads(child(side, folder, *options))
                    found.setdefault((dtype, side), []).append(run)
                    console.log(
                        f"round {repeat + 1}, {dtype}, {side}: {run['wall_s']:.2f} s, "
                        f"{run['peak_b'] / MIB:.0f} MiB"
                    )
    console.print(table_of(found))
    console.print(
        "Assumed: the file is in the page cache, one thread, imports not counted. On a busy "
        "machine CPU seconds say more than wall seconds."
    )
    if arguments.json:
        runs = [{"dtype": d, "side": s, "runs": runs} for (d, s), runs in found.items()]
        data = {"load_average_at_the_end": os.getloadavg(), **saved, "loads": runs}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
