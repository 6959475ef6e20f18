"""What is told while a plan is made: nothing, unless asked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Say = Callable[[str], None]
_PARTS = 5  # messages that a count is told in


def on_terminal(message: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"jaxremat: {message}\n")


@contextlib.contextmanager
def counted(say: Say | None, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A context that gives a function to be called after each of `total` steps.

    On a terminal and with the extra `jaxremat[rich]` they are a bar, elsewhere a few messages.
    """
    if say is None or total == 0:
        yield lambda: None
        return
    bar = _bar(what, total) if say is on_terminal and sys.stderr.isatty() else None
    if bar is not None:
        with bar as advance:
            yield advance
        return
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done * _PARTS // total > (done - 1) * _PARTS // total:
            say(f"{what}: {done} of {total}")

    yield advance


def _bar(what: str, total: int) -> contextlib.AbstractContextManager[Callable[[], None]] | None:
    try:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
    except ImportError:
        return None

    @contextlib.contextmanager
    def shown() -> Iterator[Callable[[], None]]:
        columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)

    return shown()
