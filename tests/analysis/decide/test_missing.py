"""Points of a paper that were not run come with commands that the tool accepts."""

import json
import shlex

import numpy as np
import pandas as pd
from simulated_studies import simulated_runs

from analysis.decide.missing import describe_missing
from sweeper.commands.show_plan import plan_grid


def study(grid, *words: str, **columns) -> pd.DataFrame:
    """Rows of a sweep of these words that finished."""
    configs = grid(*words)
    runs = simulated_runs(
        [configs[0]["batch"]], [0], len(configs), accuracy=lambda b, w: 0.7, noise=0, rng=RNG
    )
    return runs.assign(
        global_batch=[config["batch"] for config in configs],
        warmup_epochs=[float(config["warmup"]) for config in configs],
        seed=[config["seed"] for config in configs],
        epochs=configs[0]["epochs"],
        num_train_examples=configs[0]["data"]["num_train_examples"],
        optimizer=[config["optimizer"]["name"] for config in configs],
        twin_of=configs[0]["twin_of"],
        data=configs[0]["data"]["_target_"].rpartition(".")[2],
        config_json=[json.dumps(config) for config in configs],
        micro_batch=256,
        world_size=1,
        **columns,
    )


RNG = np.random.default_rng(0)


def said(runs: pd.DataFrame, figure: str, paper="mccord2021") -> list[str]:
    texts = [text.split("\n  ") for text in describe_missing(paper, runs, "r")]
    (lines,) = [lines for lines in texts if figure in lines[0].partition(" lack")[0].split(", ")]
    return lines


def specs(command: str) -> list:
    words = [word for word in shlex.split(command)[3:] if word != "-m"]
    return plan_grid(words, config_dir=None)[0].specs


def test_points_are_run_with_all_settings_of_the_runs_and_their_seeds(grid):
    runs = study(grid, "batch=7680", "warmup=0,5", "seed=0,1", "epochs=22", "bn_span=384")

    first, intro, command = said(runs, "figure_6c")

    assert first == (
        "figure_6a, figure_6b, figure_6c lack batch 7,680 warmup 10 linear; "
        "batch 7,680 warmup 20 linear."
    )
    assert intro == "To run them, with the settings of these runs:"
    assert command == (
        "python -m sweeper -m bn_span=384 epochs=22 micro_batch_limit=3840 base_lr=0.025 "
        "batch=7680 warmup=10,20 seed=0,1 results=r"
    )


def test_points_that_would_be_refused_are_left_out_with_the_reason(grid):
    runs = study(grid, "batch=7680", "warmup=0,5", "seed=0", "epochs=12")

    _, refused, intro, command = said(runs, "figure_6c")

    assert refused == (
        "Not possible with the settings of these runs: batch 7,680 warmup 20 linear (warmup must "
        "be shorter than the training; got warmup=20 of epochs=12)."
    )
    assert intro.startswith("To run the others, ")
    (spec,) = specs(command)
    assert (spec.config.batch, spec.config.warmup) == (7680, 10)


def test_where_no_point_is_possible_there_is_no_command(grid):
    runs = study(grid, "batch=7680", "warmup=0,5", "seed=0", "epochs=6")

    assert [line.partition(":")[0] for line in said(runs, "figure_6c")[1:]] == [
        "Not possible with the settings of these runs"
    ]


def test_a_micro_batch_that_does_not_split_a_papers_batch_is_left_to_auto(grid):
    runs = study(grid, "batch=3840", "warmup=5", "seed=0", "micro_batch=768")

    command = said(runs, "figure_1", "goyal2017")[-1]

    assert "micro_batch=" not in command
    assert {spec.bn_span for spec in specs(command)} == {128}


def test_a_point_whose_run_failed_is_tried_again(grid):
    runs = study(grid, "batch=7680", "warmup=0,5,10,20", "seed=0")
    runs.loc[runs["warmup_epochs"] == 20, "outcome"] = "failed"

    command = said(runs, "figure_6c")[-1]

    assert command.endswith("warmup=20 seed=0 results=r retry=failed")


def test_the_command_for_a_twin_is_in_the_twins_numbers(grid):
    runs = study(grid, "+experiment=mccord2021_warmup_small", "batch=300", "warmup=0", "seed=0,1")

    command = said(runs, "figure_7b")[-1]

    assert "data=cifar10 model=resnet8_half schedule=mccord2021_small base_batch=150 " in command
    assert command.endswith(" base_lr=0.2 batch=1200 warmup=0,0.5,1,2 seed=0,1 results=r")
