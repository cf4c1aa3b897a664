"""Names of classes and models that nobody has, refused without an import."""

import sys

import pytest

from sweeper.planning.plan import plan
from sweeper.store.ledger import Ledger

LIBRARY = "lightning_modules.models.library"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(
            {"model": {"_target_": f"{LIBRARY}.torchvision_model", "name": "resnet19"}},
            r"^model\.name must be a model of torchvision; got model\.name='resnet19'\. Did you "
            r"mean model\.name=resnet1",
            id="torchvision",
        ),
        pytest.param(
            {"model": {"_target_": f"{LIBRARY}.timm_model", "name": "convnext_tinny"}},
            r"^model\.name must be a model of timm; got model\.name='convnext_tinny'\. Did you "
            r"mean model\.name=convnext_tiny\?$",
            id="timm",
        ),
        pytest.param(
            {"model": {"_target_": "nowhere.Net"}},
            r"^model\._target_ must name something that can be imported; got model\._target_="
            r"'nowhere\.Net', which does not exist\. Correct it, install its package or put its ",
            id="package",
        ),
        pytest.param(
            {"model": {"_target_": "provoked.Plane"}}, r"'provoked\.Plane', which does", id="class"
        ),
        pytest.param(
            {"optimizer": {"name": "x", "_target_": "torch.optim.Adamm"}, "base_lr": 0.1},
            r"^optimizer\._target_ must name .*'torch\.optim\.Adamm'",
            id="optimizer",
        ),
    ],
)
def test_a_name_that_nobody_has_is_refused(config, results, changes, said):
    if "timm" in said:
        pytest.importorskip("timm")

    with pytest.raises(ValueError, match=said):
        plan([config(**changes)], Ledger(results))


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
    (tmp_path / "own_net_of_test.py").write_text("class Net: ...\nraise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert plan([config(model={"_target_": "own_net_of_test.Net"})], Ledger(results)).specs
    assert "own_net_of_test" not in sys.modules
