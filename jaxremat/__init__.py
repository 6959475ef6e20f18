"""Training steps that fit a memory budget: optimal rematerialization, measured on the compiled program."""

from jaxremat import equinox, nnx
from jaxremat._api import grad, remat, value_and_grad
from jaxremat._batch import LargestBatch, max_batch_size
from jaxremat._errors import BudgetError, PlanMismatchError
from jaxremat._graph import Graph
from jaxremat._plan import Plan
from jaxremat._schedule import Lifetime, Schedule, Statement, simulate
from jaxremat.solvers import SOLVERS, lowest_peak, solve

__all__ = [
    "SOLVERS",
    "BudgetError",
    "Graph",
    "LargestBatch",
    "Lifetime",
    "Plan",
    "PlanMismatchError",
    "Schedule",
    "Statement",
    "equinox",
    "grad",
    "lowest_peak",
    "max_batch_size",
    "nnx",
    "remat",
    "simulate",
    "solve",
    "value_and_grad",
]
