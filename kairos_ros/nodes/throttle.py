"""Log lines that foreign messages cause, at a rate that an operator can read."""

import time
from collections import Counter

from rclpy.impl.rcutils_logger import RcutilsLogger


class Throttle:
    """Lets `burst` lines of a kind through at once and then one per `every_s`, which says how many
    like it were not logged."""

    def __init__(self, logger: RcutilsLogger, burst: int, every_s: float) -> None:
        self._logger = logger
        self._burst, self._every_s = burst, every_s
        self._spent: dict[str, tuple[float, float]] = {}
        """Kind -> lines that count against its burst, and when that was so."""
        self._unlogged: Counter[str] = Counter()

    def info(self, kind: str, text: str) -> None:
        if self._passes(kind):
            self._logger.info(text + self._more(kind))

    def warning(self, kind: str, text: str) -> None:
        if self._passes(kind):
            self._logger.warning(text + self._more(kind))

    def error(self, kind: str, text: str) -> None:
        if self._passes(kind):
            self._logger.error(text + self._more(kind))

    def _passes(self, kind: str) -> bool:
        now_s = time.monotonic()
        spent, then_s = self._spent.get(kind, (0.0, now_s))
        spent = max(0.0, spent - (now_s - then_s) / self._every_s)
        if spent > self._burst - 1:
            self._unlogged[kind] += 1
            return False
        self._spent[kind] = spent + 1, now_s
        return True

    def _more(self, kind: str) -> str:
        unlogged = self._unlogged.pop(kind, 0)
        return f" ({unlogged} like this were not logged)" if unlogged else ""
