"""Tuned studies into numbers: what went into simulated studies comes out again."""

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from analysis.cli import main
from analysis.stats.rules import compare_rules
from analysis.tuning.figures import draw_rates, draw_space, draw_steps, draw_trials
from analysis.tuning.load import best_trials, importance, load_tuned, steps_to_target
from analysis.tuning.tuned_rates import regret, tuned_optima
from sweeper.store.parquet import write_curves, write_runs
from sweeper.tuning.objectives import objectives
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study import RUNS_KEY, PointStudy
from sweeper.tuning.study_settings import StudySettings

SPACE = {"base_lr": FloatDistribution(1e-3, 10, log=True), "warmup": IntDistribution(0, 20)}
BATCHES, BEND, RULE_FACTOR = (256, 512, 1024, 2048, 4096), 1024, 2.0
BEST_WARMUP, NOISE = 8, 0.02


def best_rate(batch: int) -> float:
    """The saturating rule, by which base_lr is best at these values."""
    return 1 / (1 + BEND / batch)


def loss(batch, base_lr, warmup) -> float:
    """A paraboloid in log base_lr and warmup, with warmup of little weight."""
    return np.log(base_lr / best_rate(batch)) ** 2 + ((warmup - BEST_WARMUP) / 100) ** 2


def simulate(results, seeds=(0, 1, 2, 3), n_trials=16, space=SPACE, batches=BATCHES) -> None:
    """Studies whose trials are told from `loss`; runs that pass base_lr=4 diverge."""
    settings = StudySettings(
        space=space, objectives=objectives(["val_loss"]), constraints={}, sampler_seed=0,
        sampler={"_target_": "sweeper.tuning.samplers.QuasiRandomSampler"},
        pruner={"_target_": "optuna.pruners.NopPruner"}, averaged=[],
    )  # fmt: skip
    storage, rng = open_storage(None, results), np.random.default_rng(7)
    rows, curves = [], []
    for batch in batches:
        for seed in seeds:
            words = [f"batch={batch}", f"seed={seed}"]
            study = PointStudy(" ".join(words), words, settings, storage)
            for number in range(n_trials):
                trial = study.ask()
                rate, run_id = trial.params["base_lr"], f"{batch:05d}{seed:03d}{number:04d}"
                value = loss(batch, rate, trial.params.get("warmup", BEST_WARMUP)) + seed
                value += NOISE * rng.standard_normal()
                outcome = "diverged" if rate > 4 else "finished"
                row = {"run_id": run_id, "attempt": 1, "outcome": outcome, "reason": "simulated",
                       "global_batch": batch, "base_batch": 256, "base_lr": rate, "seed": seed,
                       "peak_lr": RULE_FACTOR * rate, "lr_rule": "linear",
                       "val_loss": value}  # fmt: skip
                rows.append(row)
                curves += [
                    {"run_id": run_id, "attempt": 1, "epoch": epoch, "step": 10 * epoch,
                     "val_loss": value + 3 - epoch} for epoch in (1, 2, 3)
                ]  # fmt: skip
                trial.set_user_attr(RUNS_KEY, [run_id])
                study.tell(trial, [row])
    write_runs(rows, results / "runs" / "compact-1.parquet")
    write_curves(curves, results / "curves" / "compact-1.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    simulate(results)
    return results


@pytest.fixture(scope="module")
def tuned(folder):
    (only,) = load_tuned(folder)
    return only


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_the_best_rate_of_every_batch_lies_in_its_interval(tuned, rng):
    table = tuned_optima(tuned, "base_lr", rng).table()

    truth = [best_rate(batch) for batch in BATCHES]
    assert list(table["global_batch"]) == list(BATCHES)
    assert (table["low"] <= truth).all()
    assert (table["high"] >= truth).all()
    assert table["best"].to_numpy() == pytest.approx(truth, rel=0.1)
    assert table["is_interior"].all()


def test_peak_rates_are_base_rates_after_their_rule(tuned, rng):
    base = tuned_optima(tuned, "base_lr", rng, draws=10)
    peak = tuned_optima(tuned, "peak_lr", rng, draws=10)

    assert peak.best == pytest.approx(RULE_FACTOR * base.best)
    assert peak.high_edge == pytest.approx(RULE_FACTOR * base.high_edge)


def test_the_batch_where_the_rule_bends_is_recovered(tuned, rng):
    compared = compare_rules(tuned_optima(tuned, "base_lr", rng))

    bend = compared.bends["saturating"]
    assert bend.low < BEND < bend.high
    assert bend.value == pytest.approx(BEND, rel=0.25)


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say(tmp_path):
    """Of 30 intervals of 95 %, 25 or more hold the truth with probability 0.997."""
    held = 0
    for i in range(6):
        simulate(tmp_path / str(i), n_trials=8 + i)
        (one,) = load_tuned(tmp_path / str(i))
        table = tuned_optima(one, "base_lr", np.random.default_rng(i), draws=300).table()
        truth = np.array([best_rate(batch) for batch in BATCHES])
        held += int(((table["low"] <= truth) & (table["high"] >= truth)).sum())

    assert held >= 25


def test_one_study_a_batch_says_that_its_interval_is_over_trials(tmp_path, rng):
    simulate(tmp_path, seeds=(0,), batches=(256, 512))
    (single,) = load_tuned(tmp_path)

    optima = tuned_optima(single, "base_lr", rng, draws=200)

    assert optima.num_seeds == 1
    assert optima.note == "intervals over trials, not over seeds"


def test_diverged_trials_are_counted_and_not_best(tuned):
    best = best_trials(tuned)

    assert best["num_diverged"].sum() == (tuned.trials["outcome"] == "diverged").sum() > 0
    assert (best["num_trials"] == 16).all()
    assert (best["outcome"] == "finished").all()


def test_a_best_trial_at_the_edge_says_to_widen_its_range(tmp_path):
    space = {"base_lr": FloatDistribution(1e-3, 0.05, log=True)}
    simulate(tmp_path, seeds=(0,), batches=(4096,), space=space, n_trials=40)

    (row,) = best_trials(load_tuned(tmp_path)[0]).to_dict("records")

    assert row["advice"].startswith("the best base_lr=0.04")
    assert row["advice"].endswith("is at the high end of its range (0.001 to 0.05): "
                                  "widen it upwards")  # fmt: skip


def test_regret_has_an_interval_over_seeds_and_fitted_rules(tuned, rng):
    table = regret(tuned, rng).set_index(["rule", "global_batch"])

    lost = np.log(best_rate(4096) / best_rate(256)) ** 2
    none = table.loc[("none", 4096)]
    assert none["low"] < none["regret"] < none["high"]
    assert none["regret"] == pytest.approx(lost, rel=0.3)
    saturating = table.loc[("saturating", 4096)]
    assert abs(saturating["regret"]) < lost / 20
    assert set(table.index.get_level_values("rule")) == {
        "none", "sqrt", "linear", "saturating", "surge",
    }  # fmt: skip


def test_regret_is_nothing_for_the_rule_that_holds_and_at_the_first_batch(tuned, rng):
    """Constant rates lose log(ratio of rates)**2, up to the spacing of the trials."""
    table = regret(tuned, rng).set_index(["rule", "global_batch"])

    first = table.xs(BATCHES[0], level="global_batch")
    assert first["regret"].to_numpy() == pytest.approx(0, abs=1e-9)
    lost = np.log(best_rate(4096) / best_rate(256)) ** 2
    assert table.loc[("none", 4096), "regret"] == pytest.approx(lost, rel=0.3)
    assert table.loc[("sqrt", 4096), "regret"] < table.loc[("none", 4096), "regret"] / 4


def test_a_rate_beyond_the_trials_has_no_regret_but_a_note(tmp_path, rng):
    space = {"base_lr": FloatDistribution(1e-2, 1.5, log=True)}
    simulate(tmp_path, space=space)

    table = regret(load_tuned(tmp_path)[0], rng).set_index(["rule", "global_batch"])

    assert np.isnan(table.loc[("linear", 4096), "regret"])
    assert table.loc[("linear", 4096), "note"] == "this rate lies beyond the trials"


def test_importance_tells_the_rate_that_matters_from_the_warmup_that_does_not(tmp_path):
    simulate(tmp_path, seeds=(0,), batches=(1024,), n_trials=100)

    shares = importance(load_tuned(tmp_path)[0]).set_index("key")["importance"]

    assert shares.sum() == pytest.approx(1)
    assert shares["base_lr"] > 5 * shares["warmup"]


def test_steps_to_target_are_the_fewest_of_any_trial(tuned, folder):
    """A trial's loss is its value plus 3, 2, 1, 0: targets are first met at the end of an epoch."""
    curves = pd.read_parquet(folder / "curves")
    reached = steps_to_target(tuned, curves, target=1.5, column="val_loss").set_index("study")

    low = tuned.trials.groupby("study")["loss"].min()
    expected = {name: 10 * int(np.ceil(3 + value - 1.5)) for name, value in low.items()}
    for name, steps in expected.items():
        if steps <= 30:
            assert reached.loc[name, "steps_to_target"] == max(steps, 10)
            assert reached.loc[name, "reached_target"]
        else:
            assert not reached.loc[name, "reached_target"]
            assert np.isnan(reached.loc[name, "steps_to_target"])
    assert not reached["reached_target"].all()
    assert reached["reached_target"].any()


def test_figures_draw_what_the_tables_say(tuned, folder):
    _, trials = draw_trials(tuned)
    _, rates = draw_rates(tuned)
    curves = pd.read_parquet(folder / "curves")
    _, space = draw_space(tuned)
    _, steps = draw_steps(steps_to_target(tuned, curves, 2.5, "val_loss"), "val_loss 2.5")

    assert len(trials) == len(tuned.trials)
    assert trials["is_best"].sum() == len(tuned.studies)
    assert len(space) == len(trials)
    assert space["is_best"].sum() == len(tuned.studies)
    assert list(rates["global_batch"]) == list(BATCHES)
    assert rates["linear rule"].iloc[-1] == pytest.approx(16 * rates["best"].iloc[0])
    examples = steps["perfect_scaling"] * steps["global_batch"]
    assert examples.to_numpy() == pytest.approx(examples[0])


def test_the_command_writes_figures_and_words(folder, tmp_path, capsys):
    code = main(["tuning", str(folder), "--target", "2.5", "--out", str(tmp_path)])

    said = capsys.readouterr().out
    assert code == 0
    assert said.startswith("20 studies of val_loss: ")
    assert "If the saturating rule holds, it bends at batch" in said
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "tuned_rates.png", "tuned_space.png", "tuned_steps.png", "tuned_trials.png",
    ]  # fmt: skip


def test_a_folder_without_studies_is_refused(tmp_path):
    with pytest.raises(ValueError, match="results must hold studies of hydra/sweeper=optuna; got"):
        load_tuned(tmp_path)


def test_several_objectives_are_left_to_optuna(tmp_path):
    simulate(tmp_path, seeds=(0,), batches=(256,))
    optuna.create_study(
        study_name="front", storage=open_storage(None, tmp_path), directions=["minimize"] * 2
    )

    (only,) = load_tuned(tmp_path)

    assert list(only.studies) == ["batch=256 seed=0"]
