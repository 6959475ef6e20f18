"""Small functions of every kind that people write in JAX, by theme; `tests/test_conformance.py` runs them."""
