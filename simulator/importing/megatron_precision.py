"""Megatron-LM's arguments on precision: bf16, fp16, and linear layers in 8 or 4 bits."""

from simulator.importing.translation import Translation

READ = (
    "fp16", "bf16", "precision", "fp8", "fp8_format", "fp4", "fp4_format", "fp8_recipe",
    "fp4_recipe", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_param_gather",
    "fp8_param", "fp8_params", "fp4_param_gather", "fp4_param", "grad_reduce_in_bf16",
)  # fmt: skip
"""Arguments that are read here."""

PATH = ("training", "precision")


def take_precision(t: Translation) -> None:
    """Set `training.precision` and the type of main gradients."""
    kind = _half(t)
    _low(t)
    main = t.take("grad_reduce_in_bf16")
    full = t.take("accumulate_allreduce_grads_in_fp32")
    path = ("training", "accumulate_allreduce_grads_in_fp32")
    if main is not None:
        t.put(path, False, main)
    elif full is not None:
        t.put(path, True, full)
    else:
        t.default(path, kind == "bf16", f"Megatron-LM's default for {kind}")


def _half(t: Translation) -> str:
    """bf16 or fp16: the type of all that is not quantized."""
    half, brain, named = t.take("fp16"), t.take("bf16"), t.take("precision")
    if named is not None:  # NeMo: 16, bf16, bf16-mixed
        kind = named.text.lower().partition("-")[0]
        t.put(PATH, {"16": "fp16"}.get(kind, kind), named)
    elif (argument := brain or half) is not None:
        t.put(PATH, "bf16" if brain else "fp16", argument)
    else:
        why = "neither --bf16 nor --fp16 is given, and training in fp32 is not modelled"
        t.assume(PATH, "bf16", why)
    return t.get(*PATH) or "bf16"


def _low(t: Translation) -> None:
    """--fp8-format with its recipe, or --fp4-format, in place of the type of linear layers."""
    four, eight = t.take("fp4_format", "fp4"), t.take("fp8_format", "fp8")
    argument = four or eight
    if argument is None:
        return
    told = argument.text.lower()
    value = {"format": told if told not in ("", "true") else "hybrid"}
    recipe = t.take("fp4_recipe" if four else "fp8_recipe")
    value["recipe"] = recipe.text if recipe else "nvfp4" if four else "delayed"
    history, algorithm = t.take("fp8_amax_history_len"), t.take("fp8_amax_compute_algo")
    if value["recipe"] == "delayed":  # the defaults are Megatron-LM's
        value["amax_history_len"] = history.text if history else "1"
        value["amax_compute_algo"] = algorithm.text if algorithm else "most_recent"
    names = ("fp4_param_gather", "fp4_param") if four else (
        "fp8_param_gather", "fp8_param", "fp8_params"
    )  # fmt: skip
    gather = t.take(*names)
    value["param_gather"] = "true" if gather else "false"
    t.put(PATH, value, argument)
    for part in (recipe, history, algorithm, gather):
        if part is not None:
            t.also(part, "in training.precision")
