"""The report page: one file that works offline and never executes text from configs."""

import base64
import hashlib
import json
from importlib import resources
from typing import Any

#: Characters that could end a script element, or a line of JavaScript, inside JSON.
_ESCAPES = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page(data: dict[str, Any] | None, *, live: bool = False) -> str:
    """The page as HTML.

    Scripts run only by their hashes, and nothing may be fetched (live: from where the page came
    from). All data is JSON that no parser takes for markup, and is shown as text only.

    The data is as `report_data` returns it; None for a live page, which polls for it.
    """
    scripts = [_read(name) for name in ("table.js", "plot.js", "page.js")]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    tags = "".join(f"<script>{script}</script>\n" for script in scripts)
    return (
        _read("page.html")
        .replace("{{policy}}", policy)
        .replace("{{style}}", _read("page.css"))
        .replace("{{data}}", as_json({"live": live, "data": data}))
        .replace("{{scripts}}", tags)
    )


def as_json(value: Any) -> str:
    """JSON that is also safe inside a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _read(name: str) -> str:
    return resources.files("analysis.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
