"""Files that appear whole or not at all."""

import pytest

from sweeper.store import publish
from sweeper.store.publish import publish_json


def test_a_file_that_cannot_be_flushed_is_named_and_not_published(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(publish, "flush_to_disk", fails)
    path = tmp_path / "released.json"

    with pytest.raises(OSError, match=f"Input/output error: '{path}'$"):
        publish_json(path, {})

    assert not list(tmp_path.iterdir())
