"""A benchmark's client process: JSON lines in, JSON lines out."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ClientProcess:
    """`python -m MODULE ARGUMENTS`. A context manager: leaving it closes stdin and waits."""

    def __init__(self, log: Path, env: Mapping[str, str], module: str, *arguments: object) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
                env={**os.environ, **env},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> "ClientProcess":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """SIGKILL, without a goodbye."""
        self._process.kill()
        self._process.wait()

    def tell(self, command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Its next line. Raises RuntimeError with its last output when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended:\n{self._log.read_text()[-3000:]}")
        return json.loads(line)
