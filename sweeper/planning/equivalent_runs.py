"""Finished runs that are runs of a grid, or almost, where a grid has classes of the user's own.

Settings that cannot change a result are not part of a run's identity. Rows of earlier versions, and
those of commands without `incidental`, have ids that such settings are part of.
"""

import json
from collections.abc import Mapping, Sequence

from sweeper.spec.identity import Words, run_id, with_spans, words
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.sentences import several
from sweeper.store.file_names import RowFile
from sweeper.store.ledger import Ledger

#: Groups whose settings are the user's own; other keys are swept on purpose.
_OWN = ("data.", "model.", "module.", "trainer.")
_MOST_SETTINGS = 3  # that are named


def find_equivalent_runs(
    specs: Mapping[str, RunSpec], ended: Mapping[str, RowFile], ledger: Ledger
) -> tuple[dict[str, str], list[str]]:
    """Compare the new runs of a grid with the finished runs that are not in it.

    Returns:
        By run id of the grid, the id of a finished run with the same identity; and a sentence if
        other new runs differ from finished runs in a few settings.
    """
    new = [s for i, s in specs.items() if i not in ended and s.config.rerun is None]
    others = [i for i, row in ended.items() if i not in specs and row.outcome.is_result]
    if not new or not others:
        return {}, []
    incidental = new[0].config.incidental
    by_id, finished = dict[str, str](), list[Words]()
    for old_id, row in ledger.rows(others, ["config_json", "micro_batch", "world_size"]).items():
        try:
            stored = {**json.loads(row["config_json"]), "incidental": incidental}
            config = with_spans(stored, row["micro_batch"], row["world_size"])
            finished.append(words(config))
            by_id[run_id(config)] = old_id
        except (ValueError, TypeError, KeyError, AttributeError):  # no config of ours
            continue
    known = {spec.run_id: by_id[spec.run_id] for spec in new if spec.run_id in by_id}
    left = [spec for spec in new if spec.run_id not in known]
    return known, _describe(left, finished) if left and finished else []


def _describe(new: Sequence[RunSpec], finished: Sequence[Words]) -> list[str]:
    wanted, *_ = texts = [_texts(spec.words) for spec in new]
    known = [_texts(found) for found in finished]
    differing = [{k for k in wanted.keys() | w.keys() if wanted.get(k) != w.get(k)} for w in known]
    least = min(differing, key=len)
    if len(least) > _MOST_SETTINGS or not all(key.startswith(_OWN) for key in least):
        return []
    if any(len({text.get(key) for text in texts}) > 1 for key in least):  # swept on purpose
        return []
    done = {_without(found, least) for found in known}
    near = sum(_without(found, least) in done for found in texts)
    names = sorted(least)
    return [
        f"{near} of {several(len(new), 'new run')} differ from finished runs only in "
        f"{', '.join(names)}. If that cannot change a result, add "
        f"'incidental=[{','.join(names)}]': they are then the same runs."
    ]


def _texts(found: Words) -> dict[str, str]:
    return {key: text for key, (text, _) in found.items()}


def _without(found: Mapping[str, str], keys: set[str]) -> frozenset[tuple[str, str]]:
    return frozenset((key, text) for key, text in found.items() if key not in keys)
