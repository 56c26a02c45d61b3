"""`kairos horizon`: where a chunk is cut, and the signal that says so (Dai et al. §3.1)."""

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.horizons.policies import (
    Horizon,
    HorizonContext,
    HorizonPolicy,
    decide,
    parse_horizon,
    update_ratio,
)
from kairos_ros.document.text_file import check_regular
from kairos_ros.engine.policies.calibration_file import read_calibration

Floats = NDArray[np.floating]


def judge(
    arrays: dict[str, Floats],
    policy: HorizonPolicy,
    task: str = "",
    round_: int = 0,
    name: str = "",
) -> list[tuple[Horizon, Floats | None]]:
    """Horizon and update ratio [N] of each batch row, by `policy`, which `name` names.

    arrays: updates [K, N, D] or [K, B, N, D]; chunk, tail and state, if a policy reads them,
    [N, D], [M, D] and [S], or with a leading B; scale [D], if the chunk is not normalised. task,
    round_: what calibrated policies look up. The ratio is None
    for less than two sampler steps, which have none. Raises KairosError.
    """
    if "updates" not in arrays:
        raise ConfigError(f"there is no array 'updates', only {sorted(arrays) or 'nothing'}")
    updates = arrays["updates"]
    if updates.ndim not in (3, 4):
        raise ConfigError(f"updates must be [K,N,D] or [K,B,N,D], not of shape {updates.shape}")
    if not np.issubdtype(updates.dtype, np.number) or np.iscomplexobj(updates):
        raise ConfigError(f"updates must be real numbers, not {updates.dtype}")
    rows = updates[:, None] if updates.ndim == 3 else updates
    steps, batch, actions, dims = rows.shape
    chunks = _rows(arrays, "chunk", batch, np.zeros((batch, actions, dims)))
    tails = _rows(arrays, "tail", batch, [None] * batch)
    states = np.atleast_2d(arrays["state"]) if "state" in arrays else [None] * batch
    if len(states) != batch:
        raise ConfigError(f"state has {len(states)} row(s), but updates hold {batch} batch row(s)")
    contexts = [
        HorizonContext(task, round_, tails[b], arrays.get("scale"), state=states[b])
        for b in range(batch)
    ]
    return [
        (
            decide(policy, name, rows[:, b], chunks[b], context),
            update_ratio(rows[:, b]) if steps > 1 else None,
        )
        for b, context in enumerate(contexts)
    ]


def horizon_command(
    file: Annotated[
        Path, typer.Argument(help="Array 'updates', [K,N,D] or [K,B,N,D].", metavar="FILE.npz")
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="Horizon policy: confidence, static, tail_agreement, a plugin, or, with "
            "--calibration, calibrated or static:tuned."
        ),
    ] = "confidence",
    t: Annotated[float | None, typer.Option(help="Tolerance of the policy.")] = None,
    h_min: Annotated[int | None, typer.Option(help="Fewest actions to execute.")] = None,
    h: Annotated[int | None, typer.Option(help="Actions that static executes.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="JSON of `kairos calibrate`.", metavar="FILE")
    ] = None,
    task: Annotated[str, typer.Option(help="The chunk's task, as in the calibration.")] = "",
    round_: Annotated[
        int, typer.Option("--round", min=0, help="Of the task, counted from 1; 0: not known.")
    ] = 0,
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
    ] = "table",
) -> None:
    """Cut a recorded chunk as the server would, and show the signal per action."""
    options = {"t": t, "h_min": h_min, "h": h}
    given = ",".join(f"{name}={value}" for name, value in options.items() if value is not None)
    spec = policy + ((("," if ":" in policy else ":") + given) if given else "")
    try:
        known = read_calibration(calibration).policies() if calibration else None
        judged = judge(_load(file), parse_horizon(spec, known), task, round_, spec)
    except (OSError, ValueError, zipfile.BadZipFile, KairosError) as error:
        typer.echo(f"error: {file}: {error}", err=True)
        raise typer.Exit(2) from None
    if format_ == "json":
        typer.echo(json.dumps(_json(judged)))
    else:
        _print_tables(judged, Console())


def _load(file: Path) -> dict[str, Floats]:
    check_regular(file)
    with file.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ConfigError("this is no .npz file; write one with np.savez(file, updates=...)")
        with np.load(stream, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}


def _rows(arrays: dict[str, Floats], name: str, batch: int, absent: Any) -> Any:
    if name not in arrays:
        return absent
    array = arrays[name]
    rows = array[None] if array.ndim == 2 else array
    if rows.ndim != 3 or len(rows) != batch:
        raise ConfigError(f"{name} has shape {array.shape}, but updates hold {batch} batch row(s)")
    return rows


def _json(judged: list[tuple[Horizon, Floats | None]]) -> dict[str, Any]:
    """JSON has no infinity: a ratio without any earlier movement is null."""
    return {
        "horizon": [horizon.length for horizon, _ in judged],
        "ratio": [
            None if ratio is None else [r if np.isfinite(r) else None for r in ratio.tolist()]
            for _, ratio in judged
        ],
        "reason": [horizon.reason for horizon, _ in judged],
    }


def _print_tables(judged: list[tuple[Horizon, Floats | None]], console: Console) -> None:
    for row, (horizon, ratio) in enumerate(judged):
        name = f"row {row}: " if len(judged) > 1 else ""
        console.print(f"{name}[bold]H = {horizon.length}[/] of {len(horizon.confidence)}")
        console.print(f"  {horizon.reason}", highlight=False)
        table = Table("action", "last update / mean earlier one", "confidence", "executed")
        for i, confidence in enumerate(horizon.confidence):
            shown = "-" if ratio is None else f"{ratio[i]:.3f}"
            table.add_row(str(i + 1), shown, f"{confidence:.2f}", "yes" * (i < horizon.length))
        console.print(table)
