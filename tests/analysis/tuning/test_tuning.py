"""Tuned studies into numbers: what went into simulated studies comes out again."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from pandas.testing import assert_frame_equal

from analysis.cli import main
from analysis.figures import sheet
from analysis.figures.target import draw_steps_to_target
from analysis.stats.optimum import exponent
from analysis.tuning.figures import draw_rates, draw_trials
from analysis.tuning.rates import regret, tuned_optima
from analysis.tuning.report import describe_studies
from analysis.tuning.studies import Tuned, best_trials, load_tuned, steps_to_target, tuned_confounds
from sweeper.store.table_files import write_rows
from sweeper.tuning.point_study import RUNS_KEY, PointStudy
from sweeper.tuning.samplers import QuasiRandomSampler
from sweeper.tuning.storage import open_storage
from sweeper.tuning.study_settings import StudySettings, parse_objective

SPACE = {"base_lr": FloatDistribution(1e-3, 10, log=True), "warmup": IntDistribution(0, 20)}
BATCHES, BEND, RULE_FACTOR = (256, 512, 1024, 2048, 4096), 1024, 2.0
BEST_WARMUP, NOISE = 8, 0.02


def best_rate(batch: int) -> float:
    """The saturating rule, by which base_lr is best at these values."""
    return 1 / (1 + BEND / batch)


def loss(batch, base_lr, warmup) -> float:
    """A paraboloid in log base_lr and warmup, with warmup of little weight."""
    return np.log(base_lr / best_rate(batch)) ** 2 + ((warmup - BEST_WARMUP) / 100) ** 2


def simulated(seeds=(0, 1, 2, 3), n_trials=16, space=SPACE, batches=BATCHES) -> Tuned:
    """Studies whose trials have `loss`; runs that pass base_lr=4 diverge."""
    rng, sampler = np.random.default_rng(7), QuasiRandomSampler(space, seed=0)
    rows = []
    for batch, seed, number in product(batches, seeds, range(n_trials)):
        params = sampler.point(number)
        rate = params["base_lr"]
        value = loss(batch, rate, params.get("warmup", BEST_WARMUP)) + seed
        value += NOISE * rng.standard_normal()
        row = {"study": f"batch={batch} seed={seed}", "trial": number,
               "outcome": "diverged" if rate > 4 else "finished", "reason": "simulated",
               "run_id": f"{batch:05d}{seed:03d}{number:04d}", **params,
               "global_batch": batch, "base_batch": 256, "peak_lr": RULE_FACTOR * rate,
               "lr_rule": "linear", "seed": seed}  # fmt: skip
        row["loss"] = row["value"] = value if row["outcome"] == "finished" else np.inf
        rows.append(row)
    return Tuned(pd.DataFrame(rows), space, "val_loss", {})


def store(tuned: Tuned, results) -> None:
    """A results folder with these studies and the tables of their runs."""
    settings = StudySettings(
        space=tuned.space, objective=parse_objective("val_loss"), sampler_seed=0,
        sampler={"_target_": "sweeper.tuning.samplers.QuasiRandomSampler"},
        pruner={"_target_": "optuna.pruners.NopPruner"},
    )  # fmt: skip
    storage, curves = open_storage(results), []
    rows = tuned.trials.assign(val_loss=tuned.trials["loss"], attempt=1, config_json="{}")
    for name, trials in rows.groupby("study", sort=False):
        study = PointStudy(name, name.split(" "), settings, storage)
        for row in trials.to_dict("records"):
            trial = study.ask()
            trial.set_user_attr(RUNS_KEY, [row["run_id"]])
            study.tell(trial, row)
            curves += [
                {"run_id": row["run_id"], "attempt": 1, "epoch": epoch, "step": 10 * epoch,
                 "val_loss": row["loss"] + 3 - epoch} for epoch in (1, 2, 3)
            ]  # fmt: skip
    write_rows(rows.to_dict("records"), results / "runs" / "compact-1.parquet")
    write_rows(curves, results / "curves" / "compact-1.parquet")


@pytest.fixture(scope="module")
def tuned():
    return simulated()


@pytest.fixture(scope="module")
def few():
    """Studies few enough to be stored."""
    return simulated(seeds=(0, 1), n_trials=8, batches=BATCHES[:3])


@pytest.fixture(scope="module")
def folder(few, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    store(few, results)
    return results


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_studies_are_read_back_as_they_were_told(few, folder):
    (found,) = load_tuned(folder)

    assert found.space == few.space
    assert found.metric.label == "val_loss"
    shared = [name for name in few.trials if name != "reason"]
    pd.testing.assert_frame_equal(found.trials[shared], few.trials[shared], check_dtype=False)


def odd_journals(content: bytes, draw: random.Random) -> Iterator[bytes]:
    """A line lost, of another program, or with another value; a bit flipped; the end lost."""
    lines = content.splitlines(keepends=True)
    for _ in range(12):
        number = draw.randrange(len(lines))
        line = json.loads(lines[number])
        line[draw.choice(list(line))] = draw.choice([None, 1, "x", [], {}, -1, 99])
        odd = draw.choice(
            [b"", b"[]\n", b"{}\n", b"[" * 99_999 + b"\n", b"%s\n" % json.dumps(line).encode()]
        )
        yield b"".join([*lines[:number], odd, *lines[number + 1 :]])
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        yield bytes(flipped)
        yield content[: draw.randrange(len(content))]


def test_a_damaged_journal_is_read_or_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "tuning.journal"
    content = journal.read_bytes()
    for odd in odd_journals(content, random.Random(5)):
        journal.write_bytes(odd)
        said = "results must hold"
        try:
            load_tuned(tmp_path)
        except ValueError as error:
            said = str(error)
        assert said.startswith((f"{journal} must be a journal of Optuna's", "results must hold"))


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


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Of 30 intervals of 95 %, 25 or more hold the truth with probability 0.997."""
    held = 0
    for i in range(6):
        table = tuned_optima(
            simulated(n_trials=8 + i), "base_lr", np.random.default_rng(i), draws=300
        ).table()
        truth = np.array([best_rate(batch) for batch in BATCHES])
        held += int(((table["low"] <= truth) & (table["high"] >= truth)).sum())

    assert held >= 25


