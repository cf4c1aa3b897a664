"""The report page: one file that works offline and never executes text from configs."""

import base64
import hashlib
import json
import re
import zlib
from importlib import resources
from typing import Any

#: In the order in which they run; those in vendor/ are third-party (vendor/LICENSES.txt).
_SCRIPTS = ("vendor/d3.min.js", "vendor/plot.min.js", "runs.js", "figures.js", "page.js")


def page(data: dict[str, Any]) -> str:
    """The page as HTML.

    Scripts run only by their hashes, and nothing may be fetched. All data is compressed, so none of
    its text is in the page's source, and it is shown as text only.

    The data is as `report_data` returns it.
    """
    scripts = [_read(name) for name in _SCRIPTS]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'",
        "style": _read("page.css"),
        "data": _packed(as_json(data)),
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
    }
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], _read("page.html"))


def as_json(value: Any) -> str:
    """JSON as every browser reads it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _read(name: str) -> str:
    return resources.files("analysis.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
