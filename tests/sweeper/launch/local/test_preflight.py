"""What a run needs of a machine is looked at before any starts."""

import pytest

from sweeper.commands.show_plan import main
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.preflight import check_ready
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import Task
from sweeper.spec.config import run_config
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import run_spec
from sweeper.store.ledger import Ledger

NO_GPU = "accelerator=gpu needs a GPU; got none on this machine"
H100 = Device(kind="H100", memory_gib=80, runs=1)
MISSING = (
    "data.root must hold torchvision's files of CIFAR10; got data.root=/nowhere, which does not "
    "exist. Put them there, or set data.download=true if there is a network."
)
WORDS = ("data=cifar10", "data.root=/nowhere", "data.source=torchvision", "model=resnet8")
MORE = ("optimizer=sgd", "base_lr=0.1", "batch=512", "bn_span=64", "warmup=0")


@pytest.fixture
def refusal(grid):
    """Why runs of these words could not start on a machine; empty if they could."""

    def why(machine, *words):
        try:
            check_ready(map(run_config, grid(*words)), machine)
        except ValueError as error:
            return str(error)
        return ""

    return why


def test_all_that_is_missing_is_said_at_once_and_once(refusal):
    said = refusal(Machine(cores=2), *WORDS, "seed=0,1", "accelerator=gpu").splitlines()

    assert len(said) == 2
    assert said[0].startswith(NO_GPU)
    assert said[1] == MISSING


@pytest.mark.parametrize(
    ("machine", "words", "said"),
    [
        (Machine(cores=2, gpus=["0"]), ["accelerator=gpu"], ""),
        (Machine(cores=2, device=H100), ["accelerator=gpu"], ""),
        (Machine(cores=2, gpus=["0"]), ["devices=2"], "devices must be at most 1, the GPUs of "),
        (Machine(cores=2, gpus=["0"]), ["devices=2", "accelerator=cpu"], ""),
        (Machine(cores=2), ["devices=2"], ""),
        (Machine(cores=2), ["precision=16-mixed"], "precision=16-mixed needs a GPU"),
    ],
)  # fmt: skip
def test_a_device_must_be_there(refusal, machine, words, said):
    found = refusal(machine, *words)

    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("machine", "variable", "said"),
    [
        (Machine(cores=2), "CXX", "a C++ compiler and Python's headers; got no absent on this"),
        (Machine(cores=2, gpus=["0"]), "CC", "a C compiler and Python's headers; got no absent on"),
    ],
)
def test_a_compiler_must_be_there_to_compile(refusal, monkeypatch, machine, variable, said):
    monkeypatch.setenv(variable, "absent")

    assert refusal(machine, "compile=true").startswith(f"compile=true needs {said}")
    assert refusal(machine) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*WORDS, *MORE], r"data\.root must hold torchvision's files of CIFAR10"),
        (["num_nodes=2"], r"num_nodes must be 1 with hydra/launcher=local or queue; got"),
        (["precision=16-mixed"], r"precision=16-mixed needs a GPU"),
    ],
)
def test_no_run_starts_without_what_it_needs(grid, results, words, said):
    (config,) = grid(*words, f"results={results}")
    task = Task(spec=run_spec(config), number=1)

    with pytest.raises(ValueError, match=f"^{said}"):
        next(run_here([task], Ledger(results), Machine(cores=2)))

    assert not results.exists()


@pytest.mark.parametrize(("launcher", "is_said"), [("local", True), ("slurm", False)])
def test_a_plan_says_what_is_missing_here(results, capsys, launcher, is_said):
    code = main([*WORDS, *MORE, f"results={results}", f"hydra/launcher={launcher}"])

    said = capsys.readouterr().err
    assert code == 0
    assert said == f"Cannot run on this machine: {MISSING}\n" * is_said
