"""The energy of runs on GPUs, with an NVML of our own: what it counts is in the row, or null."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from metered import KWH, FakeNvml, NotSupported, NVMLError, train_counted

from lightning_modules.process import energy_meter
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.launch.ranks import LocalRanks
from sweeper.planning.plan import claim_tasks, plan
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.worker_args import CHECKPOINT, FIRST_STEP, WorkerArgs
from sweeper.store.attempt import Attempt, End
from sweeper.store.energy import energy_kwh
from sweeper.store.ledger import Ledger

FIRST, SECOND = "6f0f4f5e-0001-0001-0001-000000000001", "6f0f4f5e-0002-0002-0002-000000000002"


@pytest.fixture
def nvml(monkeypatch):
    """NVML with two GPUs, of which CUDA calls its second the first."""
    fake = FakeNvml(FIRST, SECOND)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(energy_meter, "_gpu_uuid", lambda: SECOND)
    return fake


@pytest.fixture
def attempt(tmp_path):
    """The folder of an attempt: ``attempt(2)``."""

    def made(number: int = 1) -> Path:
        folder = tmp_path / f"{number:03d}"
        folder.mkdir(exist_ok=True)
        return folder

    return made


def rank(folder: Path, number: int = 0, world_size: int = 1) -> WorkerArgs:
    return WorkerArgs(
        folder=str(folder), rank=number, local_rank=number, node_rank=0, world_size=world_size,
        threads=1, environment={},
    )  # fmt: skip


def count(nvml: FakeNvml, of: WorkerArgs, kwh: float, *, fails: bool = False) -> None:
    """Have a rank take so much."""
    with energy_meter.record_energy(of):
        nvml.counters[SECOND] += kwh * KWH
        nvml.counters[FIRST] += KWH
        if fails:
            raise KeyError


def test_a_rank_takes_what_the_counter_of_its_own_gpu_goes_up(nvml, attempt):
    count(nvml, rank(attempt()), 0.25)

    assert energy_kwh(attempt()) == pytest.approx(0.25)


def test_ranks_add_up_and_one_that_is_missing_leaves_the_sum_unknown(nvml, attempt):
    count(nvml, rank(attempt(), 0, world_size=2), 0.25)
    assert energy_kwh(attempt()) is None

    count(nvml, rank(attempt(), 1, world_size=2), 0.5)
    assert energy_kwh(attempt()) == pytest.approx(0.75)


def test_attempts_that_go_on_add_up_those_that_start_over_do_not(nvml, attempt):
    count(nvml, rank(attempt(1)), 1)
    (attempt().parent / CHECKPOINT).touch()
    count(nvml, rank(attempt(2), 0, world_size=2), 2)
    count(nvml, rank(attempt(2), 1, world_size=2), 4)
    attempt(3)  # came to nothing
    count(nvml, rank(attempt(4)), 8)
    assert energy_kwh(attempt(4)) == pytest.approx(15)

    (attempt().parent / CHECKPOINT).unlink()
    count(nvml, rank(attempt(5)), 16)
    assert energy_kwh(attempt(5)) == pytest.approx(16)


def test_an_earlier_part_that_was_not_counted_leaves_the_sum_unknown(nvml, attempt):
    (attempt(1) / FIRST_STEP).touch()  # as on a CPU, or by an earlier program
    (attempt().parent / CHECKPOINT).touch()
    count(nvml, rank(attempt(2)), 1)

    assert energy_kwh(attempt(2)) is None
    assert energy_kwh(attempt(1)) is None


def test_of_a_rank_that_is_killed_what_was_last_noted_counts(nvml, attempt, monkeypatch):
    monkeypatch.setattr(energy_meter, "_READ_EVERY_S", 0.001)
    monkeypatch.setattr(energy_meter, "_READINGS_PER_NOTE", 1)
    with energy_meter.record_energy(rank(attempt())):
        nvml.counters[SECOND] += KWH
        while energy_kwh(attempt()) != 1:
            pass


def test_a_run_that_fails_has_taken_what_it_took(nvml, attempt):
    with pytest.raises(KeyError):
        count(nvml, rank(attempt()), 1, fails=True)

    assert energy_kwh(attempt()) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda _, patch: patch.setitem(sys.modules, "pynvml", None),
            "the package nvidia-ml-py is not installed (pip install nvidia-ml-py).",
        ),
        (
            lambda nvml, patch: patch.setattr(nvml, "init_error", NVMLError("No library")),
            "NVML says: No library.",
        ),
        (
            lambda nvml, _: nvml.counters.update({SECOND: NotSupported("Not Supported")}),
            "NVML says: Not Supported.",
        ),
        (
            lambda _, patch: patch.setattr(energy_meter, "_gpu_uuid", lambda: "unheard-of"),
            "NVML says: Not Found.",
        ),
        (
            lambda nvml, _: nvml.mig_modes.update({SECOND: [nvml.NVML_DEVICE_MIG_ENABLE, 0]}),
            "the GPU is partitioned (MIG), and NVML counts all of it.",
        ),
        (
            lambda nvml, _: nvml.users.update({SECOND: [7, 8]}),
            "2 processes use the GPU, and NVML counts them together.",
        ),
        (
            lambda nvml, _: nvml.users.update({SECOND: []}),
            "NVML does not say which processes use the GPU, as in a container",
        ),
    ],
    ids=["no package", "no library", "old GPU", "unknown", "divided", "shared", "container"],
)
def test_what_nvml_does_not_count_is_null_and_the_log_says_why(
    nvml, attempt, monkeypatch, capsys, change, why
):
    change(nvml, monkeypatch)

    with energy_meter.record_energy(rank(attempt())):
        pass

    assert json.loads((attempt() / "energy-0.json").read_text())["kwh"] is None
    assert energy_kwh(attempt()) is None
    assert capsys.readouterr().err.count(f"Energy is not counted: {why}") == 1


def test_a_gpu_that_was_shared_for_a_while_was_not_counted(nvml, attempt, monkeypatch):
    monkeypatch.setattr(energy_meter, "_READ_EVERY_S", 0.001)
    monkeypatch.setattr(energy_meter, "_READINGS_PER_NOTE", 1)
    with energy_meter.record_energy(rank(attempt())):
        nvml.users[SECOND] = [7, 8]
        while energy_kwh(attempt()) is not None:
            pass
        nvml.users[SECOND] = [7]

    assert energy_kwh(attempt()) is None


def test_a_gpu_that_cannot_be_divided_is_counted(nvml, attempt):
    nvml.mig_modes[SECOND] = NotSupported("Not Supported")
    count(nvml, rank(attempt()), 1)

    assert energy_kwh(attempt()) == 1


def test_the_name_that_torch_has_for_a_gpu_is_nvmls(monkeypatch):
    gpu = SimpleNamespace(uuid=f"{SECOND}")
    monkeypatch.setattr(energy_meter.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(energy_meter.torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(energy_meter.torch.cuda, "get_device_properties", {1: gpu}.get)

    assert energy_meter._gpu_uuid() == SECOND


def test_our_nvml_has_nvmls_names():
    """NVML's own package needs no driver to be imported."""
    nvml = pytest.importorskip("pynvml")

    assert {name for name in dir(FakeNvml) if name[0] != "_"} <= {*dir(nvml)}
    assert issubclass(nvml.NVMLError_NotSupported, nvml.NVMLError)


