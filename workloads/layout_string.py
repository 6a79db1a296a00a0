"""Megatron's `pipeline_model_parallel_layout`: which layers each model chunk holds, as a string.

`E` is the embedding, `t` a transformer layer, `L` the loss (final norm, logits, cross entropy). `|`
ends a chunk, `(...)*n` and `x*n` repeat, commas are for the eye only. `Ett|(tt|)*2tL` is
`Ett|tt|tt|tL` (Megatron-LM, core/transformer/pipeline_parallel_layer_layout.py).
"""

import re
from functools import lru_cache

EMBEDDING, LAYER, LOSS = "E", "t", "L"

MAX_LENGTH = 100_000
"""Letters, written out: far beyond any model, so that a slip in a factor does not fill memory."""

_REPEATED_GROUP = re.compile(r"\(([^()]+)\)\*(\d+)")
_REPEATED_LETTER = re.compile(r"([^()*])\*(\d+)")


@lru_cache
def chunks_of_layout(text: str) -> tuple[str, ...]:
    """The letters of each model chunk, in the order in which a microbatch passes them.

    Raises `ValueError` for what is no layout.

    >>> chunks_of_layout("Et*2|(t|)*2L")
    ('Ett', 't', 't', 'L')
    """
    written_out = text.replace(",", "").replace(" ", "")
    for repeated in (_REPEATED_GROUP, _REPEATED_LETTER):
        written_out = _unrolled(written_out, repeated)
    strange = sorted(set(written_out) - {EMBEDDING, LAYER, LOSS, "|"})
    if "m" in strange:
        raise ValueError("'m' (multi-token prediction) is a layer that no model has here")
    if strange:
        raise ValueError(
            f"{text!r} is no layout: found {''.join(strange)!r}; write E (embedding), t (layer), "
            "L (loss), | between chunks, (...)*n and x*n to repeat"
        )
    return tuple(written_out.split("|"))


def _unrolled(text: str, repeated: re.Pattern[str]) -> str:
    length = len(text) + sum(len(m[1]) * int(m[2][:7]) for m in repeated.finditer(text))
    if length > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH:,} letters when written out")
    return repeated.sub(lambda m: m[1] * int(m[2]), text)
