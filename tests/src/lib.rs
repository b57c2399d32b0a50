//! Harness shared by the tests in `tests/tests`.
