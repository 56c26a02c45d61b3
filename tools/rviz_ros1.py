"""The inner half of rviz_screenshots.py: rviz 1.14 and ROS 1, with Debian's own Python.

Reads one JSON document per line: messages to publish, and orders to open rviz and to photograph it.
Writes one JSON line per order. Ends with its input.
"""

import base64
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time

WIDTH, HEIGHT = int(sys.argv[1]), int(sys.argv[2])
HOME = "/tmp/rviz_home"
DISPLAY = ":7"
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": HOME,
    "DISPLAY": DISPLAY,
    "ROS_MASTER_URI": "http://127.0.0.1:11311",
    "ROS_IP": "127.0.0.1",
    "LIBGL_ALWAYS_SOFTWARE": "1",
    "XDG_RUNTIME_DIR": HOME,
    "LANG": "C.UTF-8",
}
os.environ.clear()
os.environ.update(ENVIRONMENT)
IFF_UP, SIOCGIFFLAGS, SIOCSIFFLAGS = 1, 0x8913, 0x8914


def bring_up_loopback():
    """The network namespace is new: not even this host can be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(probe, SIOCGIFFLAGS, name))[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def start(*command):
    with open(os.path.join(HOME, os.path.basename(command[0]) + ".log"), "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def until(condition, what, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("waited in vain " + what)
        time.sleep(0.1)


def reachable(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def say(document):
    print(json.dumps(document), flush=True)


def main():
    os.makedirs(HOME, mode=0o700)
    bring_up_loopback()
    start("/usr/bin/Xvfb", DISPLAY, "-screen", "0", f"{WIDTH}x{HEIGHT}x24", "-nolisten", "tcp")
    start("/usr/bin/roscore")
    until(lambda: reachable(11311), "for roscore")
    until(lambda: os.path.exists("/tmp/.X11-unix/X7"), "for Xvfb")

    import rospy

    rospy.init_node("bridge", disable_signals=True)
    publish = Publishers(rospy)
    rviz = None
    say({"ready": True})
    for line in sys.stdin:
        document = json.loads(line)
        if "message" in document:
            publish(document["topic"], document["kind"], document["message"])
        elif "open" in document:
            if rviz is not None:
                rviz.terminate()
                rviz.wait()
            path = os.path.join(HOME, "shot.rviz")
            with open(path, "w") as file:
                file.write(document["open"])
            rviz = start("/usr/bin/rviz", "-d", path, "-s", "")
            say({"opened": rviz.pid})
        elif "shoot" in document:
            if rviz is None or rviz.poll() is not None:
                say({"error": "rviz is not running: " + tail("rviz.log")})
                continue
            shot = subprocess.run(
                ["/usr/bin/import", "-window", "root", "png:-"], capture_output=True, check=True
            )
            say({"png": base64.b64encode(shot.stdout).decode()})


def tail(name):
    with open(os.path.join(HOME, name), errors="replace") as file:
        return file.read()[-2000:]


class Publishers:
    """Publishes messages from their fields, with one latched topic for static frames."""

    def __init__(self, rospy):
        from sensor_msgs.msg import Image
        from tf2_msgs.msg import TFMessage
        from visualization_msgs.msg import MarkerArray

        self._rospy = rospy
        self._kinds = {"MarkerArray": MarkerArray, "TFMessage": TFMessage, "Image": Image}
        self._topics = {}
        self._static = {}

    def __call__(self, topic, kind, fields):
        latched = topic == "/tf_static"
        if topic not in self._topics:
            self._topics[topic] = self._rospy.Publisher(
                topic, self._kinds[kind], queue_size=100, latch=latched
            )
        if latched:
            for one in fields["transforms"]:
                self._static[one["child_frame_id"]] = one
            fields = {"transforms": list(self._static.values())}
        self._topics[topic].publish(filled(self._kinds[kind](), fields))


def filled(message, fields):
    """Field by field; what ROS 1 does not have is left out."""
    kinds = dict(zip(message.__slots__, message._slot_types, strict=True))
    for name, value in fields.items():
        if name not in kinds:
            continue
        kind = kinds[name]
        if kind in ("time", "duration"):
            stamp = getattr(message, name)
            stamp.secs, stamp.nsecs = value["sec"], value["nanosec"]
        elif kind == "uint8[]":
            setattr(message, name, base64.b64decode(value))
        elif isinstance(value, dict):
            filled(getattr(message, name), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            setattr(message, name, [filled(new(kind), one) for one in value])
        else:
            setattr(message, name, value)
    return message


def new(kind):
    """An element of a list of messages, `geometry_msgs/Point[]`."""
    from importlib import import_module

    package, short = kind.split("[")[0].split("/")
    return getattr(import_module(package + ".msg"), short)()


if __name__ == "__main__":
    main()
