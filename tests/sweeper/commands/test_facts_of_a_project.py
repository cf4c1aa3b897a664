"""What a plan must know of a user's project is measured once, and fills the config."""

import pytest

from sweeper.commands import own_project
from sweeper.commands.overrides import with_own_classes
from sweeper.commands.own_project import with_facts

WORDS = [
    "module=own", "module._target_=nowhere.Module", "data=own", "data._target_=nowhere.Data",
    "batch=32",
]  # fmt: skip


@pytest.fixture
def fill(grid, tmp_path, monkeypatch):
    """The configs of a grid with the facts of a project; `fill.measured` counts the looks at it."""
    found = {"num_train_examples": 96, "has_batchnorm": False, "is_automatic": True}
    measured = []

    def run(*words, **facts):
        monkeypatch.setattr(
            own_project, "_measured", lambda config: measured.append(config) or {**found, **facts}
        )
        return list(with_facts(grid(*words), tmp_path))

    run.measured = measured
    return run


def test_ours_on_data_that_state_their_examples_is_not_looked_at(fill, default_config):
    assert fill() == [default_config]
    assert fill.measured == []


def test_a_project_is_looked_at_once_whatever_is_swept(fill):
    configs = [*fill(*WORDS, "seed=0,1", "warmup=0,5"), *fill(*WORDS, "epochs=3")]

    assert {config["data"]["num_train_examples"] for config in configs} == {96}
    assert len(fill.measured) == 1
    fill(*WORDS, "+data.size=3")
    assert len(fill.measured) == 2


def test_a_stated_number_of_examples_stays(fill):
    (config,) = fill(*WORDS, "+data.num_train_examples=64")

    assert config["data"]["num_train_examples"] == 64


@pytest.mark.parametrize(("has", "span"), [(True, "micro"), (False, None)])
def test_without_batchnorm_there_is_no_span(fill, has, span):
    assert fill(*WORDS, has_batchnorm=has)[0]["bn_span"] == span


def test_a_module_that_steps_by_hand_does_so_at_the_batch(fill):
    (config,) = fill(*WORDS, "devices=2", is_automatic=False)

    assert config["micro_batch"] == 16


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("micro_batch=8", "micro_batch x ranks must be the batch .* micro_batch=8"),
        ("devices=3", "micro_batch x ranks must be the batch .* 3 ranks"),
        ("perturbation=sam", "perturbation cannot be used with .* automatic_optimization=False"),
        ("reproducible=true", "reproducible cannot be used"),
        ("loss_items=y", "loss_items cannot be used"),
        ("gradient_clip=1", "gradient_clip cannot be used"),
        ("optimizer=vr_sgd", "optimizer.gradient_span cannot be used"),
        ("lr_rule=adascale", "lr_rule=adascale cannot be used"),
    ],
)
def test_what_would_need_lightning_to_step_is_refused(fill, word, sentence):
    with pytest.raises(ValueError, match=sentence):
        fill(*WORDS, word, is_automatic=False)


def test_a_project_that_cannot_be_made_is_told_with_its_own_words(grid, tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.Data: ValueError: .*No module named 'nowhere'"):
        list(with_facts(grid(*WORDS), tmp_path))


def test_a_class_on_the_command_line_gets_no_settings_of_the_default():
    words = [
        "batch=1",
        "data._target_=a.B",
        "+data.root=x",
        "model._target_=c.D",
        "model=small_cnn",
    ]

    assert with_own_classes(words) == ["batch=1", "data=own", *words[1:]]
