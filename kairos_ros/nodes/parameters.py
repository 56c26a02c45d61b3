"""Node parameters from one table: type, default, range and description in one line each."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from kairos_ros.core.errors import ConfigError

DOUBLES = Parameter.Type.DOUBLE_ARRAY
INTEGERS = Parameter.Type.INTEGER_ARRAY
STRINGS = Parameter.Type.STRING_ARRAY


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter. The default gives its type; `DOUBLES`, `INTEGERS` or `STRINGS` as the default
    declare a list that is empty unless set."""

    name: str
    default: Any
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    """Allowed values of a string; empty: any."""
    live: bool = False
    """Can be set while the node runs. Everything else is read once, and setting it is refused."""


def declare(node: Node, specs: Iterable[ParameterSpec]) -> Mapping[str, Any]:
    """Declares all parameters of a node and returns their values by name.

    Raises ConfigError for a value of the wrong type or out of range, and for a parameter that was
    set (on the command line or in a params file) but that the node does not have.
    """
    values = {spec.name: _declare(node, spec) for spec in specs}
    for name in sorted(set(node._parameter_overrides) - set(values)):
        if node.has_parameter(name):  # one of rclpy's own, such as use_sim_time
            continue
        close = difflib.get_close_matches(name, values, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(sorted(values))}"
        raise ConfigError(f"node {node.get_name()} has no parameter {name!r}; {hint}")
    return values


def _declare(node: Node, spec: ParameterSpec) -> Any:
    descriptor = _descriptor(spec)
    try:
        if isinstance(spec.default, Parameter.Type):
            return _declare_list(node, spec.name, spec.default, descriptor)
        parameter = node.declare_parameter(spec.name, spec.default, descriptor)
    except InvalidParameterTypeException as error:
        wanted = spec.default.name if isinstance(spec.default, Parameter.Type) else spec.default
        raise ConfigError(
            f"parameter {spec.name}: {error}; write it like {wanted!r} "
            "(a floating-point number needs its decimal point)"
        ) from error
    except InvalidParameterValueException as error:
        raise ConfigError(
            f"parameter {spec.name}: {error}; it goes from {spec.minimum} to {spec.maximum}"
        ) from error
    value = parameter.value
    if spec.choices and value not in spec.choices:
        raise ConfigError(
            f"parameter {spec.name} is {value!r}; choose from {', '.join(spec.choices)}"
        )
    return value


def _declare_list(
    node: Node, name: str, kind: Parameter.Type, descriptor: ParameterDescriptor
) -> list[Any]:
    """A list that is not given becomes an empty one of its type.

    A parameter without a value would empty every reply of the parameter services that it is in:
    `ros2 param dump` would print none. rclpy gives no type to an empty default, so it is set after
    the declaration and sealed then.
    """
    if node.declare_parameter(name, kind).type_ is Parameter.Type.NOT_SET:
        node.set_parameters([Parameter(name, kind, [])])
    descriptor.name, descriptor.type = name, kind.value
    node.set_descriptor(name, descriptor)
    return list(node.get_parameter(name).value)


def _descriptor(spec: ParameterSpec) -> ParameterDescriptor:
    """Raises ValueError for a spec with half a range."""
    descriptor = ParameterDescriptor(description=spec.description, read_only=not spec.live)
    if spec.choices:
        descriptor.additional_constraints = "one of " + ", ".join(spec.choices)
    if (spec.minimum is None) != (spec.maximum is None):
        raise ValueError(f"parameter {spec.name} needs both ends of its range, or none")
    if spec.minimum is not None and spec.maximum is not None:
        if isinstance(spec.default, int):
            descriptor.integer_range = [
                IntegerRange(from_value=int(spec.minimum), to_value=int(spec.maximum))
            ]
        else:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(spec.minimum), to_value=float(spec.maximum))
            ]
    return descriptor
