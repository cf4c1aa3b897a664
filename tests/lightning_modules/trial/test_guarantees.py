"""What holds for a project that knows nothing of ours is measured, each by what breaks it."""

import random
from pathlib import Path

import guaranteed_users
import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from lightning_modules.trial import layout_arms, measured_facts
from lightning_modules.trial.examples import fingerprint, is_same_example
from lightning_modules.trial.findings import judge_seeds
from lightning_modules.trial.layout_arms import LayoutArm
from sweeper.launch.ask_process import ask_process
from sweeper.upstream.torchs import record_seeds

DRAWS = "draws at random outside dropout layers, or in"
NO_SPAN = "with bn_span, a BatchNorm must be a layer with a momentum and running statistics"
UNFROZEN = (
    "on several ranks, trained parameters must have requires_grad=True from the start, as only "
    "those gradients are exchanged"
)
ANYWAY = "not determined: a training step draws at random, in evaluation mode too"
#: By module and data: whether layouts are the same, whether the layout is in the identity, whether
#: a resume is the same, and words of the first finding that is not good.
EXPECTED = {
    **dict.fromkeys(
        ("Line", "Stepping", "Frozen", "Annealed", "Looking", "Hooked", "Sided", "Single",
         "InFloat32", "WithItsOptimizer", "Cycling", "Forgetful", "Saving", "Shared"),
        (True, False, True, ""),
    ),
    "Summed": (False, True, True, "in 4 micro-batches: it is a sum, or"),
    "SummedInFloat32": (False, True, True, "in 4 micro-batches: it is a sum, or"),
    "Dividing": (False, True, True, "or divided by the number of micro-batches too"),
    "Contrastive": (False, True, True, "in 4 micro-batches: it is no mean over examples, or"),
    "Assigned": (False, True, True, "the gradient of layers.0.bias of epoch 1 is "),
    "Mined": (None, True, None, "not determined: the gradient of so few examples is 0"),
    "Counting": (False, True, True, "it is no mean over examples, or depends on how many"),
    "Recalling": (False, True, False, "the loss of epoch 1 is "),
    "Following": (False, True, True, "slow.weight of epoch 1 is "),
    "Averaged": (False, True, True, "slow.module.weight of epoch 1 is "),
    "FollowingPlateau": (False, True, True, "a learning rate of epoch 16 is "),
    "Drawing": (False, False, True, DRAWS),
    "Backwards": (False, False, True, DRAWS),
    "Tall": (False, False, True, "the rows of a dropout layer are not the examples"),
    "Noisy": (None, False, True, ANYWAY),
    "Sampling": (None, False, True, ANYWAY),
    "Unsaved": (True, False, False, "average of epoch 16 is "),
    "Extra": (True, False, False, "a run that resumes raises RuntimeError: Error(s) in loading"),
    "Raising": (None, True, None, "a training step on a CPU raised RuntimeError: no such kernel"),
    "Low": (False, True, True, "layers.0.weight has 16 bits"),
    "Line:OwnGenerator": (False, True, False, "on 2 ranks: it is no mean"),
    "Line:KeptData": (False, True, False, "on 2 ranks: it is no mean"),
    "Line:MixedData": (False, True, True, "an example depends on its neighbours in the"),
    "Line:FewData": (None, True, None, "not tried: it takes 4 examples"),
    "@Net": (True, False, True, ""),
    "@Spectral": (False, True, True, "it is no mean over examples, or depends on how many"),
    "@Centred": (False, True, True, "it is no mean over examples, or depends on how many"),
    "@CountingNet": (False, True, False, "it is no mean over examples, or depends on how many"),
    "@Dropping": (None, True, None, "the model must draw at random only in dropout layers"),
}  # fmt: skip


@pytest.fixture
def found_of(grid):
    """What `facts` finds of projects of `guaranteed_users`, in a process as a plan asks it."""

    def ask(names, *words):
        configs = []
        for name in names:
            module, _, data = name.partition(":")
            own = [
                f"module._target_=guaranteed_users.{module}",
                f"data._target_=guaranteed_users.{data or 'Data'}",
            ]
            if module.startswith("@"):
                own = ["model=own", f"model._target_=guaranteed_users.{module[1:]}"]
            configs += grid(*own, *words)
        answers = ask_process("facts", configs)
        assert len(answers.values) == len(configs), answers.last_line
        return dict(zip(names, answers.values, strict=True))

    return ask


def test_what_does_not_hold_is_found_out_and_nothing_else(found_of):
    seen = {}
    for name, facts in found_of(list(EXPECTED)).items():
        same, resumes = (
            facts["found"].get(key, {"holds": None, "message": ""})
            for key in ("same on every layout", "same after a resume")
        )
        bad = [f["message"] for f in (same, resumes) if not f["holds"]]
        said = EXPECTED[name][3]
        seen[name] = (
            same["holds"], same["is_layouts"], resumes["holds"],
            said if bad and said and said in bad[0] else "".join(bad[:1]),
        )  # fmt: skip

    assert seen == EXPECTED


def test_the_parts_of_a_project_that_is_the_same_are_counted(found_of):
    facts = found_of(["Cycling", "Line"])
    same = facts["Cycling"]["found"]["same on every layout"]

    assert same["over"] == "64 micro-batches, 2 ranks"
    assert facts["Line"]["has_batchnorm"]
    assert facts["Line"]["found"]["same on every layout"]["settings"][0]["betas"] == [0.9, 0.999]
    assert same["settings"][0]["weight_decay"] == 0.2
    assert same["settings"][0]["betas"] is None  # which OneCycle writes


