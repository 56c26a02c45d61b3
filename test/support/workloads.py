"""Workloads and profiles for tests of the planner."""

from kairos_ros.core.load_profile import QUANTILES, Load, LoadProfile
from kairos_ros.core.pipeline import Component
from kairos_ros.planning.workload import Need, RobotClass, Workload

LIGHT = (Component.SYSTEM1,)
ALL = tuple(Component)
HZ = {Component.SAFETY: 2.0, Component.MONITOR: 0.5}
SLO_S = {
    Component.SYSTEM1: 0.2,
    Component.SYSTEM2: 2.0,
    Component.SAFETY: 0.5,
    Component.MONITOR: 2.0,
}


def profile(component, rates, mean, tail, batch=1, memory_mib=1000.0, model="m"):
    """Of one batching; all quantiles below p99 are the mean."""
    lines = (tuple(mean),) * (len(QUANTILES) - 1) + (tuple(tail),)
    return LoadProfile(
        model=model,
        version="test",
        components=(component,),
        device="GPU",
        machine="test",
        source="measured",
        basis="test",
        batching="discrete",
        sizes=(1,),
        service_s=(mean[0],),
        loads=(Load(batch, memory_mib, tuple(rates), tuple(mean), lines),),
    )


def flat(component, seconds, most_hz, model="m", memory_mib=1000.0):
    """Answers in the same time up to `most_hz`."""
    return profile(
        component, (most_hz / 2, most_hz), (seconds,) * 2, (seconds,) * 2, memory_mib=memory_mib,
        model=model,
    )  # fmt: skip


def robot_class(name, robots, components=LIGHT, action_s=0.2, ratio=1, **more):
    needs = {one: Need("m", SLO_S[one], HZ.get(one, 0.0)) for one in components}
    names = tuple(f"{name}_{i}" for i in range(robots))
    return RobotClass(name, names, action_s, needs, ratio, **more)


def workload(classes, *profiles):
    return Workload(
        tuple(classes), {(one.model, c): one for one in profiles for c in one.components}
    )
