"""What runs tables call a precision, in the run file's words."""

from collections.abc import Mapping
from typing import Any, Final

RECIPES: Final[Mapping[str, str]] = {
    "fp8-delayed": "delayed", "fp8-cs": "tensorwise", "fp8-tensorwise": "tensorwise",
    "fp8-blockwise": "blockwise", "fp8-mx": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip
"""`cs`: NeMo's current scaling; `mx`: MXFP8."""
UNNAMED = ("fp8", "fp8-unspecified")
"""The source does not say which: the framework's recipe."""


def precision_setting(name: str, framework_recipe: str, param_gather: bool) -> str | dict[str, Any]:
    """Value of `training.precision`. Raises `ValueError` for a name not known here."""
    if name in ("", "bf16"):
        return "bf16"
    if name == "fp16":
        return "fp16"
    recipe = framework_recipe if name in UNNAMED else RECIPES.get(name)
    if recipe is None:
        raise ValueError(f"precision {name} is not modelled")
    four_bits = recipe == "nvfp4"
    return {
        "recipe": recipe,
        "format": "e2m1" if four_bits else "hybrid" if recipe == "delayed" else "e4m3",
        "param_gather": param_gather and not four_bits,
    }
