"""The settings of hydra/launcher=slurm are checked before anything is submitted."""

import pickle
import subprocess

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from sweeper.launch.slurm.submit import make_arrays, read_request, sbatch_options
from sweeper.planning.plan import Task
from sweeper.spec.run_spec import run_spec


@pytest.mark.parametrize(
    "changes", [{}, {"account": 1234, "gpus_per_node": 0}, {"memory_gib": 7.5, "throttle": 3}]
)
def test_a_request_is_what_the_preset_and_the_command_say_and_travels_to_the_job(settings, changes):
    request = read_request(settings(**changes))

    assert request.model_dump() == settings(**changes)
    assert pickle.loads(pickle.dumps(request)) == request


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"warning_s": "soon"},
            "warning_s must be a whole number, 1 or more; got warning_s='soon'.",
        ),
        (
            {"term_grace_s": None},
            "term_grace_s must be a number, 0 or more; got term_grace_s=null.",
        ),
        ({"throttle": 0}, "throttle must be a whole number, 1 or more, or null; got throttle=0."),
        (
            {"gpus_per_node": "all"},
            "gpus_per_node must be a whole number, 0 or more, or auto; got gpus_per_node='all'.",
        ),
        ({"setup": "module load"}, "setup must be a list of shell lines; got setup='module load'."),
        (
            {"grace_s": 120},
            "grace_s must be below warning_s, and that more than 60 s below the time limit, as "
            "SLURM may warn that much earlier; got grace_s=120, warning_s=120, time_min=60 "
            "(3600 s). Give the job more time or shorten these.",
        ),
        (
            {"parameters": {"test-only": True, "qos": "x", "wait": True}},
            "parameters must not contain array, parsable, quiet, test_only, wait, as each run "
            "needs a job that the command knows; got test_only, wait. Remove these options.",
        ),
        (
            {"pulling_jobs": 2, "runs_per_job": 3},
            "runs_per_job must be 1 with pulling_jobs, whose jobs take runs until none is left; "
            "got runs_per_job=3, pulling_jobs=2. Leave one of them out.",
        ),
    ],
)
def test_an_impossible_request_is_refused_in_a_sentence(settings, changes, sentence):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  compared whole
        read_request(settings(**changes))

    assert str(refused.value) == f"hydra.launcher.{sentence}"


@pytest.mark.parametrize(
    ("preset", "asked"),
    [  # what the sites' own job scripts ask for a run over a node's devices
        (
            "perlmutter",
            {"devices": 4, "gpus_per_node": 4, "cpus_per_task": 32, "slurm_constraint": "gpu"},
        ),
        ("frontier", {"devices": 8, "gpus_per_node": 8, "cpus_per_task": 7, "timeout_min": 120}),
        ("lumi", {"devices": 8, "gpus_per_node": 8, "cpus_per_task": 7}),
    ],
)
def test_the_presets_of_public_systems_ask_for_what_their_documentation_says(
    loader, config, preset, asked
):
    words = [f"hydra/launcher=slurm_{preset}", "hydra.launcher.account=abc123"]
    composed = loader.load_configuration("config", words, run_mode=RunMode.MULTIRUN)
    settings = OmegaConf.to_container(composed.hydra.launcher)
    del settings["_target_"]
    run = run_spec(config(accelerator="gpu", devices=asked["devices"], batch=3072))
    request = read_request(settings)

    (array,) = make_arrays([Task(spec=run, number=1)], 1, request, largest=10)
    options = sbatch_options(array, request)

    assert options["slurm_account"] == "abc123"
    assert options["tasks_per_node"] == asked.pop("devices")
    assert {key: options.get(key) for key in asked} == asked


def test_a_warning_before_python_handles_it_ends_nothing(settings, config):
    request = read_request(settings())
    (array,) = make_arrays([Task(spec=run_spec(config()), number=1)], 1, request, largest=10)
    lines = sbatch_options(array, request)["slurm_setup"]

    script = "\n".join([*lines, "exec sh -c 'kill -USR1 $$; echo alive'"])
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert said.stdout == "alive\n"
