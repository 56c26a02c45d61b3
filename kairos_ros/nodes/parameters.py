"""Node parameters from one table: type, default, range and description in one line each."""

import difflib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from rclpy.parameter import Parameter

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.wire_check import printable

DOUBLES = Parameter.Type.DOUBLE_ARRAY
INTEGERS = Parameter.Type.INTEGER_ARRAY
STRINGS = Parameter.Type.STRING_ARRAY


LONGEST_REASON = 500
"""Characters of why a parameter was not set."""
AT_START = "at the start of the node; end it, and start it with -p {name}:=..."
WHILE_UNCONFIGURED = (
    "when the node is configured: ros2 lifecycle set {node} cleanup, set it, then configure and "
    "activate"
)
"""When a parameter is read that is not live, and what to do therefore."""


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


class NodeParameters(Mapping[str, Any]):
    """The values of a node's parameters by name, as they are now.

    Setting one that is not live is refused with what to do instead. A value that it has already may
    be set to anything: `ros2 param load` sets all of them.
    """

    def __init__(self, node: Node, specs: Iterable[ParameterSpec]) -> None:
        """Raises ConfigError for a value of the wrong type or out of range, and for a parameter
        that was set (on the command line or in a params file) but that the node does not have."""
        self._node = node
        self._specs = {spec.name: spec for spec in specs}
        self._values = {name: _declare(node, spec) for name, spec in self._specs.items()}
        _refuse_unknown(node, self._values)
        self._open: Callable[[], bool] = lambda: False
        self._apply: Callable[[Mapping[str, Any], Set[str]], None] = lambda values, changed: None
        node.add_pre_set_parameters_callback(self._with_types_of_empty_lists)
        node.add_on_set_parameters_callback(self._on_set)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def on_change(self, apply: Callable[[Mapping[str, Any], Set[str]], None]) -> None:
        """`apply` is called with all values as they would be, and the names of those that differ
        from before; it raises ConfigError to refuse them."""
        self._apply = apply

    def open_while(self, unconfigured: Callable[[], bool]) -> None:
        """Of a lifecycle node: while `unconfigured()`, every parameter may be set."""
        self._open = unconfigured

    def _with_types_of_empty_lists(self, asked: list[Parameter]) -> list[Parameter]:
        """`ros2 param load` takes an empty list in a file for one of booleans."""

        def typed(one: Parameter) -> Parameter:
            kind = self._specs[one.name].default if one.name in self._specs else None
            empty = one.type_ is Parameter.Type.BOOL_ARRAY and not one.value
            if not (empty and isinstance(kind, Parameter.Type)):
                return one
            return Parameter(one.name, kind, [])

        return [typed(one) for one in asked]

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        asked = {one.name: one.value for one in parameters if one.name in self._specs}
        values = self._values | {name: _plain(value) for name, value in asked.items()}
        changed = {name for name in asked if values[name] != self._values[name]}
        try:
            for name in changed:
                _check_choice(self._specs[name], values[name])
                if not (self._specs[name].live or self._open()):
                    raise ConfigError(f"parameter {name} is read {self._when(name)}")
            if changed:
                self._apply(values, changed)
        except (KairosError, ArithmeticError, TypeError, ValueError) as error:
            return SetParametersResult(
                successful=False, reason=printable(str(error), LONGEST_REASON)
            )
        self._values = values
        for name in sorted(changed):
            told = printable(repr(values[name]), LONGEST_REASON)
            self._node.get_logger().info(f"parameter {name} is {told} now")
        return SetParametersResult(successful=True)

    def _when(self, name: str) -> str:
        text = WHILE_UNCONFIGURED if isinstance(self._node, LifecycleNode) else AT_START
        return text.format(name=name, node=self._node.get_fully_qualified_name())


def _refuse_unknown(node: Node, values: Mapping[str, Any]) -> None:
    for name in sorted(set(node._parameter_overrides) - set(values)):
        if node.has_parameter(name):  # one of rclpy's own, such as use_sim_time
            continue
        close = difflib.get_close_matches(name, values, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(sorted(values))}"
        raise ConfigError(f"node {node.get_name()} has no parameter {name!r}; {hint}")


def _plain(value: Any) -> Any:
    """rclpy hands on lists of numbers as arrays."""
    return list(value) if isinstance(value, array) else value


def _check_choice(spec: ParameterSpec, value: Any) -> None:
    if spec.choices and value not in spec.choices:
        raise ConfigError(
            f"parameter {spec.name} is {value!r}; choose from {', '.join(spec.choices)}"
        )


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
    _check_choice(spec, parameter.value)
    return parameter.value


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
    descriptor = ParameterDescriptor(description=spec.description)
    constraints = [] if spec.live else ["read once: set it before the node begins its work"]
    if spec.choices:
        constraints.append("one of " + ", ".join(spec.choices))
    descriptor.additional_constraints = "; ".join(constraints)
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
