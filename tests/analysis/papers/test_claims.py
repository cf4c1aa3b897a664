"""Claims are judged on intervals, and refused where the runs cannot carry them."""

import json

import numpy as np
import pandas as pd
import pytest
from simulated_estimates import replicates_with
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

from analysis.cli import main
from analysis.papers import goyal2017
from analysis.papers.judge import describe_verdict, judge_all, judge_paper, verdict_lines
from analysis.papers.mccord2021 import BATCHES, WARMUPS
from analysis.tables.validity import check_validity


def as_in_the_paper(batch: int, warmup: float) -> float:
    """Falls with the batch; best warmup 5 at 7,680 and 10 at 30,720, clear of any noise."""
    best = 5.0 * (batch / 7680) ** 0.5
    return 0.8 - 0.01 * np.log2(batch / 3840) - 0.02 * (np.log((warmup + 1) / (best + 1))) ** 2


def runs_of(law, seeds=5, noise=0.0005, rules=("linear", "none")) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return simulated_runs(
        BATCHES, WARMUPS, seeds, accuracy=law, noise=noise, rng=rng, rules=rules, epochs=90
    )


def verdicts(runs: pd.DataFrame) -> dict[str, str]:
    return {v.text: v.verdict for v in judged(runs).verdicts}


def judged(runs: pd.DataFrame, paper: str = "mccord2021", curves: pd.DataFrame | None = None):
    return judge_paper(paper, runs, simulated_curves(runs, 1) if curves is None else curves)


def test_a_world_as_in_the_paper_reproduces_every_claim_that_can_be_decided():
    found = verdicts(runs_of(as_in_the_paper))

    undecided = [text for text, verdict in found.items() if verdict != "reproduced"]
    assert undecided == ["At 30,720, linear scaling and none stay below 75.3 %"]


def test_a_world_where_accuracy_rises_with_batch_and_falls_with_warmup_contradicts():
    runs = runs_of(lambda b, w: 0.5 + 0.01 * np.log2(b / 3840) - 0.01 * w)
    runs.loc[runs["lr_rule"] == "none", "val_accuracy"] -= 0.05
    found = verdicts(runs)

    assert found["Accuracy at 30,720 is lower than at 3,840"] == "contradicted"
    assert found["At 7,680, training without warmup is worst"] == "contradicted"
    assert found["At 7,680, 5 epochs of warmup are best"] == "contradicted"
    assert found["At 30,720, linear scaling and none reach the same accuracy"] == "contradicted"


def test_noise_larger_than_the_effect_decides_nothing_and_asks_for_seeds():
    found = judged(runs_of(as_in_the_paper, seeds=3, noise=0.05)).verdicts

    best = next(v for v in found if v.text == "At 7,680, 5 epochs of warmup are best")
    assert best.verdict == "undecided"
    assert best.seeds_needed > 3
    assert "would be decided 4 times in 5" in describe_verdict(best)


def test_identical_learning_rates_refuse_the_comparison_of_rules():
    runs = runs_of(as_in_the_paper).assign(lr_series_hash="one and the same")

    found = judged(runs)

    rules = next(v for v in found.verdicts if "reach the same accuracy" in v.text)
    assert rules.verdict == "refused"
    assert rules.why == (
        "identical learning rates at every step of lr_rule linear and lr_rule none"
    )
    assert check_validity(found.compared.runs)[0].startswith("refusal: These arms are the same: ")


def test_a_diverged_arm_without_warmup_is_worst():
    runs = runs_of(as_in_the_paper)
    lost = (runs["warmup_epochs"] == 0) & (runs["global_batch"] == 30720)
    runs.loc[lost, ["outcome", "val_accuracy"]] = ["diverged", np.nan]

    found = judged(runs).verdicts

    worst = next(v for v in found if v.text == "At 30,720, training without warmup is worst")
    assert worst.verdict == "reproduced"
    assert worst.why == (
        "diverged, hence judged by rank: batch 30,720 warmup 0 linear 5 of 5 (57 to 100 %)"
    )


