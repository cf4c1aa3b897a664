"""Examples in the parts of a batch whose gradients a method uses separately."""

from sweeper.spec.config import RunConfig
from sweeper.spec.identity import MICRO


def gradient_span(config: RunConfig) -> int | None:
    """Examples whose mean gradient a method uses separately; None if no method does.

    Like the BatchNorm span, it is part of the experiment and not of the layout: it fixes the
    micro-batch, so that every layout gives the same statistics [examples].
    """
    return next(iter(method_spans(config).values()), None)


def noise_span(config: RunConfig) -> int | None:
    """Examples in each part whose gradient enters the noise estimate; None if it is not measured.

    Like the BatchNorm span, it is a property of the run and not of its layout [examples].
    """
    is_needed = config.noise_span is None and needs_noise(config)
    return config.base_batch if is_needed else config.noise_span


def needs_noise(config: RunConfig) -> bool:
    """Whether the batch or the learning rate depends on the measured noise."""
    is_measured = getattr(config.schedule, "growth", "") == "measured"
    return is_measured or config.lr_rule.name == "adascale"


def takes_micro_batches_whole(config: RunConfig) -> bool:
    """Whether BatchNorm, the loss, tokens or a method use each micro-batch as a unit.

    Its size is then part of the experiment, so a machine's memory must not choose it.
    """
    is_whole = any(getattr(config, key) == "micro" for key in MICRO)
    return is_whole or gradient_span(config) is not None or config.batch_unit is not None


def method_spans(config: RunConfig) -> dict[str, int]:
    """By config key, the examples per part of methods that use gradients of parts of the batch."""
    noise_key = "base_batch" if config.noise_span is None else "noise_span"
    asked = {
        "optimizer.gradient_span": config.optimizer.gradient_span,
        "perturbation.gradient_span": getattr(config.perturbation, "gradient_span", None),
        noise_key: noise_span(config),
    }
    return {key: span for key, span in asked.items() if span is not None}
