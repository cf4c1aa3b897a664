"""Settings of our models and data that none of them can have are refused by the plan."""

import inspect
import pkgutil

import pytest

from sweeper.planning import components
from sweeper.planning.plan import plan
from sweeper.store.ledger import Ledger

WHOLE = "must be a whole number, 1 or more; got"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.channels=[0]", "model.channels must be a list of whole numbers, 1 or more; got"),
        ("model.channels=[]", "model.channels must be a list of whole numbers, 1 or more; got"),
        ("model.channels=null", "model.channels must be a list of whole numbers, 1 or more; got"),
        ("model.hidden=-1", f"model.hidden {WHOLE} model.hidden=-1"),
        ("model=resnet8 model.blocks=0", f"model.blocks {WHOLE} model.blocks=0"),
        ("model=resnet8 model.stem_stride=0", f"model.stem_stride {WHOLE} model.stem_stride=0"),
        ("model=byte_transformer model.depth=0", f"model.depth {WHOLE} model.depth=0"),
        ("model=resnet18 model.stem=tiny", "model.stem must be one of auto, imagenet, small; got"),
        (
            "model=resnet18 model.head_std=-1",
            "model.head_std must be a number, 0 or more, or null;",
        ),
        ("model=noisy_quadratic model.noise_scale=0", "model.noise_scale must be a number above 0"),
        ("data=synthetic data.num_classes=0", f"data.num_classes {WHOLE} data.num_classes=0"),
    ],
)
def test_a_size_that_no_model_can_have_is_refused(grid, results, words, said):
    with pytest.raises(ValueError, match="; got") as refused:
        plan(grid(*words.split()), Ledger(results))

    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+model.hiden=8", "model.hiden must be a setting of SmallCNN; got model.hiden=8. Did you "
                           "mean model.hidden?"),
        ("~model.hidden", "model.hidden must be given to SmallCNN. Write model.hidden=VALUE."),
        ("+optimizer.trust_coeff=1",
         "optimizer.trust_coeff must be a setting of optimizer._target_=torch.optim.SGD; got "
         "optimizer.trust_coeff=1. Its settings: momentum, nesterov, weight_decay."),
    ],
)  # fmt: skip
def test_a_setting_that_a_class_lacks_or_needs_is_refused(grid, results, word, said):
    with pytest.raises(ValueError, match="must be") as refused:
        plan(grid(word), Ledger(results))

    assert str(refused.value) == said


def test_a_library_s_class_may_be_given_settings_that_conf_does_not_have(grid, results):
    assert plan(grid("+optimizer.maximize=true"), Ledger(results)).specs


@pytest.mark.parametrize(
    "words", ["model=resnet18 model.head_std=0", "model.hidden=1", "data.validation_fold=0"]
)
def test_the_least_size_is_not(grid, results, words):
    assert plan(grid(*words.split()), Ledger(results)).specs


def test_every_setting_that_our_classes_have_is_known():
    for target, known in components._option_settings("data").items():
        if target != "???":  # the user's own
            names = inspect.signature(pkgutil.resolve_name(target)).parameters
            assert {*names} == {*known, *components._OPTIONAL.get(target, [])}
