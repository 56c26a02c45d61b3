"""Section server_cluster of a fleet file: what the models run on."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kairos_ros.core.address import is_ip

Text = Annotated[str, Field(min_length=1, max_length=10_000)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Host(_Section):
    """One computer of the cluster."""

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            max_length=64,
            description="what `kairos fleet up --host` calls it, and its key, if links have keys",
        ),
    ]
    gpus: Annotated[int, Field(ge=0, le=100_000, description="of num_servers: those in this host")]
    address: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9:][A-Za-z0-9:._-]*$",
            max_length=255,
            description="where the first host finds its engines: IP address or name; its name "
            "without it",
        ),
    ] = ""
    port: Annotated[
        int, Field(ge=1, le=65_000, description="TCP port of its first engine, others follow")
    ] = 7420

    @property
    def reached_at(self) -> str:
        """IP address or host name."""
        return self.address or self.name


class ServerCluster(_Section):
    """What the models run on."""

    num_servers: Annotated[int, Field(ge=1, le=100_000, description="servers, one GPU each")]
    gpu_type: Annotated[Text, Field(description="for example NVIDIA H200")]
    gpu_memory_gb: Annotated[
        float | None, Field(gt=0, le=100_000, description="of each GPU; not looked at without it")
    ] = None
    hot_standby: Annotated[
        int,
        Field(ge=0, le=1000, description="of num_servers: kept loaded for when another one dies"),
    ] = 0
    hosts: Annotated[
        list[Host],
        Field(
            max_length=1000,
            description="where the servers are, in the order of their GPUs; the first host runs "
            "the serving node; without them, all are in one",
        ),
    ] = []

    standby_server: Annotated[
        str,
        Field(
            description="a host with a second serving node, for when the first host's dies; the "
            "first host has no GPUs then"
        ),
    ] = ""

    @model_validator(mode="after")
    def _some_serve(self) -> Self:
        if self.hot_standby >= self.num_servers:
            raise ValueError(
                f"{self.hot_standby} of {self.num_servers} servers stand by; at least one has to "
                "serve"
            )
        return self

    @model_validator(mode="after")
    def _hosts_have_all(self) -> Self:
        names = [host.name for host in self.hosts]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two hosts are called {twice!r}")
        gpus = sum(host.gpus for host in self.hosts)
        if self.hosts and gpus != self.num_servers:
            raise ValueError(f"its hosts have {gpus} GPUs, and num_servers is {self.num_servers}")
        for host in self.hosts:
            if ":" in host.address and not is_ip(host.address):
                raise ValueError(
                    f"address {host.address!r} of host {host.name!r} is no IPv6 address"
                )
        places = [(host.reached_at, host.port) for host in self.hosts]
        if twice_at := next((at for at in places if places.count(at) > 1), None):
            raise ValueError(f"two hosts are at {twice_at[0]} with port {twice_at[1]}")
        if self.standby_server:
            if self.standby_server not in names[1:]:
                listed = ", ".join(names[1:]) or "none"
                raise ValueError(
                    f"standby_server is {self.standby_server!r}; name a host besides the first "
                    f"one: {listed}"
                )
            if self.hosts[0].gpus:
                raise ValueError(
                    f"a standby_server cannot use the GPUs of host {names[0]!r}, which it shall "
                    "replace: give that one gpus: 0"
                )
        return self
