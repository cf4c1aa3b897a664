"""Many simulated studies at once, judged by a paper's claims, for tests and benchmarks."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from analysis.papers.claim import Claim, Point, shares_outside
from analysis.stats.contrasts import ONE_SIDED, Arms, Contrasts, correct_by_holm, weigh_contrasts
from analysis.stats.optimum import fit_optima
from analysis.stats.replicates import Array, Replicates, validation_size

#: Standard deviation over seeds [accuracy]; examples of the validation set that is small.
SPREAD, NUM_VALIDATION = 0.004, 360

#: From a shape and a generator to deviations of standard deviation 1.
Noise = Callable[[tuple[int, ...], np.random.Generator], Array]


def normal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """What the tests assume."""
    return rng.normal(size=shape)


def heavy_tailed(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Student's t with three degrees of freedom."""
    return rng.standard_t(3, size=shape) / np.sqrt(3)


def bad_seed(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """One run in ten is worse by five standard deviations of the others."""
    return (rng.normal(size=shape) - 5 * (rng.random(shape) < 0.1)) / np.sqrt(1 + 25 * 0.09)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy-tailed": heavy_tailed,
    "bad seed": bad_seed,
    "360 images": normal,
}

#: True accuracy of a point.
Law = Callable[[Point], float]

#: P values for and against each claim, and whether it is false where nothing differs; each of
#: shape (studies,), by claim.
Judged = dict[str, tuple[Array, Array]]


def values_at(
    points: Sequence[Point], law: Law, noise: str, seeds: int, studies: int, seed: int = 0
) -> dict[Point, Array]:
    """Accuracies of shape (studies, seeds) at each point."""
    rng = np.random.default_rng([seed, seeds, *noise.encode()])
    drawn = {
        p: law(p) + SPREAD * NOISES[noise]((studies, seeds), rng) for p in dict.fromkeys(points)
    }
    if noise != "360 images":
        return drawn
    return {p: np.round(v.clip(0, 1) * NUM_VALIDATION) / NUM_VALIDATION for p, v in drawn.items()}


def judged(claims: Sequence[Claim], values: dict[Point, Array], draws: int = 1000) -> Judged:
    """The claims on accuracy that any runs can be judged by."""
    rng = np.random.default_rng(0)
    found: Judged = {}
    for claim in claims:
        if claim.metric.name != "val_accuracy" or claim.only_there:
            continue
        here = [values[point] for point in claim.points]
        if claim.contrasts is None:
            if draws:
                found[claim.text] = _exponents(claim, here, rng, draws)
            continue
        arms = Arms(
            np.stack([v.mean(axis=1) for v in here], axis=1),
            np.stack([v.var(axis=1, ddof=1) for v in here], axis=1),
            np.array([v.shape[1] for v in here]),
        )
        size = validation_size(np.concatenate(here).ravel()[:200])
        evidence = weigh_contrasts(claim.contrasts, arms.floor_variances(size) if size else arms)
        found[claim.text] = evidence.p_for, evidence.p_against
    return found


def _exponents(
    claim: Claim, here: list[Array], rng: np.random.Generator, draws: int
) -> tuple[Array, Array]:
    import pandas as pd

    points = pd.DataFrame(
        {
            "global_batch": [p.batch for p in claim.points],
            "warmup_epochs": [p.warmup for p in claim.points],
        }
    )
    rows: list[tuple[float, float]] = []
    for study in zip(*here, strict=True):
        optima = fit_optima(Replicates(points, tuple(study)), "warmup_epochs", rng, draws)
        at_edge = any(
            np.argmax([v.mean() for v in study[start : start + 4]]) == 3 for start in (0, 4)
        )
        drawn = None if at_edge else optima.exponents
        rows.append((np.nan, np.nan) if drawn is None else shares_outside(drawn, 0.0, 1.0))
    p_for, p_against = np.array(rows).T
    return p_for, p_against


def is_true_of_equals(contrasts: Contrasts | None) -> bool:
    """Whether a claim holds where nothing differs."""
    return contrasts is not None and contrasts.lower < 0


def decided(found: Judged) -> Iterator[tuple[str, Array, Array]]:
    """Of each claim the studies in which it is reproduced, and contradicted, as one family."""
    p_for, p_against = (np.stack([pair[i] for pair in found.values()], axis=1) for i in (0, 1))
    corrected = correct_by_holm(np.fmin(p_for, p_against)) <= ONE_SIDED
    for i, text in enumerate(found):
        is_for = p_for[:, i] <= p_against[:, i]
        yield text, corrected[:, i] & is_for, corrected[:, i] & ~is_for


def share_false(claims: Sequence[Claim], found: Judged) -> Array:
    """Studies in which nothing differs that have any false verdict, shape (studies,)."""
    holds = {claim.text: is_true_of_equals(claim.contrasts) for claim in claims}
    wrong = [against | (yes & (not holds[text])) for text, yes, against in decided(found)]
    return np.any(wrong, axis=0)