def test_of_a_module_with_much_arithmetic_fewer_steps_are_compared(find_facts, monkeypatch):
    project = {
        key: {"_target_": f"guaranteed_users.{kind}"}
        for key, kind in (("module", "Line"), ("data", "Data"))
    }
    monkeypatch.setattr(layout_arms, "_MOST_FLOPS", 1.0)

    found = find_facts(project)["found"]["same on every layout"]

    assert (found["holds"], found["over"]) == (True, "8 micro-batches")


def test_what_no_run_would_train_is_found_by_where_it_would_not(found_of):
    found = found_of(["Lazy", "Momentless", "Unfreezing", "Line", "Raising"])

    assert {
        name: [(key, why.partition("; ")[0]) for key, why in facts["refused"].items()]
        for name, facts in found.items()
    } == {
        "Lazy": [("always", "every layer must have its weights when training begins")],
        "Momentless": [("bn_span", NO_SPAN)],
        "Unfreezing": [("ranks", UNFROZEN)],
        "Line": [],
        "Raising": [("always", "the first training step must not fail")],
    }


def test_items_of_a_loss_weigh_its_parts(found_of):
    words = [(), ("loss_items=guaranteed_users.above",)]

    found = [found_of(["Tokens:RisingData"], *more)["Tokens:RisingData"]["found"] for more in words]

    assert [one["same on every layout"]["holds"] for one in found] == [False, True]


def test_without_a_trial_nothing_is_guaranteed(found_of):
    found = found_of(["Line"], "trial=false")["Line"]["found"]

    assert [*found] == ["same on every layout"]
    assert found["same on every layout"]["is_layouts"]


def test_a_trial_that_does_not_end_is_ended(grid, monkeypatch):
    kinds = {"module": "Sleeping", "data": "Data"}
    (config,) = grid(*(f"{key}._target_=guaranteed_users.{k}" for key, k in kinds.items()))
    monkeypatch.setattr(measured_facts, "_LONGEST_S", 2)

    found = measured_facts.facts(config)["found"]

    assert [*found] == ["same on every layout"]
    assert found["same on every layout"]["is_layouts"]
    assert found["same on every layout"]["message"] == (
        "not determined: the trial of the module took longer than 2 s"
    )


def test_a_project_that_seeds_generators_is_found_out():
    before = (torch.manual_seed, random.seed, np.random.seed)
    seeds = []
    with record_seeds(seeds):
        pl.seed_everything(42)

    assert {*seeds} == {42}
    assert torch.initial_seed() == 42
    assert (torch.manual_seed, random.seed, np.random.seed) == before
    arm = LayoutArm(seeds=seeds)
    holds = {seed: judge_seeds(arm, arm, seed, {"width": 42}).holds for seed in (0, 42)}
    assert holds == {0: False, 42: None}


def test_a_project_that_seeds_with_the_runs_seed_as_it_is_told_has_done_enough():
    settings, arm = {"module.random_seed": 42}, LayoutArm(seeds=[42])

    found = judge_seeds(arm, arm, 42, settings)

    assert (found.holds, found.seed) == (True, 42)
    assert "module.random_seed" in found.message
    assert judge_seeds(LayoutArm(seeds=[7]), arm, 42, settings).holds is False


@pytest.mark.parametrize("module", ["SeededInSetup", "SeededInConfigure"])
def test_layers_that_are_made_later_are_seeded_too(found_of, module):
    found = found_of([module])[module]["found"]["seeds apply"]

    assert found["holds"] is False
    assert "seeds the generators with 3: runs with different" in found["message"]


@pytest.mark.parametrize(
    ("example", "module", "data", "is_same"),
    [
        ("regression", "FriedmanModule", "FriedmanDataModule", True),
        ("text", "TextModule", "TextDataModule", False),
        ("boxes", "BoxModule", "BoxDataModule", False),
    ],
)
def test_the_examples(grid, monkeypatch, example, module, data, is_same):
    """Within 20 s of processor time each: 4 to 9 were measured."""
    examples = Path(__file__).parents[3] / "examples"
    monkeypatch.syspath_prepend(examples)

    (facts,) = ask_process(
        "facts", grid(f"module._target_={example}.{module}", f"data._target_={example}.{data}")
    ).values

    found = {name: finding["holds"] for name, finding in facts["found"].items()}
    assert found == {
        "same on every layout": is_same, "same after a resume": True, "seeds apply": True,
    }  # fmt: skip


def packed(examples):
    rows = [torch.as_tensor(example)[: 1 + i % 3] for i, example in enumerate(examples)]
    return torch.nn.utils.rnn.pack_sequence([row[:, None] for row in rows], enforce_sorted=False)


def test_items_of_one_number_of_a_table_are_compared():
    table = torch.rand(1, 7)

    assert fingerprint(table[:, 3]) == fingerprint(table[:, 3].clone()) != fingerprint(table[:, 2])


def test_sequences_are_compared_as_they_were_before_they_were_packed():
    many, alone = packed(torch.eye(3)), packed(torch.eye(3)[:1])

    assert is_same_example(many, alone, (0, 0), (3, 1))
    assert not is_same_example(many, alone, (1, 0), (3, 1))


def test_neighbours_may_pad_an_example_but_not_change_it():
    padded, mixed = guaranteed_users.padded, guaranteed_users.mixed
    rows = [torch.linspace(0, 1 + n, 4) for n in range(4)]

    for place in range(4):
        part = (place % 2, 2)
        two = rows[place // 2 * 2 :][:2]
        assert is_same_example(padded(rows), padded(two), (place, part[0]), (4, 2))
        assert not is_same_example(mixed(rows), mixed(two), (place, part[0]), (4, 2))
