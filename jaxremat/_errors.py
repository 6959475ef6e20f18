"""Errors a caller of the library is meant to catch. Everything else raised is an ordinary TypeError or ValueError."""

__all__ = ["BudgetError", "PlanMismatchError"]


class BudgetError(ValueError):
    """No schedule within the budget was found.

    **Attributes:**

    - `minimum_bytes`: the smallest peak in bytes, constant bytes included, that a schedule is known to reach, so
        asking again with this budget succeeds. None if no such figure is known.
    - `operation`: name of the node whose memory sets that figure (or the floor of the graph, when the budget is below
        it). None if unknown.
    - `proved`: True if it is proved that no schedule fits; False if none was found.
    """

    minimum_bytes: int | None
    operation: str | None
    proved: bool

    def __init__(
        self,
        message: str,
        *,
        minimum_bytes: int | None = None,
        operation: str | None = None,
        proved: bool = False,
    ):
        super().__init__(message)
        self.minimum_bytes = minimum_bytes
        self.operation = operation
        self.proved = proved


class PlanMismatchError(ValueError):
    """A plan was used on a function or on argument shapes other than those it was made for."""
