"""`analysis next`: commands that add just what an open question lacks, and what none decides."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

from analysis.cli import main
from analysis.decide import proposal
from analysis.decide.arms import write_commands
from analysis.decide.command import complete_config
from analysis.decide.proposal import as_json, proposals_text
from analysis.decide.proposals import propose_next
from analysis.papers.judge import judge_all
from analysis.report.estimates import choose_batch
from analysis.tables.load import load_curves, load_runs
from analysis.tables.metric import with_metric
from sweeper.commands.show_plan import plan_grid

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """The small twin's runs, as if this code had made them."""
    folder = tmp_path_factory.mktemp("twin")
    for kind in ("runs", "curves"):
        shutil.copytree(ROOT / "docs/results/cifar10_twin" / kind, folder / kind)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(proposal, "git_commit", load_runs(folder)["git_commit"].iloc[0].__str__)
        yield folder


@pytest.fixture(scope="module")
def propose_for_twin(twin):
    """What is proposed for them, which are judged once."""
    runs, curves = load_runs(twin), load_curves(twin)
    measured, judged = with_metric(twin, runs, curves), judge_all(runs, curves)
    return lambda: as_json(propose_next(measured, judged, choose_batch(measured)))


@pytest.fixture(scope="module")
def of_twin(propose_for_twin) -> list[dict]:
    return propose_for_twin()


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Simulated runs of a law in a folder, as if this code had made them."""
    monkeypatch.setattr(proposal, "git_commit", lambda: None)

    def write(
        law, seeds=3, noise=0.004, batches=(7680, 30720), warmups=(0, 5, 10, 20),
        change=lambda runs: runs,
    ) -> Path:  # fmt: skip
        rng = np.random.default_rng(5)
        runs = simulated_runs(batches, warmups, seeds, accuracy=law, noise=noise, rng=rng)
        runs = change(runs.assign(num_train_examples=61440))
        write_results(tmp_path / "study", runs, simulated_curves(runs, 3))
        return tmp_path / "study"

    return write


def proposals(capsys, folder: Path, *options: str) -> list[dict]:
    assert main(["next", str(folder), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def asks(found: list[dict], start: str) -> dict:
    """The proposal for a question, else that which settles it too."""
    by_question = sorted(found, key=lambda asked: not asked["question"].startswith(start))
    return next(
        asked
        for asked in by_question
        if any(text.startswith(start) for text in [asked["question"], *asked["settles"]])
    )


@pytest.fixture
def ask(study, capsys):
    """The proposal for a question, from a study of a law."""
    return lambda law, start, **changes: asks(proposals(capsys, study(law, **changes)), start)


def planned(command: str) -> tuple[set[str], set[str]]:
    """The runs of a command, and those of them without a result."""
    words = [word for word in shlex.split(command)[3:] if word != "-m"]
    grid, _ = plan_grid(words, config_dir=None)
    return {s.run_id for s in grid.specs}, {s.run_id for s in grid.without_result}


def test_every_command_plans_just_the_runs_that_are_lacking(twin, of_twin):
    ids = set(load_runs(twin)["run_id"])
    for asked in (p for p in of_twin if p["commands"]):
        runs = [planned(command) for command in asked["commands"]]
        everything = set().union(*(every for every, _ in runs))
        lacking = set().union(*(new for _, new in runs))
        assert everything == lacking == set(asked["run_ids"])
        assert not lacking & ids


def test_the_best_warmup_that_is_the_longest_tried_asks_for_longer_ones(twin, of_twin):
    found = asks(of_twin, "The best warmup is at the upper end")

    (command,) = found["commands"]
    assert "data=cifar10 data.root=data model=resnet8_half schedule=mccord2021_small" in command
    assert command.endswith(f" base_lr=0.2 batch=300,1200 warmup=3 seed=0,1,2 results={twin}")
    assert found["why"] == "the best may lie beyond what was tried, as warmup=3"


def test_what_another_commit_made_is_repeated_in_a_folder_of_its_own(
    twin, propose_for_twin, monkeypatch
):
    monkeypatch.setattr(proposal, "git_commit", lambda: "another")

    found = asks(propose_for_twin(), "The best warmup is at the upper end")

    (command,) = found["commands"]
    assert command.endswith(f" batch=300,1200 warmup=0,0.5,1,2,3 seed=0,1,2 results={twin}_again")
    assert "new ones would have another version of the program" in found["repeats"]
    assert "commit" not in found["repeats"]


def test_the_cheapest_decision_comes_first_and_hopeless_ones_last(of_twin):
    hours = [p["device_hours"] / (1 + len(p["settles"])) for p in of_twin if p["commands"]]
    assert hours == sorted(hours)
    assert not any(p["commands"] for p in of_twin[len(hours) :])
    hopeless = asks(of_twin, "At 30,720, linear scaling and none reach the same accuracy")
    assert hopeless["why"].startswith("more than 50 seeds per point are needed")
    assert hopeless["expected_width"] < hopeless["width"]


def test_one_seed_asks_for_three(ask):
    asked = ask(lambda b, w: 0.8 - b / 1e6, "The best warmup grows with the batch", seeds=1)

    assert asked["width"] is None
    assert asked["runs"] == 16
    assert (
        "At 7,680, training without warmup is worst (McCord & Dash 2021, figure 6c)"
        in asked["settles"]
    )
    assert all("seed=1,2 " in command for command in asked["commands"])


def test_where_nothing_differs_few_runs_are_proposed(study, capsys):
    found = proposals(capsys, study(lambda b, w: 0.8, seeds=5))

    warmups = asks(found, "At 7,680, accuracy falls with every warmup beyond 5")
    assert warmups["commands"] == []
    assert "more than 50 seeds" in warmups["why"]


def test_what_lies_beyond_a_papers_grid_is_not_asked_for_once_it_was_run(study, capsys):
    def law(batch, warmup):  # best at 30 epochs at the larger batch
        return 0.9 - 0.02 * np.log((warmup + 1) / (6 if batch == 7680 else 31)) ** 2

    warmups, question = (0, 5, 10, 20, 40, 80), "The best warmup grows with the batch"
    folder = study(law, noise=0.0002, seeds=2, warmups=warmups)

    assert not any(p["question"].startswith(question) for p in proposals(capsys, folder))

    folder = study(law, noise=0.02, seeds=2, warmups=warmups)
    ran = set(load_runs(folder)["run_id"])
    found = asks(proposals(capsys, folder), question)
    assert "beyond what was tried" not in found["why"]
    assert not ran & set(found["run_ids"])


def test_a_point_that_was_not_run_is_added_with_the_seeds_of_the_others(ask):
    def without(runs):
        return runs[(runs["global_batch"] != 7680) | (runs["warmup_epochs"] != 10)]

    start = "At 7,680, 5 epochs of warmup are best"
    found = ask(lambda b, w: 0.8 - w / 100, start, change=without)

    (command,) = found["commands"]
    assert command.split()[-4:-1] == ["batch=7680", "warmup=10", "seed=0,1,2"]
    assert found["expected_width"] > 0


def test_a_diverged_arm_asks_for_as_many_seeds_as_ranks_need(ask):
    def some_diverge(runs):
        lost = (runs["warmup_epochs"] == 0) & (runs["global_batch"] == 30720) & (runs["seed"] > 0)
        accuracy = runs["val_accuracy"].mask(lost)
        return runs.assign(outcome=np.where(lost, "diverged", "finished"), val_accuracy=accuracy)

    start = "At 30,720, training without warmup is worst"
    found = ask(lambda b, w: 0.8, start, change=some_diverge)

    assert "a test by ranks needs 7 or more seeds" in found["why"]  # at this look and the next
    assert found["runs"] == 4 * 4


def test_another_metric_has_edges_of_its_own(study, capsys):
    def losses(runs):
        return runs.assign(val_loss=1 / (1 + runs["warmup_epochs"]))

    folder = study(lambda b, w: 0.8 - w / 100, change=losses)

    found = proposals(capsys, folder, "--metric", "val_loss")
    by_loss = asks(found, "The best warmup is at the upper")
    assert "warmup=24" in by_loss["why"]
    assert not any("best warmup is" in p["question"] for p in proposals(capsys, folder))


RATES = {0: 0.1, 5: 0.2, 10: 0.4, 20: 0.8}


def rates(runs):
    """A base rate in place of each warmup."""
    rate = runs["warmup_epochs"].map(RATES)
    runs = with_settings(runs, [{"base_lr": r} for r in rate.tolist()], warmup=5)
    peak = rate * runs["global_batch"] / 256
    return runs.assign(base_lr=rate, peak_lr=peak, warmup_epochs=5.0)


def test_the_best_rate_at_an_end_asks_for_rates_beyond_it(study, capsys):
    found = proposals(capsys, study(lambda b, w: 0.8 + w / 100, change=rates))

    asked = asks(found, "The best rate is at the upper end of the grid at batch 7,680, 30,720")
    (command,) = asked["commands"]
    assert "base_lr=1.6,3.2 batch=7680,30720 warmup=5 seed=0,1,2" in command
    assert not any("are not compared" in asked["question"] for asked in found)


def test_rates_below_a_grid_of_two_rules_are_near_its_end(study, capsys):
    """Rates 0.1, 0.2 and 0.4 of no rule, and far above them one of a rule."""

    def two_rules(runs):
        runs = rates(runs)
        is_none = runs["base_lr"] < 0.8
        rule = np.where(is_none, "none", "linear")
        runs = with_settings(runs, [{"lr_rule": {"name": name}} for name in rule.tolist()])
        return runs.assign(lr_rule=rule, peak_lr=runs["peak_lr"].mask(is_none, runs["base_lr"]))

    def law(batch, warmup):
        return 0.9 - 0.01 * np.log(RATES[warmup] * (1 if warmup < 20 else batch / 256) / 0.01) ** 2

    found = proposals(capsys, study(law, noise=0.0002, change=two_rules))

    (command,) = asks(found, "The best rate is at the lower end")["commands"]
    assert " lr_rule=none " in command
    assert " base_lr=0.025,0.05 " in command


def test_an_accuracy_that_holds_asks_for_a_larger_batch(ask):
    found = ask(lambda b, w: 0.8 + b / 1e6, "Accuracy holds up", noise=0.0001)

    assert found["question"] == "Accuracy holds up to the largest batch, 30,720"
    assert "batch=61440 " in found["commands"][0]


def completed(runs, **settings):
    """Runs with all keys of today in their configs."""
    whole = [complete_config(json.loads(text)) for text in runs["config_json"]]
    return with_settings(runs, [config | settings for config in whole])


def test_known_speeds_and_a_price_make_a_bill(study, capsys):
    def timed(runs):
        return completed(runs, price=2.5).assign(
            micro_batch=768, accumulation_steps=runs["global_batch"] // 768, train_s=3000.0,
            steps=30 * (61440 // runs["global_batch"]), epochs_completed=30,
            steps_per_epoch=61440 // runs["global_batch"],
            start_s=10.0, wall_s=3600.0, device_kind="cpu", world_size=1,
        )  # fmt: skip

    found = proposals(capsys, study(lambda b, w: 0.8, seeds=1, change=timed))

    best = asks(found, "The best warmup grows with the batch")
    assert best["device_hours"] == pytest.approx(16, rel=0.01)
    assert best["cost"] == pytest.approx(40, rel=0.01)


def test_the_text_says_what_each_costs_and_how_narrow_it_makes(twin, capsys):
    assert main(["next", str(twin)]) == 0

    text = capsys.readouterr().out
    assert text.startswith("1. The best warmup grows with the batch")
    assert "Cost: 5 runs, 0.335 device-hours" in text  # of rows that are older than keys of today
    assert "; the 95 % interval would be 2.04 points wide (now 2.98)." in text
    assert "`sweeper plan --probe`" not in text


def test_a_time_that_is_not_known_is_said_with_what_finds_it_out():
    unknown = proposal.Proposal(
        question="Is it so", configs=[{}], why="3 seeds", commands=["train"]
    )

    first, last = proposals_text([unknown])

    assert first == "1. Is it so\n   train\n   Why: 3 seeds.\n   Cost: 0 runs, time not known."
    assert "`sweeper plan --probe`" in last


def test_runs_without_a_result_leave_nothing_to_propose(study, capsys):
    folder = study(
        lambda b, w: 0.8, change=lambda r: r.assign(outcome="preempted", val_accuracy=np.nan)
    )

    assert main(["next", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Not decided by any proposed run:\n  None of 24 runs has a result\n")


def test_nothing_to_propose_does_not_say_that_no_claim_is_open(study, capsys):
    """Batches of no paper: its claims are not decidable, and nothing is asked."""
    folder = study(lambda b, w: 0.9 - b / 1e5 - w / 100, noise=0.0001, batches=(1000, 6000))

    assert main(["next", str(folder)]) == 0
    assert capsys.readouterr().out == (
        "Nothing to propose: no best setting is at an end of what was tried, no point has a single "
        "seed, more seeds would tell neither batches nor learning-rate rules apart, and no claim "
        "of a paper on these points is open.\n"
    )


def test_two_rules_that_seeds_would_tell_apart_are_asked_for(study, capsys):
    """Batches of no paper, where nothing else is open."""

    def both(runs):
        none = runs.assign(lr_rule="none", run_id="n" + runs["run_id"], lr_series_hash="n")
        parts = completed(runs), completed(none, lr_rule={"name": "none"})
        return pd.concat(parts, ignore_index=True)

    sizes = {"batches": (1024, 6144), "warmups": (0,)}
    folder = study(lambda b, w: 0.9 - b / 1e5, noise=0.0027, change=both, **sizes)

    found = asks(proposals(capsys, folder), "linear or none at batch ")

    assert "seeds of each rule would tell them apart" in found["why"]
    assert found["commands"]


def two_spans(runs):
    """Each batch with micro-batches of its own, over which BatchNorm is."""
    spans = runs["global_batch"].map({7680: 768, 30720: 384})
    changes = [{"bn_span": "micro", "micro_batch": span} for span in spans.tolist()]
    return of_default_model(runs.assign(bn_span=spans, micro_batch=spans), changes)


def of_default_model(runs, changes):
    """Runs of the default model with these settings."""
    whole = [json.loads(text) for text in runs["config_json"]]
    without = [json.dumps({k: v for k, v in own.items() if k != "model"}) for own in whole]
    return with_settings(runs.assign(config_json=without), changes)


def specs_of(commands):
    words = [[word for word in shlex.split(command)[3:] if word != "-m"] for command in commands]
    return [spec for own in words for spec in plan_grid(own, config_dir=None)[0].specs]


def test_arms_of_several_batchnorm_spans_are_not_run_again_as_they_are(ask):
    start = "The best warmup grows with the batch"
    found = ask(lambda b, w: 0.8, start, change=two_spans)

    assert not found["commands"]
    assert found["why"] == (
        "all that is compared must have one BatchNorm span, and run again with it; got bn_span "
        "384, 768. Choose a divisor of all batches"
    )


def test_a_point_that_was_not_run_has_the_micro_batch_of_its_batch(ask):
    """No rule but linear was run; at 30,720 BatchNorm is over 384."""
    start = "At 30,720, linear scaling and none reach the same acc"
    found = ask(lambda b, w: 0.8, start, change=two_spans)

    assert not found["repeats"]
    assert {(s.config.lr_rule.name, s.bn_span) for s in specs_of(found["commands"])} == {
        ("none", 384)
    }


def test_arms_with_other_settings_are_named_and_their_claims_are_open(study, capsys):
    """Explicit spans make two groups: no claim has all its points in one of them."""

    def explicit_spans(runs):
        spans = np.where(runs["global_batch"] == 3840, 768, 384)
        changes = [{"bn_span": span} for span in spans.tolist()]
        return of_default_model(runs.assign(bn_span=spans), changes)

    folder = study(lambda b, w: 0.8, batches=(3840, 30720), warmups=(0, 5), change=explicit_spans)
    found = proposals(capsys, folder)

    claim = asks(found, "Accuracy at 30,720 is lower than at 3,840")
    assert {s.bn_span for s in specs_of(claim["commands"])} == {768}


def test_settings_that_went_are_said_and_stop_nothing(ask):
    def old(runs):
        return with_settings(runs, perturbation={"name": "gone"})

    start = "At 7,680, training without warmup is worst"
    asked = ask(lambda b, w: 0.8, start, seeds=1, change=old)

    assert asked["commands"] == []
    assert asked["why"].startswith("such runs are not possible: perturbation must")


def test_what_the_answer_asks_for_is_what_is_proposed(study, capsys):
    """Seeds of the batches that may be best, where no best setting is at an end of its grid."""
    folder = study(lambda b, w: 0.9 - w / 100, noise=0.004, batches=(1024, 6144))
    assert main(["batch", str(folder), "--json"]) == 0
    (answer,) = [a for a in json.loads(capsys.readouterr().out) if a["question"] == "best_batch"]
    needed = int(answer["settings"]["seeds_needed"])

    found = asks(proposals(capsys, folder), "Which batch should I train with?")

    assert answer["next"] == (
        f"Run {needed} seeds of each batch: sweeper analysis next has the commands."
    )
    assert 3 < needed <= 50
    assert found["runs"] == 2 * (needed - 3)
    assert "batch=1024,6144 warmup=0 " in found["commands"][0]


def test_seeds_of_branches_are_not_proposed(study, capsys):
    """A branch of another seed needs a parent of that seed."""
    of_parents = {"branch": {"run": "p", "epochs": 1}}
    folder = study(
        lambda b, w: 0.9, seeds=1, batches=(1024, 6144),
        change=lambda runs: with_settings(runs, **of_parents).assign(branch="p@1"),
    )  # fmt: skip

    assert main(["next", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "All 8 runs are branches" in said
    assert "python -m sweeper" not in said


def test_a_step_of_an_estimate_has_the_words_of_its_study(study):
    runs = load_runs(study(lambda b, w: 0.9, warmups=(0,)))

    command = write_commands(runs, seed=[3, 4])

    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "sweeper", "-m"]
    assert "model._target_=Simulated" in words
    assert {"bn_span=256", "batch=7680,30720", "warmup=0", "seed=3,4"} <= {*words}