def test_a_claim_about_75_3_percent_is_for_imagenet_alone():
    runs = runs_of(lambda b, w: 0.7).assign(data="ImageNet", model="ResNet50")

    assert verdicts(runs)["At 30,720, linear scaling and none stay below 75.3 %"] == "reproduced"


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("bn_span", lambda r: r["global_batch"] // 240, "BatchNorm span 16 at 3,840"),
        ("world_size", lambda r: 1 + (r["global_batch"] == 3840), "ranks 2 at 3,840"),
        ("code_hash", lambda r: r["global_batch"].map("h{}".format), "code h3840 at 3,840"),
        (
            "resumed_code",
            lambda r: np.where(r["global_batch"] == 3840, "old", None),
            "code at the start old at 3,840",
        ),
        ("data", lambda r: r["global_batch"].map("d{}".format), "data d3840 at 3,840"),
        ("git_commit", lambda r: r["global_batch"].map("c{}".format), "commit c3840 at 3,840"),
        ("num_train_examples", lambda r: r["global_batch"] + 10**6, "training examples 1,003,840"),
    ],
)
def test_arms_that_differ_in_more_than_the_question_refuse_the_verdict(column, values, words):
    runs = runs_of(as_in_the_paper, rules=("linear",))

    found = judged(runs.assign(**{column: values(runs)}))

    lower = next(v for v in found.verdicts if v.text == "Accuracy at 30,720 is lower than at 3,840")
    assert lower.verdict == "refused"
    assert np.isnan(lower.p)
    assert lower.why.startswith(f"the arms differ in more than the setting in question: {words}")
    within = next(v for v in found.verdicts if v.text == "At 7,680, 5 epochs of warmup are best")
    assert within.verdict == "reproduced"
    said = "Arms differ in more than the setting in question: "
    confounded = next(text for text in check_validity(found.compared.runs) if said in text)
    assert confounded.startswith("refusal: ")
    assert words in confounded
    by_seed = runs.assign(world_size=1 + runs["seed"] % 2)  # in every arm alike
    for alike in (runs, by_seed):
        assert not any(said in text for text in check_validity(alike))


def test_milestones_that_never_fire_and_updates_are_remarks():
    """Decay at 30, 60, 90 in 90 epochs; 30,720 makes 41 whole steps of 1,281,167 images."""
    config = json.dumps({"schedule": {"milestones": [30, 60, 90]}})

    findings = check_validity(runs_of(as_in_the_paper).assign(config_json=config))

    milestone, updates = [text for text in findings if text.startswith("remark: ")]
    assert milestone == "remark: The milestone at epoch 90 never fires in a run of 90 epochs."
    assert "batch 30,720: 41 steps per epoch, 3,690 in all" in updates


def test_a_best_warmup_at_the_edge_of_the_grid_refuses_the_exponent():
    runs = runs_of(lambda b, w: 0.7 - 0.01 * np.log2(b / 3840) + 0.001 * w)

    found = judged(runs)

    exponent = next(v for v in found.verdicts if v.unit == "exponent")
    assert exponent.verdict == "refused"
    assert exponent.why.startswith("the best warmup at batch 7,680")
    edges = [text for text in check_validity(found.compared.runs) if "the longest tried" in text]
    assert len(edges) == len(BATCHES) * 2
    assert edges[0].startswith("refusal: ")
    without = judged(runs_of(lambda b, w: 0.7 - 0.001 * w)).compared.runs  # a best of no warmup
    assert not any("the longest tried" in text for text in check_validity(without))


def goyals_runs() -> pd.DataFrame:
    """Five runs of each published point, with exactly the published mean and spread."""
    frames = []
    for published in goyal2017.PUBLISHED:
        point = published.point
        runs = simulated_runs(
            [point.batch], [point.warmup], 5, accuracy=lambda b, w: 0.5, noise=0.0,
            rng=np.random.default_rng(0), rules=[point.rule],
        )  # fmt: skip
        values = replicates_with(published.accuracy, published.spread, 5)
        frames.append(runs.assign(val_accuracy=values))
    runs = pd.concat(frames, ignore_index=True)
    return runs.assign(run_id=[f"{i:012x}" for i in range(len(runs))])


def test_goyals_own_numbers_reproduce_every_claim_of_theirs():
    """At 8,192 they are 0.14 points below 256, with spreads of 0.12 and 0.09: 0.3 do not matter."""
    found = judged(goyals_runs(), "goyal2017")

    assert [v.verdict for v in found.verdicts] == ["reproduced"] * 6
    assert found.verdicts[0].effect == pytest.approx(-0.0014, abs=1e-9)
    assert found.verdicts[5].effect == pytest.approx(0.4167 - 0.2374, abs=1e-9)


@pytest.mark.parametrize(("change", "verdict"), [(-0.02, "contradicted"), (0.0046, "reproduced")])
def test_goyals_claim_is_of_no_loss_and_not_of_no_difference(change, verdict):
    runs = goyals_runs()
    runs.loc[runs["global_batch"] == 8192, "val_accuracy"] += change

    kept = judged(runs, "goyal2017").verdicts[0]

    assert kept.effect == pytest.approx(change - 0.0014, abs=1e-9)
    assert kept.verdict == verdict


