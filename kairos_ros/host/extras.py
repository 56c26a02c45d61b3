"""The packages that only some hosts need, by the extra of pyproject.toml that brings them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from kairos_ros.core.errors import ConfigError

EXTRAS = {
    "engine": ("torch", "lerobot", "transformers"),
    "sim": ("mujoco", "gymnasium", "metaworld"),
    "vlm": ("httpx", "safetensors", "PIL"),
    "eval": ("rosbags", "mcap", "mcap_ros2", "matplotlib", "pandas", "plotly", "jinja2"),
    "web": ("starlette", "uvicorn", "prometheus_client"),
    "otel": ("opentelemetry",),
    "doors": ("websockets",),
    "plan": ("scipy",),
    "cluster": ("ray",),
}
"""Extra -> modules; each module once, though other extras may bring it, too."""


def require(*modules: str) -> None:
    """Raises ConfigError, which says what to install, for the first module that is not there.

    For what is needed late: nobody should work for minutes and then miss a package.
    """
    for module in modules:
        if text := lacking(module):
            raise ConfigError(text)


@contextmanager
def explained(program: str) -> Iterator[None]:
    """Turns the ModuleNotFoundError of a module of an extra into a line and exit code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (text := lacking(error.name or "")) is None:
            raise
        print(f"{program}: {text}", file=sys.stderr)
        sys.exit(2)


def lacking(module: str) -> str | None:
    """What to do about a module that is not there; None where it is, or is in no extra."""
    name = module.split(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), None)
    if extra is None or find_spec(name) is not None:
        return None
    return (
        f"{sys.executable} has no module {name}, which comes with the extra {extra!r}; "
        "docs/install.md says how to install it"
    )
