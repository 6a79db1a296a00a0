"""What compute loses while communication runs on the same GPU."""

from hardware.spec import GpuSpec

PERSISTENT = ("hopper", "blackwell")
"""Their GEMM kernels are persistent and sized to all SMs: a few SMs taken delay all of it."""
PERSISTENT_SLOWDOWN, PERSISTENT_PER_SM = 0.214, 0.0044
"""Extra GEMM time beside a copy kernel of c CTAs on an H200, mean over four large products: 0.231,
0.247, 0.286, 0.318 for c = 4, 8, 16, 24 (our overlap_proxy.csv; a line through them). With the
memory-bound kernels' share this averages to the 0.19 that arXiv 2507.03114 reports."""
CONTENTION = 0.05
"""Shared L2, HBM and power, where no SMs are taken (copy engines) and, on Ampere, on top of the
SMs' share. A stated guess; memory-bound kernels lose 0.02 to 0.11 beside 4 to 16 CTAs."""
MEMORY_BOUND_SHARE = 0.3
"""A memory-bound kernel's slow-down over a GEMM's: 0.10, 0.20 and 0.38 beside 4, 8 and 16 CTAs
(overlap_proxy.csv, add_scalar over GEMMs)."""


def gemm_slowdown(gpu: GpuSpec, num_sms_taken: int) -> float:
    """Extra time of a GEMM, per second alone, while a kernel of so many CTAs runs beside it."""
    if num_sms_taken == 0:
        return CONTENTION
    if gpu.architecture in PERSISTENT:
        return PERSISTENT_SLOWDOWN + PERSISTENT_PER_SM * num_sms_taken
    taken = min(num_sms_taken, gpu.num_sms // 2)
    return taken / (gpu.num_sms - taken) + CONTENTION
