"""One rank of a run over several nodes, as srun starts it."""

import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from sweeper.domain.outcomes import Outcome
from sweeper.rank import Rank

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # of a datagram that is never sent


def main(arguments: Sequence[str]) -> None:
    """Take the place that srun has given and train."""
    folder, checkpoint = arguments
    config = json.loads((Path(folder) / "config.json").read_text())
    world_size = config["devices"] * config["num_nodes"]
    number = int(os.environ["SLURM_PROCID"])
    started = int(os.environ["SLURM_STEP_NUM_TASKS"])
    if started != world_size:
        reason = (
            f"srun must start devices x num_nodes = {world_size} ranks; it started {started}. "
            "Take ntasks out of hydra.launcher.parameters: ranks follow from devices and num_nodes."
        )
        _leave_refusal(Path(folder), number, reason)
        sys.exit(reason)
    master = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    rank = Rank(
        folder=folder,
        checkpoint=checkpoint,
        rank=number,
        local_rank=int(os.environ["SLURM_LOCALID"]),
        node_rank=int(os.environ["SLURM_NODEID"]),
        world_size=world_size,
        threads=config["threads"],
        environment=_interface_towards(master),
        master=master,
    )
    from sweeper.worker import work  # imports torch

    work(rank)


def _leave_refusal(folder: Path, rank: int, reason: str) -> None:
    partial = folder / f".record-{rank}.tmp"
    partial.write_text(json.dumps({"outcome": Outcome.FAILED, "reason": reason}))
    partial.replace(folder / f"record-{rank}.json")


def _interface_towards(address: str) -> dict[str, str]:
    """The network interface that leads to the first node: gloo's own guess may be loopback."""
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
        told = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)
    except OSError:
        return ""
    return socket.inet_ntoa(told[20:24])


if __name__ == "__main__":
    main(sys.argv[1:])
