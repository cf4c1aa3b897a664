"""What is measured of a run's curve."""

import math

from sweeper.store.row import measured_row


def test_an_epoch_without_a_number_is_not_the_best() -> None:
    losses = (math.nan, 0.5, 0.7)
    curve = [{"step": step, "val_loss": loss} for step, loss in enumerate(losses)]
    assert measured_row({}, curve)["best_val_loss"] == 0.5
    assert measured_row({}, curve[:1])["best_val_loss"] is None
