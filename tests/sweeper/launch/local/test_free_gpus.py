"""GPUs that other processes use, with a stand-in for NVML."""

import sys
from itertools import islice
from types import SimpleNamespace

import pytest

from sweeper.launch.local import free_gpus
from sweeper.launch.local.free_gpus import find_free_gpus
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import Event
from sweeper.spec.run_memory import Device


class FakeNvml:
    """Stands in for the module pynvml.

    Attributes:
        users: processes on each GPU.
    """

    NVMLError = OSError

    def __init__(self) -> None:
        self.users: dict[int, list[int]] = {0: [1], 1: []}

    def nvmlInit(self) -> None:  # noqa: N802  NVML has such names
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.users[handle]]


@pytest.fixture
def nvml(monkeypatch):
    """Two GPUs, of which a process uses the first."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def find(monkeypatch):
    """What is said while GPUs are looked for, and at the end those that were found."""
    monkeypatch.setattr(free_gpus, "_LOOK_EVERY_S", 0)
    machine = Machine(cores=2, gpus=["0", "1"], device=Device(kind="A100", memory_gib=40, runs=1))

    def events(needed: int, *, wait: bool = False):
        found = yield from find_free_gpus(machine, needed, wait=wait)
        yield Event(said=found.gpus)

    return events


@pytest.mark.usefixtures("nvml")
def test_a_gpu_in_use_is_left_out_and_named(find):
    said = [text for event in find(1) for text in event.said]

    assert said[0].startswith("Left out, as others use them: GPU 0 (process 1")
    assert said[1:] == ["1"]


@pytest.mark.usefixtures("nvml")
def test_too_few_free_gpus_are_refused_with_what_to_do(find):
    with pytest.raises(ValueError, match=r"devices=2 must be free; got 1 free of 2, .* \(proc"):
        list(find(2))


def test_too_few_free_gpus_are_waited_for(find, nvml):
    events = find(2, wait=True)
    said = [text for event in islice(events, 5) for text in event.said]
    nvml.users[0] = []

    said += [text for event in events for text in event.said]

    assert said[0].startswith("Waiting for GPUs that others use: GPU 0 (process 1")
    assert said[1:] == ["0", "1"]


@pytest.mark.usefixtures("nvml")
def test_gpus_that_the_user_chose_are_used_whoever_else_uses_them(find, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    assert [text for event in find(2) for text in event.said] == ["0", "1"]


def test_the_stand_in_has_names_of_nvml():
    nvml = pytest.importorskip("pynvml")

    assert {name for name in dir(FakeNvml) if name[0] != "_"} <= {*dir(nvml)}
