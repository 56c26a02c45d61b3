"""What is drawn, as messages for rviz."""

from collections.abc import Iterable, Mapping

from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, Pose, Quaternion, Transform, TransformStamped, Vector3
from std_msgs.msg import ColorRGBA, Header
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import Marker, MarkerArray

from kairos_ros.viz import shape
from kairos_ros.viz.shape import Shape
from kairos_ros.viz.shown import Changes


def marker_array(changes: Changes, lifetime_s: float) -> MarkerArray:
    """Deletions first. A shape that is not sent again within `lifetime_s` vanishes by itself."""
    gone = [_deletion(one) for one in changes.delete]
    whole = int(lifetime_s)
    lifetime = Duration(sec=whole, nanosec=round(1e9 * (lifetime_s - whole)))
    return MarkerArray(markers=gone + [_marker(one, lifetime) for one in changes.draw])


def everything_gone(frame: str) -> MarkerArray:
    """Takes all markers of a topic off the screen. `frame`: any that viewers know."""
    return MarkerArray(markers=[Marker(header=Header(frame_id=frame), action=Marker.DELETEALL)])


def _deletion(of: Shape) -> Marker:
    """In a frame, too: where there is none, older rviz drops the message."""
    return Marker(header=Header(frame_id=of.frame), ns=of.ns, id=of.id, action=Marker.DELETE)


def _marker(of: Shape, lifetime: Duration) -> Marker:
    x, y, z, w = of.orientation
    return Marker(
        header=Header(frame_id=of.frame),  # stamp 0: in the newest place of that frame
        ns=of.ns,
        id=of.id,
        type=int(of.kind),
        action=Marker.ADD,
        pose=Pose(position=_point(of.position), orientation=Quaternion(x=x, y=y, z=z, w=w)),
        scale=Vector3(x=of.scale[0], y=of.scale[1], z=of.scale[2]),
        color=_colour(of.colour),
        lifetime=lifetime,
        frame_locked=True,
        points=[_point(p) for p in of.points],
        colors=[_colour(c) for c in of.colours],
        text=of.text,
    )


def _point(of: shape.Point) -> Point:
    return Point(x=of[0], y=of[1], z=of[2])


def _colour(of: shape.Colour) -> ColorRGBA:
    return ColorRGBA(r=of[0], g=of[1], b=of[2], a=of[3])


def transforms(
    parent: str, children: Mapping[str, shape.Point], stamp: Time
) -> Iterable[TransformStamped]:
    """Frames that stand upright at these places in `parent`."""
    for child, (x, y, z) in children.items():
        yield TransformStamped(
            header=Header(stamp=stamp, frame_id=parent),
            child_frame_id=child,
            transform=Transform(
                translation=Vector3(x=x, y=y, z=z), rotation=Quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
            ),
        )


def tf_message(of: Iterable[TransformStamped]) -> TFMessage:
    return TFMessage(transforms=list(of))
