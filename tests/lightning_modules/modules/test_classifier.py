"""The classifier: what it sets past torch's search for parameters."""

import pytorch_lightning as pl
from torch import nn

from lightning_modules.modules.classifier import Classifier


def test_the_name_of_a_hook_is_set_past_the_search_for_parameters_and_nothing_else(monkeypatch):
    searched = []
    by_torch = nn.Module.__setattr__

    def see(module, name, value):
        searched.append(name)
        by_torch(module, name, value)

    classifier = Classifier(nn.Identity())
    monkeypatch.setattr(pl.LightningModule, "__setattr__", see, raising=False)
    classifier._current_fx_name = "training_step"
    classifier.model = nn.Linear(2, 2)

    assert classifier._current_fx_name == "training_step"
    assert searched == ["model"]
    assert set(dict(classifier.named_parameters())) == {"model.weight", "model.bias"}
