"""Fit a hardware profile to real runs, logs, traces, collectives and kernels."""