def test_one_study_a_batch_says_that_its_interval_is_over_trials(rng):
    single = simulated(seeds=(0,), batches=(256, 512))

    optima = tuned_optima(single, "base_lr", rng, draws=200)

    assert optima.num_seeds == 1
    assert optima.note == (
        "intervals over trials, not over seeds; runs that diverged are not in the fit: "
        "2 of 32 (2 to 20 %)"
    )


@pytest.mark.parametrize("column", ["world_size", "code_hash", "resumed_code", "git_commit"])
def test_batches_that_differ_in_more_than_the_question_have_no_rule(tuned, column):
    trials = tuned.trials.assign(**{column: tuned.trials["global_batch"].map("x{}".format)})
    other = replace(tuned, trials=trials.assign(run_id="a"))

    said = [*describe_studies(other, pd.DataFrame(), None)]

    assert any(text.startswith("Refused: batches differ in more than") for text in said)
    assert not any(text.startswith("Rules fitted") for text in said)


def test_a_best_value_beyond_the_range_is_said_to_be_beyond_it():
    tuned = simulated(n_trials=16)
    beyond = tuned.trials.assign(loss=tuned.trials["loss"] - tuned.trials["warmup"])
    beyond["value"] = beyond["loss"]

    said = "\n".join(describe_studies(replace(tuned, trials=beyond), pd.DataFrame(), None))

    assert "above 20" in said
    assert "inf " not in said


