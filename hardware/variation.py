"""GPUs of one kind are not equally fast; those that meet in a step wait for the slowest."""

from statistics import NormalDist


def slowest_excess(deviation: float, num_gpus: int) -> float:
    """Extra compute time of the slowest of `num_gpus` over their mean, as a fraction of it.

    Times spread normally with a relative standard deviation of `deviation`; the expected largest
    of n is at the quantile (n - 3/8) / (n + 1/4) (Blom 1958, Statistical Estimates and Transformed
    Beta-Variables). One GPU has none.

    >>> round(slowest_excess(0.01, 8), 4)
    0.0142
    """
    return deviation * NormalDist().inv_cdf((num_gpus - 0.375) / (num_gpus + 0.25))
