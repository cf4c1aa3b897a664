"""Settings of optimizers, rules and schedules with which nothing can be trained are refused."""

import pytest

from sweeper.spec.run_spec import run_spec

FRACTION, RATE = "a number from 0 to below 1", "must give a positive, finite rate; got"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("optimizer.momentum=1.5", f"optimizer.momentum must be {FRACTION}; got"),
        ("optimizer.momentum=-0.5", f"optimizer.momentum must be {FRACTION}; got"),
        ("optimizer.momentum=abc", f"optimizer.momentum must be {FRACTION}; got"),
        ("optimizer.nesterov=abc", "optimizer.nesterov must be true or false; got"),
        ("optimizer=vr_sgd optimizer.floor=2", "optimizer.floor must be a number from 0 to 1;"),
        ("optimizer=lans optimizer.eps=-1", "optimizer.eps must be a number, 0 or more; got"),
        ("optimizer=lars optimizer.trust_coeff=-1", "optimizer.trust_coeff must be a number above"),
        ("optimizer=lans optimizer.betas=[0.9]", "optimizer.betas must be 2 numbers from 0 to"),
        ("optimizer=adam optimizer.betas=[1.5,0.9]", "optimizer.betas must be 2 numbers from 0 to"),
        ("optimizer=vr_lamb optimizer.betas=[0.9,0.9]", "optimizer.betas must be 3 numbers from 0"),
        ("lr_rule=power lr_rule.exponent=1000 base_batch=128", f"lr_rule=power {RATE} inf at"),
        (
            "lr_rule=surge lr_rule.noise_scale=1e-308",
            f"lr_rule=surge {RATE} nan at batch=3840, ",
        ),
        (
            "lr_rule=legw lr_rule.warmup_exponent=400 base_batch=128 warmup=1",
            "warmup must be shorter than the training; got warmup=1, which "
            "lr_rule.warmup_exponent=400 scales to inf epochs",
        ),
        (
            "schedule=periodic_decay schedule.factor=1e300 schedule.milestones=[1,2]",
            "schedule=periodic_decay must give finite rates, 0 or more; got a factor of inf at",
        ),
        ("schedule.factor=-1", "schedule.factor must be a number above 0; got"),
        ("schedule=polynomial schedule.power=-1", "schedule.power must be a number, 0 or more;"),
    ],
)
def test_what_no_training_survives_is_refused(grid, words, sentence):
    (config,) = grid(*words.split())

    with pytest.raises(ValueError, match="; got") as refused:
        run_spec(config)

    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("code", ["lambda training: None", "lambda training: lambda epoch: -1.0"])
def test_a_schedule_of_ones_own_that_gives_no_rates_is_refused(
    config, tmp_path, monkeypatch, code, request
):
    module = f"given_by_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(f"decay = {code}")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = {"name": "mine", "_target_": f"{module}.decay"}

    with pytest.raises(ValueError, match="schedule=mine must give"):
        run_spec(config(schedule=mine))


def test_optimizers_of_ones_own_check_their_own_settings(config):
    mine = {"name": "mine", "_target_": "mine.Optimizer", "momentum": [0.5, 1.5], "betas": 3}

    assert run_spec(config(optimizer=mine)).config.optimizer.name == "mine"
