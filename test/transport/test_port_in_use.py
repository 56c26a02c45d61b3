"""A port that another program has is an error at once, with keys as without."""

import socket

import pytest
import zmq

from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.sockets import CurveServer, bind_router
from kairos_ros.transport.zap_authenticator import ZapAuthenticator


@pytest.mark.timeout(30)
@pytest.mark.parametrize("keys", [True, False])
def test_a_port_in_use_is_refused(tmp_path, keys):
    with socket.socket() as other, zmq.Context() as context:
        other.bind(("127.0.0.1", 0))
        other.listen()
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        folder = KeyFolder(tmp_path / "keys")
        own = folder.new("b", Role.SERVER)
        authenticator = ZapAuthenticator(context, folder)
        try:
            security = CurveServer(own, authenticator) if keys else Insecure.LOOPBACK
            with pytest.raises(zmq.ZMQError, match="in use"):
                bind_router(context, endpoint, security=security)
        finally:
            authenticator.close()
