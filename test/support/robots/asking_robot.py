"""A robot that asks for chunk after chunk, and notes every answer that is not its own."""

import itertools
import threading
from collections.abc import Callable

import numpy as np
from wire import until


class AskingRobot:
    """Asks in a thread of its own, each time from a state that no other robot has."""

    def __init__(
        self,
        ask: Callable[[float], np.ndarray],
        close: Callable[[], None],
        first: float,
        chunk: int,
        pause_s: float = 0.02,
    ) -> None:
        """ask: state -> the first number of every action, which is that state.
        first: of its states, 1000 apart from those of others. chunk: actions that are expected.
        pause_s: before each request."""
        self._ask, self._close, self._chunk, self._pause_s = ask, close, chunk, pause_s
        self.served = 0
        self.harm: list[str] = []
        """What went wrong so far."""
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def begin(self) -> "AskingRobot":
        self._thread.start()
        return self

    def check(self, rounds: int = 5) -> None:
        """It was served its own chunks all the time, and still is, for some more rounds."""
        goal = self.served + rounds
        until(lambda: self.harm or self.served >= goal, what="for a robot to be served")
        assert not self.harm, self.harm

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._close()

    def _live(self) -> None:
        for n in itertools.count():
            if self._stop.wait(self._pause_s):
                return
            state = self._first + n / 1024
            try:
                told = self._ask(state)
            except Exception as error:
                self.harm.append(f"{type(error).__name__}: {error}")
                return
            if told.shape != (self._chunk,) or set(told.tolist()) != {np.float32(state)}:
                self.harm.append(f"asked from {state} and got {told}")
            self.served += 1