def test_an_attempts_row_has_its_energy(nvml, ledger, config):
    attempt = Attempt.begin(run_spec(config()), ledger, 1)
    end = End(outcome=Outcome.FINISHED, reason="")
    assert attempt.row(end, ledger.results)["energy_kwh"] is None

    count(nvml, rank(attempt.folder), 0.25)
    assert attempt.row(end, ledger.results)["energy_kwh"] == pytest.approx(0.25)


@pytest.mark.slow
def test_rows_have_the_energy_of_all_ranks_and_attempts(config, tmp_path):
    """Each rank's counter goes up by 1 kWh whenever it is read, here twice in each attempt."""
    ledger = Ledger(tmp_path)
    ledger.prepare()
    short = {"batch": 768, "micro_batch": 384, "warmup": 0, "epochs": 2, "devices": 2}
    short["data"] = {**config()["data"], "num_train_examples": 768}

    def row(until: int) -> pd.Series:
        to_do = claim_tasks(plan([config(**short)], ledger), ledger, retry=None, rerun=None)
        ranks = LocalRanks(partial(train_counted, until))
        for _ in run_here(to_do, ledger, Machine(cores=2), ranks=ranks):
            pass
        return pd.read_parquet(tmp_path / "runs").iloc[0]

    begun, ended = row(until=1), row(until=2)
    assert (begun.outcome, begun.energy_kwh) == ("preempted", pytest.approx(2))
    assert (ended.attempt, ended.outcome, ended.energy_kwh) == (2, "finished", pytest.approx(4))
