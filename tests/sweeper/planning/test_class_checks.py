"""Names and settings that no class has are refused without an import; those that may be are not.

The refusals stand in refused_words.txt.
"""

import inspect
import pkgutil
import sys

import pytest

from sweeper.planning import class_checks
from sweeper.planning.plan import plan
from sweeper.store.ledger import Ledger

LIBRARY = "lightning_modules.models.library"


@pytest.mark.parametrize(
    "words",
    [
        "model=resnet18 model.head_std=0",
        "model.hidden=1",
        "data.validation_fold=0",
        "+optimizer.maximize=true",  # of a library's class, which conf/ does not have
    ],
)
def test_the_least_sizes_and_settings_of_a_library_are_planned(grid, results, words):
    assert plan(grid(*words.split()), Ledger(results)).specs


def test_a_model_that_timm_does_not_have_is_refused(grid, results):
    pytest.importorskip("timm")

    with pytest.raises(ValueError, match=r"^model\.name must be a model of timm; .* Did you mean "):
        plan(grid("model=timm", "model.name=convnext_tinny"), Ledger(results))


@pytest.mark.parametrize(
    "target",
    ["provoked.Plain", f"{LIBRARY}.torchvision_model", "torch.nn.Linear", "torch._C.Generator"],
)
def test_a_name_that_may_be_there_is_not(config, results, target):
    model = {"_target_": target, "name": "vit_b_16.of_some_training"}
    if target.startswith(LIBRARY):
        model |= {"stem": "auto", "head_std": None, "settings": {}}

    assert plan([config(model=model)], Ledger(results)).specs


def test_nothing_is_imported(config, results, tmp_path, monkeypatch):
    (tmp_path / "user_net_of_test.py").write_text("class Net: ...\nraise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert plan([config(model={"_target_": "user_net_of_test.Net"})], Ledger(results)).specs
    assert "user_net_of_test" not in sys.modules


def test_every_setting_that_our_classes_have_is_known():
    for target, known in class_checks._option_settings("data").items():
        if target != "???":  # the user's own
            names = inspect.signature(pkgutil.resolve_name(target)).parameters
            assert {*names} == {*known, *class_checks._OPTIONAL.get(target, [])}