def test_a_response_that_is_flatter_above_the_best_is_answered(tuned, rng):
    """Losses that rise from the best rate four times as slowly on the right."""
    trials = tuned.trials
    gap = np.log(trials["base_lr"]) - np.log(trials["global_batch"].map(best_rate))
    less = 0.75 * np.where(gap > 0, gap**2, 0)
    flat = replace(tuned, trials=trials.assign(loss=trials["loss"] - less))

    optima = tuned_optima(flat, "peak_lr", rng, draws=50)

    table, truth = optima.table(), RULE_FACTOR * np.array([best_rate(batch) for batch in BATCHES])
    assert ((table["low"] <= truth) & (truth <= table["high"])).all()
    assert np.isfinite([exponent(optima).low, exponent(optima).high]).all()


def test_diverged_trials_are_counted_and_not_best(tuned):
    best = best_trials(tuned)

    assert best["num_diverged"].sum() == (tuned.trials["outcome"] == "diverged").sum() > 0
    assert (best["num_diverged"] + best["num_finished"] == 16).all()
    assert (best["outcome"] == "finished").all()


def test_a_best_trial_at_the_edge_says_to_widen_its_range():
    space = {"base_lr": FloatDistribution(1e-3, 0.05, log=True)}
    one = simulated(seeds=(0,), batches=(4096,), space=space, n_trials=40)

    (row,) = best_trials(one).to_dict("records")

    assert row["advice"].startswith("the best base_lr=0.04")
    assert row["advice"].endswith("is at the high end of its range (0.001 to 0.05): "
                                  "widen it upwards")  # fmt: skip


def test_regret_is_nothing_for_the_rule_that_holds_and_at_the_first_batch(tuned, rng):
    """Constant rates lose log(ratio of rates)**2, up to the spacing of the trials."""
    table = regret(tuned, tuned_optima(tuned, "peak_lr", rng)).set_index(["rule", "global_batch"])

    lost = np.log(best_rate(4096) / best_rate(256)) ** 2
    assert table.xs(BATCHES[0], level="global_batch")["regret"].to_numpy() == pytest.approx(0)
    none = table.loc[("none", 4096)]
    assert none["low"] < none["regret"] < none["high"]
    assert none["regret"] == pytest.approx(lost, rel=0.3)
    assert table.loc[("sqrt", 4096), "regret"] < none["regret"] / 4
    assert abs(table.loc[("saturating", 4096), "regret"]) < lost / 20
    assert set(table.index.get_level_values("rule")) == {
        "none", "sqrt", "linear", "saturating", "surge",
    }  # fmt: skip


def test_a_rate_beyond_the_trials_has_no_regret_but_a_note(rng):
    space = {"base_lr": FloatDistribution(1e-2, 1.5, log=True)}

    tuned = simulated(space=space)
    table = regret(tuned, tuned_optima(tuned, "peak_lr", rng)).set_index(["rule", "global_batch"])

    assert np.isnan(table.loc[("linear", 4096), "regret"])
    assert table.loc[("linear", 4096), "note"] == "this rate lies beyond the trials"


def test_steps_to_target_are_the_fewest_of_any_trial(few, folder):
    """A trial's loss is its value plus 2, 1, 0: a straight line between the ends of epochs."""
    curves = pd.read_parquet(folder / "curves")
    reached = steps_to_target(few, curves, target=0.9).set_index("study")

    low = few.trials.groupby("study")["loss"].min()
    expected = {name: 10 * (3 + value - 0.9) for name, value in low.items()}
    for name, steps in expected.items():
        if steps <= 30:
            assert reached.loc[name, "steps_to_target"] == pytest.approx(max(steps, 10))
            assert reached.loc[name, "reached_target"]
            assert reached.loc[name, "steps_to_target_spacing"] == 10
            assert reached.loc[name, "evaluations_to_target"] == pytest.approx(max(steps / 10, 1))
        else:
            assert not reached.loc[name, "reached_target"]
            assert np.isnan(reached.loc[name, "steps_to_target"])
    assert not reached["reached_target"].all()
    assert reached["reached_target"].any()


