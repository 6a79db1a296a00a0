"""Names of precisions in runs tables."""

import pytest

from validation.precisions import precision_setting


def test_names() -> None:
    assert precision_setting("", "delayed", True) == "bf16"
    assert precision_setting("fp16", "delayed", True) == "fp16"
    assert precision_setting("fp8-cs", "delayed", True) == {
        "recipe": "tensorwise", "format": "e4m3", "param_gather": True,
    }  # fmt: skip
    assert precision_setting("nvfp4", "delayed", True) == {
        "recipe": "nvfp4", "format": "e2m1", "param_gather": False,
    }  # fmt: skip


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise"])
def test_an_unnamed_recipe_is_the_framework_s(recipe: str) -> None:
    setting = precision_setting("fp8-unspecified", recipe, False)
    assert isinstance(setting, dict)
    assert setting["recipe"] == recipe


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="int3 is not modelled"):
        precision_setting("int3", "delayed", False)
