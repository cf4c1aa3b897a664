"""`python -m analysis frontier`: what it says, draws and refuses."""

import numpy as np
import pandas as pd
import pytest

from analysis.cli import main
from tests.simulated_studies import simulated_curves, simulated_runs, write_results

GIVEN = ("--steps", "256:50000,1024:20000,4096:12000", "--parameters", "25000000")
SPEED = ("--examples-per-s", "16:290,128:367")
SUMMIT = ("--cluster", "summit")


@pytest.fixture
def ask(capsys, tmp_path):
    """Run the command: its exit code and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["frontier", *words, "--out", str(tmp_path / "figures")])
        return code, capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    """Three batches with three seeds, trained for 90 epochs; the largest falls short of 0.72."""
    rng = np.random.default_rng(0)
    runs = simulated_runs(
        [256, 1024, 4096], [5], 3, accuracy=lambda b, _: 0.76 - 1e-5 * b, noise=0.002, rng=rng
    )
    steps_s = runs["steps"] * runs["global_batch"] / 367
    return runs.assign(
        train_s=steps_s, start_s=1.0, wall_s=1.05 * steps_s + 1, micro_batch=128, world_size=1,
        accumulation_steps=runs["global_batch"] // 128, device_kind="V100", precision="32-true",
        num_parameters=25_000_000,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontier") / "results"
    write_results(folder, runs, simulated_curves(runs, 90))
    return folder


def test_runs_become_a_table_with_intervals_a_knee_and_a_figure(ask, results, tmp_path):
    code, said = ask(str(results), *SUMMIT, "--target", "0.7")

    assert code == 0
    assert "One device: examples/s 367 at micro-batch 128 (measured on V100); " in said
    assert "evaluations and checkpoints take 5.0% of the time of training." in said
    assert "\n  256 " in said
    assert " to " in next(line for line in said.splitlines() if line.startswith("4,096"))
    assert "The knee: " in said
    assert "The next doubling" in said
    assert (tmp_path / "figures" / "frontier-summit.svg").stat().st_size > 10_000
    assert (tmp_path / "figures" / "frontier-summit.csv").is_file()


def test_a_batch_that_falls_short_is_left_out_and_all_of_them_are_refused(ask, results):
    _, said = ask(str(results), *SUMMIT, "--target", "0.73")

    assert "Left out, as not every run reached the target: batch 4,096." in said

    code, said = ask(str(results), *SUMMIT, "--target", "0.9")

    assert code == 2
    assert said == (
        "Error: every run of a batch must reach the target; got no such batch among 256, 1,024, "
        "4,096. Choose a lower --target, or train longer.\n"
    )


def test_a_run_that_failed_before_its_model_was_made_says_nothing_of_the_others(
    ask, runs, tmp_path
):
    first = runs["run_id"] == runs["run_id"].iloc[0]
    unknown = ["micro_batch", "world_size", "accumulation_steps", "num_parameters", "train_s"]
    runs = runs.assign(outcome=runs["outcome"].mask(first, "failed"))
    runs[unknown] = runs[unknown].mask(first)
    write_results(tmp_path, runs, simulated_curves(runs[~first], 90))

    code, said = ask(str(tmp_path), *SUMMIT, "--target", "0.7")

    assert code == 0
    assert "One device: examples/s 367 at micro-batch 128 (measured on V100); " in said
    assert "100 MB of gradients" in said

    write_results(tmp_path / "all", runs.assign(num_parameters=None), simulated_curves(runs, 90))

    code, said = ask(str(tmp_path / "all"), *SUMMIT, "--target", "0.7")

    assert code == 2
    assert "--parameters must be given, the number in the model: no run tells it; got none." in said


def test_runs_of_less_than_a_second_and_long_evaluations_have_a_frontier_too(ask, runs, tmp_path):
    fast = runs.assign(train_s=runs["train_s"] / 1e7, start_s=0.0)
    write_results(tmp_path, fast.assign(wall_s=4 * fast["train_s"]), simulated_curves(runs, 90))

    code, said = ask(str(tmp_path), *SUMMIT, "--target", "0.7")

    assert code == 0
    assert "evaluations and checkpoints take 300.0% of the time of training." in said


def test_with_devices_each_batch_is_on_so_many_and_the_price_is_added(ask):
    _, said = ask(*GIVEN, *SPEED, *SUMMIT, "--devices", "16", "--price", "2")

    lines = [line.split() for line in said.splitlines()]
    assert [words[1] for words in lines if words[0] in ("256", "1,024", "4,096")] == ["16"] * 3
    assert "cost" in said


def test_a_batch_that_so_many_devices_cannot_share_is_left_out_by_name(ask):
    _, said = ask(*GIVEN, *SPEED, *SUMMIT, "--devices", "64")

    assert "Left out, as not divisible into micro-batches of known speed: batch 256.\n" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*GIVEN, *SPEED), "compare batches on, one of dgx_h100, summit; got none. Describe your"),
        (
            (*GIVEN, *SPEED, "--cluster", "summmit"),
            "one of dgx_h100, summit; got --cluster summmit.",
        ),
        ((*GIVEN, *SUMMIT), "the speed of a device must be known: from runs that finished in one"),
        (
            (*GIVEN, *SPEED, *SUMMIT, "--devices", "300"),
            "--devices must share a batch in micro-batches of known speed, which are 16 or more: "
            "at most 256 for batch 4,096, dividing it; got --devices 300.",
        ),
        (
            (*GIVEN, *SUMMIT, "--examples-per-s", "16:fast"),
            "--examples-per-s must be a speed, or speeds of a device by micro-batch",
        ),
        (
            ("--steps", "256", *SUMMIT, *SPEED, "--parameters", "1"),
            "--steps must be BATCH:STEPS,...; got --steps 256.",
        ),
        (
            ("--steps", "256:9", *SUMMIT, *SPEED),
            "--parameters must be given, the number in the model",
        ),
        (
            (*GIVEN, *SPEED, *SUMMIT, "--evaluation-share", "1"),
            "--evaluation-share must be from 0 to below 1; got --evaluation-share 1.",
        ),
        (SUMMIT, "--target must be given: the metric level that counts as trained; got none."),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(ask, words, sentence):
    code, said = ask(*words)

    assert code == 2
    assert sentence in said


def test_a_preset_of_the_users_own_needs_its_links_and_their_keys(ask, tmp_path):
    folder = tmp_path / "presets"
    (folder / "cluster").mkdir(parents=True)
    preset = folder / "cluster" / "ours.yaml"
    words = (*GIVEN, *SPEED, "--cluster", "ours", "--config-dir", str(folder))

    preset.write_text("devices: 4\n")
    assert "hardware must be given" in ask(*words)[1]

    preset.write_text("devices: 4\nhardware: {link: nvlink}\n")
    assert "hardware.node_gb_per_s must be given" in ask(*words)[1]

    preset.write_text(
        "devices: 4\nprice: 3\nhardware: {link: pci, "
        "node_gb_per_s: 12, network_gb_per_s: 6, bucket_mib: 25}\n"
    )
    code, said = ask(*words)

    assert code == 0
    assert "Cluster ours: nodes of 4, 12 GB/s within, 6 GB/s between" in said
    assert "cost" in said
