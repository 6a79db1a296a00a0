"""Lets tests import `small_runs`: pytest puts this folder on the path."""
