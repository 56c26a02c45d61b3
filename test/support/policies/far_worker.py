"""`kairos worker` at the far end of a link, and robots that check every answer."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from kairos_ros.msg import ActionChunk
from wan import PORT
from wire import PATIENCE_S, Bystander

from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder


class Checked(Bystander):
    """Observes another state in every round, and holds every answer against it."""

    def begin(self, pause_s=0.05):
        self.asked = Counter()
        return super().begin(pause_s)

    def ask(self, round, patience_s=PATIENCE_S, **changes):
        seen = [float(round), *self.observation["state"][1:]]
        self.asked[self.task, round] += 1
        answer = super().ask(round, patience_s, state=seen, **changes)
        if answer.kind == ActionChunk.ACTIONS and answer.actions[0] != seen[0]:
            self.harm.append(f"round {round} got the actions of round {answer.actions[0]:.0f}")
        return answer

    def verdict(self):
        """Besides what went wrong: rounds that were answered more often than they were asked."""
        answered = Counter(
            (answer.task, answer.round)
            for answer in self.answers
            if answer.kind == ActionChunk.ACTIONS and answer.round > 1  # joined with round 1
        )
        assert answered <= self.asked
        assert not self.harm

    def tiers(self, since=0):
        return {answer.tier for answer in self.answers[since:]}


def end_all(robots):
    """Ends every one before any is judged: none goes on where another was harmed."""
    for robot in robots:
        robot.end()
    for robot in robots:
        robot.verdict()


class Cloud:
    """Starts `kairos worker` at the far end, again and again."""

    def __init__(self, link, folder, keys, here, policy):
        """`link` says where it listens (`there`) and with which command `prefix` it gets there;
        `keys`: folder of its own keys; `here`: that of the serving node's."""
        self.link, self.folder = link, folder
        self.keys, self.here = keys, here
        self.policy = policy
        self.started = []

    @classmethod
    def with_keys(cls, link, folder, policy):
        """With new keys on both sides, that know each other."""
        there, here = KeyFolder(folder / "there"), KeyFolder(folder / "here")
        there.trust(here.new("edge", Role.CLIENT).key)
        here.trust(there.new("cloud", Role.SERVER).key)
        return cls(link, folder, there.path, here.path, policy)

    def start(self, policy="", port=PORT, host=()):
        """`host`: command prefix that makes another host of it."""
        program = Path(sys.executable).with_name("kairos")
        at = f"tcp://{self.link.there}:{port}"
        options = ["--listen", at, "--policy", policy or self.policy, "--keys", str(self.keys)]
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.link.prefix, *host, program, "worker", *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def log(self):
        return (self.folder / "workers.log").read_text(errors="replace")

    def kill(self):
        for process in self.started:
            process.kill()  # `ip netns exec` becomes the worker: there is nothing in between
            process.wait()
        self.started.clear()

    def end(self):
        self.kill()
        print(self.log()[-4000:])


def engine(wire, name):
    return next(e for e in wire.fleet[-1].engines if e.engine == name)


def longest_pause_s(wire, robots, seconds):
    """The longest time in which a robot got no answer, looking for so long."""
    worst, until_ = 0.0, time.monotonic() + seconds
    newest = {robot.name: (robot.served, time.monotonic()) for robot in robots}
    while time.monotonic() < until_:
        now = time.monotonic()
        for robot in robots:
            count, since = newest[robot.name]
            worst = max(worst, now - since)
            if robot.served > count:
                newest[robot.name] = (robot.served, now)
        time.sleep(0.01)
    return worst
