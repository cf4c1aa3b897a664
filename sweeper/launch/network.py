"""The network interface through which ranks on several machines reach each other."""

import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # of a datagram that is never sent


def interface_towards(address: str) -> dict[str, str]:
    """A variable with the interface to another machine; empty if it is set or none is found."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, _ANY_PORT))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(name, probe) == own:
                return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _address_of(interface: str, any_socket: socket.socket) -> str:
    asked = struct.pack("256s", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])
