"""Which addresses other hosts can reach."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether no other host can reach it. Names but `localhost` are not looked up: False."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
