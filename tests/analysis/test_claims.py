"""Claims are judged on intervals, and refused where the runs cannot carry them."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.claims import in_words, judge_all, preflight
from analysis.cli import main
from analysis.paper.mccord2021 import BATCHES, WARMUPS
from analysis.simulate import simulated_runs, write_results


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
    return {v.text: v.verdict for v in judge_all(runs)[1]}


def test_a_world_as_in_the_paper_reproduces_every_claim_that_can_be_decided():
    found = verdicts(runs_of(as_in_the_paper))

    undecided = [text for text, verdict in found.items() if verdict != "reproduced"]
    assert undecided == ["At 30,720, linear scaling and none stay below 75.3 %"]


def test_a_world_where_accuracy_rises_with_batch_and_falls_with_warmup_contradicts():
    found = verdicts(runs_of(lambda b, w: 0.5 + 0.01 * np.log2(b / 3840) - 0.01 * w))

    assert found["Accuracy at 30,720 is lower than at 3,840"] == "contradicted"
    assert found["At 7,680, training without warmup is worst"] == "contradicted"
    assert found["At 7,680, 5 epochs of warmup are best"] == "contradicted"


def test_arms_that_differ_contradict_the_claim_of_no_difference():
    runs = runs_of(as_in_the_paper)
    runs.loc[runs["lr_rule"] == "none", "val_accuracy"] -= 0.05

    found = verdicts(runs)

    assert found["At 30,720, linear scaling and none reach the same accuracy"] == "contradicted"


def test_noise_larger_than_the_effect_decides_nothing_and_asks_for_seeds():
    _, found = judge_all(runs_of(as_in_the_paper, seeds=3, noise=0.05))

    best = next(v for v in found if v.text == "At 7,680, 5 epochs of warmup are best")
    assert best.verdict == "not decidable"
    assert best.seeds_needed > 3
    assert "seeds a point would decide" in in_words(best)


def test_one_seed_decides_nothing():
    found = verdicts(runs_of(as_in_the_paper, seeds=1))

    assert set(found.values()) == {"not decidable"}


def test_identical_learning_rates_refuse_the_comparison_of_rules():
    runs = runs_of(as_in_the_paper).assign(lr_series_hash="one and the same")

    study, found = judge_all(runs)

    rules = next(v for v in found if "reach the same accuracy" in v.text)
    assert rules.verdict == "not decidable"
    assert rules.why == (
        "refused: identical learning rates at every step of lr_rule linear and lr_rule none"
    )
    assert "same_arms" in {f.kind for f in preflight(study.runs)}


def test_a_diverged_arm_without_warmup_is_worst():
    runs = runs_of(as_in_the_paper)
    lost = (runs["warmup_epochs"] == 0) & (runs["global_batch"] == 30720)
    runs.loc[lost, ["outcome", "val_accuracy"]] = ["diverged", np.nan]

    _, found = judge_all(runs)

    worst = next(v for v in found if v.text == "At 30,720, training without warmup is worst")
    assert worst.verdict == "reproduced"
    assert "5 diverged runs are included" in worst.why


def test_a_claim_about_75_3_percent_is_for_imagenet_alone():
    runs = runs_of(lambda b, w: 0.7).assign(data="ImageNet", model="ResNet50")

    assert verdicts(runs)["At 30,720, linear scaling and none stay below 75.3 %"] == "reproduced"


def test_a_norm_span_that_follows_the_batch_is_refused():
    runs = runs_of(as_in_the_paper)

    findings = preflight(runs.assign(bn_span=runs["global_batch"] // 240))

    confounded = next(f for f in findings if f.kind == "confounded_norm")
    assert confounded.is_refusal
    assert "16 at batch 3,840" in confounded.text
    assert "confounded_norm" not in {f.kind for f in preflight(runs)}


def test_a_milestone_at_the_end_of_the_run_is_pointed_out():
    """Decay at 30, 60, 90 in 90 epochs: the last never fires."""
    runs = runs_of(as_in_the_paper)
    config = json.dumps({"schedule": {"milestones": [30, 60, 90]}})

    findings = preflight(runs.assign(config_json=config))

    texts = [f.text for f in findings if f.kind == "dead_milestone"]
    assert texts == ["The milestone at epoch 90 never fires in a run of 90 epochs."]


def test_updates_are_always_told():
    """30,720 makes 41 whole steps of 1,281,167 images, 3,690 in 90 epochs."""
    findings = preflight(runs_of(as_in_the_paper))

    text = next(f.text for f in findings if f.kind == "updates")
    assert "batch 30,720: 41 steps an epoch, 3,690 in all" in text


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_command_prints_a_verdict_for_every_claim(seeds, tmp_path, capsys):
    write_results(tmp_path / "results", runs_of(as_in_the_paper, seeds=seeds))

    code = main(["claims", str(tmp_path / "results"), "--out", str(tmp_path / "claims.csv")])

    assert code == 0
    table = pd.read_csv(tmp_path / "claims.csv")
    assert len(table) == 12
    assert all(text in capsys.readouterr().out for text in table["text"][:1])
