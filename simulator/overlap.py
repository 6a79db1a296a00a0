"""Time of compute and one collective of the same rank side by side, from the times of their parts.

Small max-plus recurrences over the chunks, as the kernels of Transformer Engine's userbuffers
execute them; what remains uncovered comes out of the recurrence.
"""


def ring_exchange_s(chunk_compute_s: float, num_chunks: int, hop_s: float) -> float:
    """All-gather ahead of compute: chunk i is computed once i hops have brought it.

    The first chunk is the rank's own; each of the other `num_chunks` - 1 comes in one hop.
    """
    end_s = 0.0
    for chunk in range(num_chunks):
        end_s = max(end_s, chunk * hop_s) + chunk_compute_s
    return end_s


def pipelined_s(
    chunk_compute_s: float, num_chunks: int, chunk_comm_s: float, slowdown: float
) -> float:
    """Reduce-scatter behind compute: chunk i is sent once it is computed.

    Every chunk but the first is computed beside the sending of an earlier one and takes
    (1 + `slowdown`) times as long.
    """
    computed_s, sent_s = 0.0, 0.0
    for chunk in range(num_chunks):
        computed_s += chunk_compute_s * (1.0 + (slowdown if chunk else 0.0))
        sent_s = max(sent_s, computed_s) + chunk_comm_s
    return sent_s


def concurrent_s(compute_s: float, comm_s: float, slowdown: float) -> float:
    """Independent compute and collective, both from the start, joined at the end.

    Compute runs (1 + `slowdown`) times as long while the collective runs.
    """
    slowed_s = compute_s * (1.0 + slowdown)
    if slowed_s <= comm_s:
        return comm_s
    return comm_s + compute_s - comm_s / (1.0 + slowdown)
