"""Hosts that live in another time: wall clocks that are off or jump, clocks of another boot.

Both for one process and its children, without touching this host's clocks.
"""

import shutil
import subprocess
import textwrap
import warnings
from pathlib import Path

import pytest

SHIFTED = textwrap.dedent("""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <pthread.h>
    #include <semaphore.h>
    #include <stdlib.h>
    #include <sys/time.h>
    #include <time.h>

    static int (*real)(clockid_t, struct timespec *);

    /* Where it jumps, ahead in every other second and behind in those between. */
    static time_t shift(void) {
        struct timespec now;
        time_t ahead = atoi(getenv("WALL_CLOCK_AHEAD_S"));
        if (!getenv("WALL_CLOCK_JUMPS")) return ahead;
        real(CLOCK_MONOTONIC, &now);
        return now.tv_sec % 2 ? ahead : -ahead;
    }

    int clock_gettime(clockid_t id, struct timespec *t) {
        if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
        int failed = real(id, t);
        if (!failed && id == CLOCK_REALTIME) t->tv_sec += shift();
        return failed;
    }

    int gettimeofday(struct timeval *t, void *zone) {
        struct timespec now;
        int failed = clock_gettime(CLOCK_REALTIME, &now);
        t->tv_sec = now.tv_sec;
        t->tv_usec = now.tv_nsec / 1000;
        return failed;
    }

    time_t time(time_t *t) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        if (t) *t = now.tv_sec;
        return now.tv_sec;
    }

    /* Waits end by the kernel's clock, so what a process computed with its own is moved back.
       No monotonic clock is as late as this; a condition may wait by either. */
    static struct timespec kernels(const struct timespec *end) {
        struct timespec moved = *end;
        if (end->tv_sec > 1000000000) moved.tv_sec -= shift();
        return moved;
    }

    int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
        static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
        if (!wait) wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!wait) wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
        struct timespec end = kernels(t);
        return wait(c, m, &end);
    }

    int pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *t) {
        static int (*lock)(pthread_mutex_t *, const struct timespec *);
        if (!lock) lock = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
        struct timespec end = kernels(t);
        return lock(m, &end);
    }

    int sem_timedwait(sem_t *s, const struct timespec *t) {
        static int (*wait)(sem_t *, const struct timespec *);
        if (!wait) wait = dlsym(RTLD_NEXT, "sem_timedwait");
        struct timespec end = kernels(t);
        return wait(s, &end);
    }
""")


LOOPBACK = """
<dds xmlns="http://www.eprosima.com">
  <profiles>
    <transport_descriptors>
      <transport_descriptor>
        <transport_id>loopback</transport_id>
        <type>UDPv4</type>
        <maxInitialPeersRange>32</maxInitialPeersRange>
        <interfaceWhiteList><address>127.0.0.1</address></interfaceWhiteList>
      </transport_descriptor>
    </transport_descriptors>
    <participant profile_name="another_host" is_default_profile="true">
      <rtps>
        <userTransports><transport_id>loopback</transport_id></userTransports>
        <useBuiltinTransports>false</useBuiltinTransports>
        <builtin>
          <metatrafficUnicastLocatorList><locator/></metatrafficUnicastLocatorList>
          <initialPeersList>
            <locator><udpv4><address>127.0.0.1</address></udpv4></locator>
          </initialPeersList>
        </builtin>
      </rtps>
    </participant>
  </profiles>
</dds>
"""
"""DDS over 127.0.0.1 only, without memory shared with other processes. The discovery range
LOCALHOST always adds shared memory, whatever FASTDDS_BUILTIN_TRANSPORTS says."""


def wall_clock_library(folder: Path) -> Path:
    """A library that moves the wall clock of the process it is preloaded into (`ahead`)."""
    if shutil.which("cc") is None:
        pytest.skip("NO C COMPILER HERE: the wall clock of one process cannot be moved")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIFTED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def ahead(library: Path, seconds: int, *, jumps: bool = False) -> dict[str, str]:
    """Environment of a process whose wall clock is so far ahead, or jumps to and fro by as much."""
    env = {"LD_PRELOAD": str(library), "WALL_CLOCK_AHEAD_S": str(seconds)}
    return env | ({"WALL_CLOCK_JUMPS": "yes"} if jumps else {})


def robot_host(library: Path, seconds: int) -> dict[str, str]:
    """Environment of a node on a host whose wall clock is so far ahead.

    It shares no memory with this host's nodes. There, Fast DDS keeps the wall time of its last
    check for readers that died: once one process is ahead, no other checks any more, and what is
    written to a node that was killed and started again is lost.
    """
    profile = library.with_name("loopback.xml")
    profile.write_text(LOOPBACK)
    return ahead(library, seconds) | {
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT",
        "FASTDDS_DEFAULT_PROFILES_FILE": str(profile),
    }


def another_boot(seconds: int) -> list[str]:
    """A command prefix that moves the monotonic clock, where this user may do that; else none, and
    a loud warning."""
    prefix = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", str(seconds)]
    prefix += ["--boottime", str(seconds), "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"]).returncode:
        warnings.warn("NO TIME NAMESPACES HERE: monotonic clocks are not skewed", stacklevel=2)
        return []
    return prefix
