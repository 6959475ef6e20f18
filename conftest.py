"""Tests plan anew and leave nothing in the user's cache folder; those of the cache have one of their own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_cache():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXREMAT_CACHE", "off")
        yield
