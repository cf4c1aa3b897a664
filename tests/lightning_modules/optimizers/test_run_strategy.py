"""Settings of a module's own groups follow the run's rules, and nobody else's."""

import pytest
import torch
from test_user_project import IN_PROCESS

WORDS = [*IN_PROCESS, "module._target_=odd_users.AdamModule", "base_batch=16", "batch=32"]
RULES = ["lr_rule=adam_sde", "wd_rule=timescale"]  # twice the batch


def groups(folder):
    checkpoint = torch.load(folder / "checkpoint.ckpt", weights_only=False)
    return checkpoint["optimizer_states"][0]["param_groups"]


def columns(record):
    return [[row[name] for name in ("beta1", "beta2", "weight_decay")] for row in record["curve"]]


def test_the_settings_of_each_group_are_scaled_once(run_words, tmp_path):
    """1 - beta doubles, epsilon falls by the root of 2, the decay times 2 / root of 2 grows."""
    whole = run_words(*WORDS, *RULES, name="whole")

    run_words(*WORDS, *RULES, name="cut", stop_after=1)
    resumed = run_words(*WORDS, *RULES, name="cut")

    assert columns(whole) == [pytest.approx([0.8, 0.998, 0.1 * 2**0.5])] * 3
    assert columns(resumed) == columns(whole)
    for name in ("whole", "cut"):
        body, head = groups(tmp_path / name)
        assert (*body["betas"], *head["betas"]) == pytest.approx((0.8, 0.998, 0.6, 0.98))
        assert body["eps"] == pytest.approx(1e-8 / 2**0.5)
        assert (body["weight_decay"], head["weight_decay"]) == pytest.approx((0.1 * 2**0.5, 0))
    assert resumed["curve"][-1]["metrics"] == whole["curve"][-1]["metrics"]


def test_scaled_settings_train_as_those_settings_do(run_words):
    """What a rule gives from half the batch is what a user would write at the whole."""
    ours = ["optimizer=adamw", "base_lr=0.01", "schedule=constant"]
    rule = [*ours, "lr_rule=half_life", "optimizer.betas=[0.9,0.96]", "ema_decay=0.9"]

    scaled = run_words(*WORDS, *rule, "ema_rule=scaled", name="scaled")

    written = [*ours, "lr_rule=none", "optimizer.betas=[0.9,0.9216]", "ema_decay=0.81"]
    plain = run_words(*WORDS, *written, name="written")
    for row, other in zip(scaled["curve"], plain["curve"], strict=True):
        assert row["metrics"] == pytest.approx(other["metrics"], rel=1e-9)
        assert (row["beta2"], row["ema_decay"]) == pytest.approx((0.9216, 0.81))


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("odd_users.CyclingModule", ["lr_rule=half_life"], "rules set betas, .* got AdamW"),
        (
            "odd_users.DecayingModule",
            ["wd_rule=timescale"],
            "rules set weight_decay, .* got AdamW",
        ),
        ("odd_users.SettingModule", ["lr_rule=half_life"], "rules set betas, .* got SGD"),
        (
            "odd_users.AdamModule",
            ["lr_rule=adam_sde", "base_batch=2"],
            "got beta=0.9, batch",
        ),
    ],
)
def test_settings_that_a_rule_cannot_set_are_refused(run_words, module, words, said):
    with pytest.raises(ValueError, match=said):
        run_words(*WORDS, f"module._target_={module}", *words)