def test_p_values_are_corrected_for_the_claims_that_were_tested():
    """One of five: the others have no points at which anything ran."""
    runs = goyals_runs()
    runs = runs[runs["global_batch"].isin([256, 8192, 16384]) & (runs["lr_rule"] == "linear")]

    found = judged(runs, "goyal2017")

    kept, falls, missing, warmup, *_ = found.verdicts
    assert np.isnan(missing.p)
    assert falls.p_corrected == pytest.approx(3 * falls.p)
    assert warmup.p_corrected == pytest.approx(2 * warmup.p)
    assert kept.p_corrected == kept.p
    (words,) = [words for _, words in verdict_lines(found) if words.startswith(falls.text)]
    assert f"p = {falls.p:.2g}, {falls.p_corrected:.2g} corrected for 3 claims" in words


def test_runs_that_were_added_after_a_look_count_as_another_look():
    """Runs of 60 s, one after another: three seeds of all points, an hour later two more."""
    runs = runs_of(as_in_the_paper).sort_values("seed", kind="stable", ignore_index=True)
    start = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(60 * runs.index, unit="s")
    later = pd.to_timedelta(3600 * (runs["seed"] > 2), unit="s")
    timed = runs.assign(started_at=start, wall_s=59.0)

    once, again = judged(timed), judged(timed.assign(started_at=start + later))

    assert {v.num_looks for v in once.verdicts} == {1}
    assert [v.num_looks for v in again.verdicts if v.num_seeds] == [2] * 11
    alone, twice = once.verdicts[0], again.verdicts[0]
    assert twice.p_corrected == pytest.approx(2 * alone.p_corrected)
    assert "corrected for 11 claims and 2 looks" in describe_verdict(twice, 11)


def test_losses_that_are_equal_at_every_seed_cannot_be_tested():
    found = judged(runs_of(as_in_the_paper).assign(val_loss=0.5)).verdicts

    loss = next(v for v in found if v.where == "figure 9")
    assert loss.verdict == "not tested"
    assert loss.why == "every seed of a point measured the same: nothing to test by"


def test_only_papers_that_the_runs_speak_to_are_judged():
    goyal, mccord = goyals_runs(), runs_of(as_in_the_paper)

    assert [j.paper for j in judge_all(goyal, simulated_curves(goyal, 1))] == ["goyal2017"]
    assert [j.paper for j in judge_all(mccord, simulated_curves(mccord, 1))] == ["mccord2021"]


