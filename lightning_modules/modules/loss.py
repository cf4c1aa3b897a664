"""The loss of a micro-batch and its number of correct predictions."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

#: From outputs and labels: the mean loss over examples, and the number of correct predictions.
Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def score(
    model: nn.Module, outputs: Tensor, labels: Tensor, *, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Loss [nats per example] and number of correct predictions [examples] of a micro-batch.

    The model's own `score` if it has one, else cross-entropy. An example may be a sequence: its
    loss and its accuracy are means over its positions. All sequences are equally long, so the mean
    over all positions is the mean over examples.

    Outputs are logits, shape (n, classes) for labels of shape (n,), or (n, length, classes) for
    sequences, (n, length). Label smoothing is the fraction of the target spread over all classes.

    Raises:
        ValueError: if label smoothing is set for a model with its own loss.
    """
    own: Score | None = getattr(model, "score", None)  # isinstance of a protocol would be slower
    if own is not None:
        if label_smoothing:
            msg = (
                "label_smoothing must be 0 with a model that has its own loss; "
                f"got {label_smoothing=}. Remove it, or use another model."
            )
            raise ValueError(msg)
        return own(outputs, labels)
    loss = functional.cross_entropy(
        outputs.flatten(0, -2), labels.flatten(), label_smoothing=label_smoothing
    )
    right = (outputs.argmax(dim=-1) == labels).sum()
    return loss, right if labels.ndim == 1 else right * len(labels) / labels.numel()
