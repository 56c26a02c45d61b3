"""`kairos evaluate --scenes`: what its options mean, and what it prints."""

import ast
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.extras import require

HORIZONS = "static:10,static:20,static:30,static:50"
MOST_IN_A_BATCH = 64


def evaluate_on_scenes(
    policy: Path,
    scenes: str,
    horizons: str,
    out: Path | None,
    *,
    episodes: int,
    first_seed: int,
    lead: int,
    jpeg: bool,
    rename: Sequence[str],
    scene_option: Sequence[str],
    processes: int,
    arms: int,
    max_actions: int,
    device: str,
    dtype: str,
) -> None:
    """Runs what is asked for; prints a line per cell and a table. Raises ConfigError for options
    that are wrong, and PolicyError for a policy that does not load or does not fit the scenes."""
    require("lerobot", "gymnasium", "matplotlib")
    from rich.console import Console
    from rich.table import Table

    from kairos_ros.engine.interface import EngineOptions
    from kairos_ros.lab.scenes.evaluate import SceneSettings, evaluate_scenes, rows
    from kairos_ros.lab.scenes.trial import horizons_of
    from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen

    render_off_screen()  # before anything imports MuJoCo
    processes = min(processes, episodes)
    batch = min(MOST_IN_A_BATCH, processes * arms)
    settings = SceneSettings(
        EngineOptions(str(policy), device, dtype, max_batch=batch),
        tuple(part.strip() for part in scenes.split(",") if part.strip()),
        horizons_of(horizons or HORIZONS),
        episodes,
        first_seed,
        lead,
        not jpeg,
        dict(_pair(text, "--rename") for text in rename),
        {key: _value(text) for key, text in (_pair(one, "--scene-option") for one in scene_option)},
        max_actions,
        processes,
        arms,
    )
    folder = out or Path("runs", "evaluate", policy.name)
    line = _Line()
    try:
        result = evaluate_scenes(settings, folder, line.over, line.show)
    except KeyboardInterrupt:
        line.over(f"stopped; the same command continues ({folder})")
        raise typer.Exit(130) from None
    table = Table(
        "horizon", "success", "95 %", "actions per round", "rounds per episode", title=scenes
    )
    for row in rows(result):
        table.add_row(*row)
    line.over("")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    typer.echo(f"written to {folder}")


class _Line:
    """Progress in one line, which is written over at a terminal; elsewhere one every 30 s."""

    EVERY_S = 30.0

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown_s = 0.0

    def show(self, text: str) -> None:
        if self._terminal:
            typer.echo(f"\r\x1b[K{text}", err=True, nl=False)
        elif time.monotonic() - self._shown_s > self.EVERY_S:
            self._shown_s = time.monotonic()
            typer.echo(text, err=True)

    def over(self, text: str) -> None:
        """`text` stays."""
        if self._terminal:
            typer.echo("\r\x1b[K", err=True, nl=False)
        if text:
            typer.echo(text)


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise ConfigError(f"{option} {text!r}: write it as KEY=VALUE")
    return key, value


def _value(text: str) -> Any:
    """A number, True, False or None as such; everything else as text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
