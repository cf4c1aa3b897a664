"""The critical batch of tuned studies, and the rule that asks for it, on a known hyperbola."""

from dataclasses import replace
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from test_tuning import simulated, store

from analysis.tuning.critical import find_critical_batches, tuned_critical_batch
from sweeper.commands.user_facts import add_facts
from sweeper.spec.run_spec import run_spec
from sweeper.store.table_files import write_rows

#: Li et al.'s equation 22, `1 / S = 1 / S_min - B_noise / E`, at S_min 100 and B_noise 500.
STEPS = {100: 600, 500: 200, 2500: 120}
RATES = {"base_lr": FloatDistribution(1e-3, 1, log=True)}


@pytest.fixture
def results(tmp_path):
    """Studies whose first trial takes as many steps to a loss of 1 as the paper's, others more."""

    def make(space=RATES):
        tuned = simulated(seeds=(0, 1), n_trials=3, space=RATES, batches=(*STEPS,))
        tuned = replace(tuned, space=space)
        tuned.trials[["loss", "value"]] = 0.5
        tuned.trials["outcome"] = "finished"
        store(tuned, tmp_path)
        curves = []
        for row in tuned.trials.to_dict("records"):
            steps = STEPS[row["global_batch"]] * (1 + row["trial"] / 2)
            for epoch in range(1, 13):  # straight from 2 over 1, at those steps, to 1/2
                step = epoch * steps / 8
                curves.append(
                    {"run_id": row["run_id"], "attempt": 1, "epoch": epoch, "step": round(step),
                     "examples_seen": round(step) * row["global_batch"],
                     "val_loss": 2 - step / steps}
                )  # fmt: skip
        write_rows(curves, tmp_path / "curves" / "compact-1.parquet")
        return tmp_path

    return make


@pytest.mark.parametrize("target", [1.0, 0.75, None])
def test_the_best_trial_of_each_batch_gives_the_papers_noise_scale(results, target):
    assert tuned_critical_batch(results(), target) == pytest.approx(500, rel=0.01)


def test_surge_has_its_highest_rate_at_the_critical_batch(results, grid):
    words = ["lr_rule=surge", "base_batch=500", "batch=125,500,2000", "base_lr=0.1", "bn_span=125"]
    asked = [f"+lr_rule.measured_in={results()}", "+lr_rule.measured_at=1"]

    specs = [
        run_spec(config)
        for config in add_facts(grid(*words, "lr_rule.noise_scale=critical", *asked), results())
    ]

    scale = specs[0].config.lr_rule.noise_scale
    given = [run_spec(config) for config in grid(*words, f"lr_rule.noise_scale={scale}")]
    assert [s.schedule.peak_lr for s in specs] == pytest.approx([0.08, 0.1, 0.08], rel=0.01)
    assert [spec.run_id for spec in specs] == [spec.run_id for spec in given]


@pytest.mark.parametrize(
    ("space", "words", "said"),
    [
        ({"warmup": IntDistribution(0, 3)}, ["=1"], r"the learning rate must be tuned; got warmup"),
        (RATES, ["=0.1"], "three or more batches must reach the target in every run; got 0"),
        (
            RATES,
            [],
            r"lr_rule\.noise_scale=critical needs \+lr_rule\.measured_in=FOLDER, .* got null",
        ),
    ],
)
def test_a_folder_that_does_not_say_it_is_refused(results, grid, space, words, said):
    folder = results(space)
    where = [f"+lr_rule.measured_in={folder}"] * len(words)
    where += [f"+lr_rule.measured_at{level}" for level in words]

    with pytest.raises(ValueError, match=said):
        list(add_facts(grid("lr_rule=surge", "lr_rule.noise_scale=critical", *where), folder))


def test_batch_warmup_by_measured_branches_is_that_by_the_numbers_they_say(grid, tmp_path):
    """The published branches: the estimate of `sweeper analysis branches`, and the rule of it."""
    folder = Path(__file__).parents[3] / "docs/results/critical_batch"
    words = ("schedule=batch_warmup", "batch=16", "bn_span=16", "epochs=12", "warmup=0")
    asked = (f"+schedule.measured_in={folder}", "+schedule.margin=0.01")

    (config,) = add_facts(grid(*words, *asked), tmp_path)

    schedule = config["schedule"]
    found = find_critical_batches(folder, 0.01)
    assert dict(zip(schedule["positions"], schedule["critical_batch"], strict=True)) == found
    given = [f"schedule.{key}={[*values]}" for key, values in
             (("positions", found), ("critical_batch", found.values()))]  # fmt: skip
    (by_hand,) = map(run_spec, grid(*words, *given))
    assert by_hand.batch_plan == run_spec(config).batch_plan
    assert len(by_hand.batch_plan.starts) > 1
    assert by_hand.run_id == run_spec(config).run_id


def test_batch_warmup_without_branches_is_refused_before_anything_starts(grid, tmp_path):
    with pytest.raises(ValueError, match=r"^schedule\.critical_batch=measured needs \+schedule"):
        list(add_facts(grid("schedule=batch_warmup", "batch=3840"), tmp_path))
    with pytest.raises(ValueError, match=r"^warmup_unit must be epochs .* got warmup_unit=steps"):
        list(add_facts(grid("schedule=batch_warmup", "warmup_unit=steps"), tmp_path))
