"""A model server of its own process: the embedded judge behind the chat protocol, over real HTTP.

It answers one question at a time, in the order in which they came: what a server does whose own
priorities do nothing. The answers are the judge's own, at the pace of a larger model on a GPU: each
takes `PACE_S`, or as long as the judge needs. Prints its URL when it is up, and leaves when its
standard input ends.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from judge_server import JudgeServer  # test/support/judges/judge_server.py

from kairos_ros.vlm.judge import Failure, Judge, Question, Verdict
from kairos_ros.vlm.loading import load_judge

PACE_S = 0.04


class FirstCome:
    """A judge for many threads: one at a time, in the order of their calls."""

    def __init__(self, judge: Judge) -> None:
        self.model = judge.model
        self._judge = judge
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        turn = threading.Event()
        with self._lock:
            self._line.append(turn)
            self._line[0].set()
        turn.wait()
        began = time.monotonic()
        try:
            outcomes = self._judge.judge(questions)
            time.sleep(max(0.0, began + PACE_S - time.monotonic()))
            return outcomes
        finally:
            with self._lock:
                self._line.popleft()
                if self._line:
                    self._line[0].set()

    def close(self) -> None:
        self._judge.close()


def main() -> int:
    server = JudgeServer(FirstCome(load_judge("embedded:factory_judge")))
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
