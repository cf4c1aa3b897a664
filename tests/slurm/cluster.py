"""A real SLURM on this machine in one folder: munged, slurmctld and two slurmd, as this user."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from process_tree import descendants

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
NODES = ("n1", "n2")
_GPUS = ("/dev/null", "/dev/zero")
_SYSTEM_FOLDERS = "/usr/sbin:/sbin"

_CONFIG = """\
ClusterName=local
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=3
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
KillWait=30
SlurmdParameters=config_overrides
OverTimeLimit=0
MaxJobCount={max_job_count}
GresTypes=gpu
MaxArraySize={max_array_size}
NodeName=n1 NodeHostname=localhost Port={n1} CPUs=4 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost Port={n2} CPUs=4 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=down Nodes=n[1-2] MaxTime=INFINITE State=DOWN
"""


def missing_programs() -> list[str]:
    """What of SLURM is not installed here."""
    return [name for name in PROGRAMS if not shutil.which(name, path=_path())]


def _path() -> str:
    return f"{os.environ['PATH']}:{_SYSTEM_FOLDERS}"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class Cluster:
    """Two nodes of four CPUs each on this machine; requeued jobs start again after seconds.

    Attributes:
        folder: of its configuration, state and logs.
        max_array_size: as in slurm.conf.
        max_job_count: as in slurm.conf.
    """

    folder: Path
    max_array_size: int = 1001
    max_job_count: int = 5000
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a shell needs to use this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

    def start(self) -> None:
        """Start the daemons and wait until both nodes are idle."""
        for name in ("state", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir()
        controller, n1, n2 = _free_ports(3)
        text = _CONFIG.format(
            user=getpass.getuser(),
            folder=self.folder,
            controller_port=controller,
            n1=n1,
            n2=n2,
            max_array_size=self.max_array_size,
            max_job_count=self.max_job_count,
        )
        (self.folder / "slurm.conf").write_text(text)
        # SLURM wants a device file for each GPU; these two are on any machine
        lines = [f"Name=gpu File={device} Flags=nvidia_gpu_env" for device in _GPUS]
        (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")
        self._start_munge()
        self._start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self.wait_for("sinfo -h -N -o %t", lambda said: said.split().count("idle") >= 2)

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self._start("slurmd", "-D", "-N", node, name=node)

    def kill_node(self, node: str) -> None:
        """A node goes without a word: SIGKILL to its slurmd and to all that it started."""
        daemon = self._daemons.pop(node)
        doomed = [daemon.pid, *self._steps_of(node)]
        doomed += [child for pid in doomed for child in descendants(pid)]
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        daemon.wait()

    def run(self, command: str, *, check: bool = True) -> str:
        """What a shell command says."""
        done = subprocess.run(
            command,
            shell=True,
            env=self.environment,
            text=True,
            capture_output=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def wait_for(self, command: str, is_so, *, seconds: float = 300.0) -> str:
        """Repeat a command until what it says is so."""
        deadline = time.monotonic() + seconds
        while not is_so(said := self.run(command, check=False)):
            assert time.monotonic() < deadline, f"{command} still says: {said}"
            time.sleep(0.5)
        return said

    def stop(self) -> None:
        """Cancel what runs, then stop the daemons."""
        self.run("scancel -u $(id -un)", check=False)
        deadline = time.monotonic() + 20
        while self.run("squeue -h", check=False).strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        subprocess.run(
            ["mungekey", "--create", f"--keyfile={key}"], env=self.environment, check=True
        )
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", *options)
        socket_file = self.folder / "munge.socket"
        while not socket_file.exists():
            time.sleep(0.05)

    def _start(self, program: str, *arguments: str, name: str = "") -> None:
        log = (self.folder / f"{name or program}.out").open("wb")
        self._daemons[name or program] = subprocess.Popen(
            [str(shutil.which(program, path=_path())), *arguments],
            env=self.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        log.close()

    def _steps_of(self, node: str) -> list[int]:
        """The slurmstepd processes that a node's slurmd has started; they outlive it."""
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            ours = command.startswith(b"slurmstepd") and str(self.folder).encode() in environment
            if ours and self._node_of(process) == node:
                found.append(int(process.name))
        return found

    def _node_of(self, process: Path) -> str:
        for child in descendants(int(process.name)):
            try:
                environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in environment:
                if variable.startswith(b"SLURMD_NODENAME="):
                    return variable.partition(b"=")[2].decode()
        return ""
