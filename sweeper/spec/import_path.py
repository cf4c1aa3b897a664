"""Classes and functions that a config names by dotted path."""

import inspect
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Given = TypeVar("_Given")


def import_callable(dotted: str, key: str) -> Callable[..., Any]:
    """The class or function that a dotted path names.

    Args:
        dotted: `module.function`; the module's folder is on Python's path.
        key: the config key that holds the path, for error messages.

    Raises:
        ValueError: if it cannot be imported or called.
    """
    try:
        found = pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"{key} must name something that can be imported; got {key}={dotted!r}: {error}. "
            "Install its package or put its folder on PYTHONPATH."
        )
        raise ValueError(msg) from error
    except (Exception, SystemExit) as error:  # raised by the module's own code
        raise ValueError(_error_sentence(f"{key}={dotted!r}", error)) from error
    if not callable(found):
        msg = f"{key} must name a class or a function; got {key}={dotted!r}. It cannot be called."
        raise ValueError(msg)
    return found


def call(dotted: str, *args: Any, settings: Mapping[str, Any], key: str = "_target_") -> Any:
    """Call the class or function that a dotted path names; errors raised inside it pass through.

    Args:
        dotted: as for `import_callable`.
        args: positional arguments, given first.
        settings: keyword arguments.
        key: as for `import_callable`.

    Raises:
        ValueError: if it cannot be imported or does not take these arguments.
    """
    target = import_callable(dotted, key)
    try:
        inspect.signature(target).bind(*args, **settings)
    except TypeError as error:
        given = ", ".join(sorted(settings)) or "none"
        msg = f"{key}={dotted} must accept the settings in its config; got {given}: {error}."
        raise ValueError(msg) from error
    except ValueError:
        pass  # written in C, without a signature: the call will show
    return target(*args, **settings)


def call_guarded(what: str, call_it: Callable[[], _Given]) -> _Given:
    """The result of a user's function that is called before a run starts.

    Args:
        what: the function's key and dotted path, for the error.
        call_it: calls it.

    Raises:
        ValueError: if it raises or exits; its own ValueErrors are passed on unchanged.
    """
    try:
        return call_it()
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(_error_sentence(what, error)) from error


def _error_sentence(what: str, error: BaseException) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{what} must not raise or exit; got {type(error).__name__}: {error}, in {at.filename}, "
        f"line {at.lineno}. Correct it or its settings."
    )
