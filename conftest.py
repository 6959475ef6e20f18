"""Tests plan anew, by costs that are the same each time, and leave nothing in the user's cache folder.

Those of the cache have a folder of their own; those marked `profile` take what costs are measured to be.
"""

import pytest

from jaxremat import _cost


@pytest.fixture(autouse=True, scope="session")
def _no_cache():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXREMAT_CACHE", "off")
        yield


@pytest.fixture(autouse=True)
def _same_costs(request, monkeypatch):
    if request.node.get_closest_marker("profile") is None:
        monkeypatch.setattr(_cost, "timed", lambda nodes, target, say=None: [None] * len(nodes))