def optimizers_runs(gain: float) -> pd.DataFrame:
    """Three seeds of three optimizers at two batches; LARS is ahead at the larger one."""
    runs = simulated_runs(
        [2500, 50000], [0], 9, accuracy=lambda b, w: 0.6, noise=0.005,
        rng=np.random.default_rng(3), epochs=20,
    )  # fmt: skip
    names = np.array(["nesterov", "lars", "lamb"])[runs["seed"] // 3]
    ahead = (names == "lars") & (runs["global_batch"] == 50000)
    return runs.assign(
        optimizer=names,
        seed=runs["seed"] % 3,
        steps_per_epoch=20,
        val_accuracy=runs["val_accuracy"] + gain * ahead,
        config_json=[json.dumps({"optimizer": {"name": name}}) for name in names],
    )


@pytest.mark.parametrize(
    ("gain", "power", "verdicts"),
    [(0.18, 0.5, ["reproduced", "reproduced"]), (-0.18, 0.0, ["undecided", "contradicted"])],
)
def test_a_recipe_that_is_ahead_and_a_power_law_are_as_you_et_al_say(gain, power, verdicts):
    """Power 0 stands for the logarithm of the step."""
    runs = optimizers_runs(gain)
    curves = simulated_curves(runs, 20)
    rng = np.random.default_rng(1)
    law = curves["step"] ** power if power else 1 + np.log(curves["step"])
    scale = np.repeat(rng.normal(1, 0.02, len(runs)), 20)

    found = judged(runs, "limit2020", curves.assign(distance_from_start=law * scale)).verdicts

    assert [v.verdict for v in found] == verdicts
    assert np.isnan(found[1].effect) == (power == 0)  # a logarithm has no exponent


@pytest.mark.parametrize(("seeds", "verdict"), [(3, "undecided"), (6, "reproduced")])
def test_a_baseline_that_diverged_is_judged_by_rank(seeds, verdict):
    """Three runs against three have 20 orders: 5 % at the least."""
    runs = pd.concat([optimizers_runs(0.0), optimizers_runs(0.0).assign(seed=lambda r: r.seed + 3)])
    runs = runs[runs["seed"] < seeds].reset_index(drop=True)
    runs["run_id"] = [f"{i:012x}" for i in range(len(runs))]
    lost = (runs["optimizer"] == "nesterov") & (runs["global_batch"] == 50000)
    runs = runs.assign(
        outcome=runs["outcome"].mask(lost, "diverged"),
        val_accuracy=runs["val_accuracy"].mask(lost, 0.25),
    )

    found = judged(runs, "limit2020", simulated_curves(runs, 20)).verdicts[0]

    assert found.verdict == verdict
    assert np.isnan(found.effect)
    assert f"nesterov {seeds} of {seeds} (" in found.why


def test_an_optimizer_with_another_norm_span_is_not_among_those_compared():
    """Of LAMB the runs with the larger span come first; they are another question."""
    runs = optimizers_runs(0.0)
    other = runs[runs["optimizer"] == "lamb"].assign(bn_span=512)
    other["config_json"] = json.dumps({"optimizer": {"name": "lamb"}, "bn_span": 512})
    both = pd.concat([other, runs], ignore_index=True)
    both["run_id"] = [f"{i:012x}" for i in range(len(both))]

    found = judged(both, "limit2020", simulated_curves(both, 20))

    assert found.compared.runs["bn_span"].unique().tolist() == [256]
    assert "optimizer.name" not in found.heading


def test_without_a_constant_rate_nothing_is_said_of_diffusion():
    runs = optimizers_runs(0.18)
    curves = simulated_curves(runs, 20)

    found = judged(runs, "limit2020", curves.assign(lr=1.0 / curves["epoch"])).verdicts

    assert found[1].why == "no run has a recorded distance over six epochs of one learning rate"


def test_the_command_prints_a_verdict_for_every_claim(tmp_path, capsys):
    write_results(tmp_path / "results", runs_of(as_in_the_paper, seeds=1))

    code = main(["claims", str(tmp_path / "results"), "--out", str(tmp_path / "claims.csv")])

    printed = capsys.readouterr().out.splitlines()
    table = pd.read_csv(tmp_path / "claims.csv")
    assert code == 0
    assert len(table) == 12
    for claim in table.itertuples():
        assert any(line.startswith(f"{claim.verdict:>14}  {claim.text} (") for line in printed)


def verdict_on(runs: pd.DataFrame, text: str):
    return next(v for v in judged(runs).verdicts if v.text == text)


def test_a_point_whose_runs_have_no_result_is_not_said_not_to_have_been_run():
    runs = runs_of(as_in_the_paper)
    at = (runs["global_batch"] == 7680) & (runs["warmup_epochs"] == 0)
    failed = runs.assign(outcome=runs["outcome"].mask(at, "failed"))
    lacking = failed[(failed["global_batch"] != 7680) | (failed["warmup_epochs"] != 20)]

    found = verdict_on(lacking, "At 7,680, training without warmup is worst")

    assert found.why == (
        "not run: batch 7,680 warmup 20 linear; run without a result: batch 7,680 warmup 0 linear"
    )


def test_only_points_of_the_question_that_diverged_are_named():
    """Of those at 7,680 the claim about warmups beyond 5 epochs is not about none."""
    runs = runs_of(as_in_the_paper)
    lost = (runs["global_batch"] == 7680) & (runs["warmup_epochs"] == 0) & (runs["seed"] == 0)
    runs = runs.assign(
        outcome=runs["outcome"].mask(lost, "diverged"), val_accuracy=runs["val_accuracy"].mask(lost)
    )

    beyond = verdict_on(runs, "At 7,680, accuracy falls with every warmup beyond 5 epochs")
    worst = verdict_on(runs, "At 7,680, training without warmup is worst")

    assert beyond.why == ""
    assert worst.why.startswith("diverged, hence judged by rank: batch 7,680 warmup 0 linear 1 of")


def test_the_heading_says_that_other_runs_are_left_out():
    runs = runs_of(as_in_the_paper)
    other = runs["seed"] == 4
    two = with_settings(runs, [{"bn_span": 64 if apart else 256} for apart in other])

    assert judged(runs).heading.startswith("McCord & Dash 2021, judged on Simulated, Simulated")
    assert judged(two).heading.startswith(
        "McCord & Dash 2021, judged on 160 of 200 runs: Simulated, Simulated, 90 epochs."
    )


def test_claims_are_answers_for_programs(tmp_path, capsys):
    runs = runs_of(as_in_the_paper, seeds=3, noise=0.01)
    write_results(tmp_path / "results", runs, simulated_curves(runs, 3))

    assert main(["claims", str(tmp_path / "results"), "--paper", "mccord2021", "--json"]) == 0

    answers = json.loads(capsys.readouterr().out)
    of_runs = judge_paper("mccord2021", runs, simulated_curves(runs, 3)).verdicts
    assert [a["settings"]["verdict"] for a in answers] == [v.verdict for v in of_runs]
    assert {a["question"] for a in answers} == {"claim"}
    for answer, verdict in zip(answers, of_runs, strict=True):
        assert answer["answered"] == (verdict.verdict in ("reproduced", "contradicted"))
        assert answer["value"] == (None if np.isnan(verdict.effect) else verdict.effect)
        assert (answer["next"] is None) == answer["answered"]
    undecided = [a for a in answers if not a["answered"] and a["low"] is not None]
    assert undecided  # an interval alone decides no claim