def test_an_objective_that_a_module_logs_has_its_name_and_direction(few, folder):
    curves = pd.read_parquet(folder / "curves")
    own = replace(
        few,
        objective="val/r2 max",
        space={"module.lr" if key == "base_lr" else key: few.space[key] for key in few.space},
        trials=few.trials.rename(columns={"base_lr": "module.lr"}),
    )

    found = steps_to_target(own, curves.assign(**{"val/r2": -curves["val_loss"]}), -0.9)

    expected = steps_to_target(few, curves, 0.9)
    assert found["steps_to_target"].equals(expected["steps_to_target"])
    assert (own.rate, own.metric.label) == ("module.lr", "val/r2 (higher is better)")
    assert_frame_equal(draw_rates(own).frame, draw_rates(few).frame)


def test_no_rates_are_drawn_of_too_few_trials(few):
    assert draw_rates(replace(few, trials=few.trials.groupby("study").head(1))) is None


def test_figures_draw_what_the_tables_say(few, folder):
    trials = draw_trials(few).frame
    rates = draw_rates(few).frame
    curves = pd.read_parquet(folder / "curves")
    reached = steps_to_target(few, curves, 2.5)
    steps = draw_steps_to_target(reached, "val_loss 2.5").frame

    assert len(trials) == len(few.trials)
    assert trials["is_best"].sum() == few.trials["study"].nunique()
    assert list(rates["global_batch"]) == list(BATCHES[:3])
    assert rates["linear rule"].iloc[-1] == pytest.approx(4 * rates["best"].iloc[0])
    examples = steps["perfect_scaling"] * steps["global_batch"]
    assert examples.to_numpy() == pytest.approx(examples[0])


@pytest.mark.slow
def test_the_command_writes_figures_and_words(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sheet, "FORMATS", ("svg",))  # the others take most of the time

    code = main(["tuning", str(folder), "--target", "2.5", "--out", str(tmp_path)])

    said = capsys.readouterr().out
    assert code == 0
    assert said.startswith("6 studies of val_loss: ")
    assert "If the saturating rule holds, it bends at batch" in said
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        "tuned_rates.svg", "tuned_steps.svg", "tuned_trials.svg",
    ]  # fmt: skip


def test_a_trial_that_still_runs_makes_its_study_no_other_kind_of_run(few):
    trials = few.trials.assign(bn_span=1)
    trials.loc[0, trials.columns.difference(["study", "trial", "run_id"])] = None

    assert tuned_confounds(replace(few, trials=trials)) == []


def test_only_the_trials_of_chosen_runs_are_described(tmp_path, capsys):
    published = Path(__file__).parents[3] / "docs/results/tuned_digits"
    command = ["tuning", str(published), "--out", str(tmp_path)]

    assert main([*command, "--where", "batch=128,256", "--where", "seed=3"]) == 0
    assert capsys.readouterr().out.startswith("2 studies of val_loss: 32 finished.")

    assert main([*command, "--where", "seed=7"]) == 2


def test_tuned_settings_are_answers_for_programs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sheet, "FORMATS", ("svg",))
    published = Path(__file__).parents[3] / "docs/results/tuned_digits"

    assert main(["tuning", str(published), "--out", str(tmp_path), "--json"]) == 0

    answers = json.loads(capsys.readouterr().out)
    rates = [a for a in answers if a["question"] == "best_rate"]
    assert [a["settings"]["batch"] for a in rates] == [128, 256, 512, 1024, 1920, 3840]
    assert all(a["value"] > 0 for a in rates)
    assert len([a for a in answers if a["question"] == "best_rate_exponent"]) == 1


def test_studies_of_optuna_itself_are_left_out(tmp_path):
    store(simulated(seeds=(0,), batches=(256,), n_trials=2), tmp_path)
    optuna.create_study(
        study_name="front", storage=open_storage(tmp_path), directions=["minimize"] * 2
    )

    (only,) = load_tuned(tmp_path)

    assert list(only.studies) == ["batch=256 seed=0"]
