"""Notebooks: short, executed by the tests, committed with what they showed."""
