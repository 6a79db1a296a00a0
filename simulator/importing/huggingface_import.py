"""From a Hugging Face config.json to a model file of the run file's `model`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from simulator.errors import ConfigError, Place, Problem
from simulator.importing import huggingface_families as hugging
from simulator.importing.arguments import Argument
from simulator.importing.read_input import read_text
from simulator.importing.run_text import model_text, settings_tree
from simulator.importing.text_pieces import literal
from simulator.importing.translation import Fate, Setting, Translation, has_field
from simulator.spec_errors import nearest, spec_problem
from simulator.yaml_lines import Located, parse_yaml
from workloads.flops import parameter_count
from workloads.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model file and the account of how it came about."""

    text: str
    model: ModelSpec
    source: str
    num_parameters: int
    understood: tuple[Fate, ...]
    ignored: tuple[Fate, ...]
    not_modelled: tuple[Fate, ...]
    unknown: tuple[Fate, ...]
    assumed: tuple[str, ...]


def import_huggingface(path: Path, name: str | None = None) -> ImportedModel:
    """Read a config.json; `name` is the model's, else the file's own or its folder's.

    Raises `ConfigError` with the file's line for what is wrong or not modelled.
    """
    tree = _read(path)
    kind = _plain(tree, "model_type")
    family = _family(kind, tree)
    t = Translation(_arguments(tree), Place(str(path)))
    named = name or _name(path, tree)
    t.settings["model", "name"] = Setting(named, "", t.source)
    source = f"config.json of {named}, {kind}, as Hugging Face has it"
    t.settings["model", "source"] = Setting(source, "", t.source)
    _translate(t, family)
    t.sort_rest(hugging.IGNORED, hugging.NOT_MODELLED, [*family.sizes, *_OTHERS])
    model = _checked(t)
    text = model_text(t.settings, [f"Imported from {path.name} by clustersim import hf."])
    return ImportedModel(
        text, model, str(path), parameter_count(model), tuple(t.understood), tuple(t.ignored),
        tuple(t.not_modelled), tuple(t.unknown), tuple(t.assumed),
    )  # fmt: skip


_OTHERS = (
    "tie_word_embeddings",
    "hidden_act",
    "mlp_bias",
    "attention_bias",
    "first_k_dense_replace",
)


def _read(path: Path) -> Located:
    source = str(path)
    text = read_text(path, "a config.json").replace("\t", " ")
    problems: list[Problem] = []
    tree = parse_yaml(text, lambda line: Place(source, line), problems)
    if problems:
        raise ConfigError(problems)
    inner = tree.child("text_config")  # of models that also see
    if tree.mapping is None or (inner is not None and inner.mapping is None):
        raise ConfigError(Problem("is no config.json: it holds no mapping", place=Place(source)))
    return inner if inner is not None else tree


def _plain(tree: Located, key: str) -> str:
    child = tree.child(key)
    return "" if child is None or not isinstance(child.value, str) else child.value


def _name(path: Path, tree: Located) -> str:
    """What the file calls its model, else its own name, else its folder's."""
    told = _plain(tree, "_name_or_path").rstrip("/").rpartition("/")[2]
    own = path.stem if path.stem != "config" else path.resolve().parent.name
    return told or own or "imported"


def _family(kind: str, tree: Located) -> hugging.Family:
    if kind in hugging.FAMILIES:
        return hugging.FAMILIES[kind]
    known = ", ".join(hugging.FAMILIES)
    if not kind:
        message = f"missing key; it takes one of {known}"
        raise ConfigError(Problem(message, "model_type", tree.place))
    near = nearest(kind, hugging.FAMILIES)
    hint = f"; did you mean {near!r}?" if near else ""
    child = tree.child("model_type")
    place = tree.place if child is None else child.place
    message = f"{kind!r} is not a family that is known; choose {known}{hint}"
    raise ConfigError(Problem(message, "model_type", place))


def _arguments(tree: Located) -> dict[str, Argument]:
    found: dict[str, Argument] = {}
    for key, child in (tree.mapping or {}).items():
        text = "null" if child.value is None else str(child.plain())
        values = () if text.lower() == "true" else (literal(text, child.place.line),)
        found[key] = Argument(key, key, values, child.place)
    return found


def _translate(t: Translation, family: hugging.Family) -> None:
    lacking: dict[str, Argument] = {}
    for key, name in family.sizes.items():
        argument = t.take(key)
        if argument is None:
            continue
        if has_field(name):
            if (text := t.value(argument)) is not None:
                t.put(("model", name), text, argument)
        elif name in hugging.KINDS:
            lacking.setdefault(hugging.KINDS[name], argument)
    for kind, argument in lacking.items():
        t.problem(argument, f"{kind} is not modelled yet; without it this is another model")
    for name, value in family.fixed.items():
        if has_field(name):
            t.default(("model", name), value, "of its family")
    _activation(t)
    _biases(t)
    _window(t)
    _ties(t, family)
    _layers_of_experts(t)
    _shared_experts(t)
    for name, words in family.lacks.items():
        if has_field(name):
            t.default(("model", name), True, "of its family")
        else:
            t.assumed.append(f"not modelled: {words}")


def _activation(t: Translation) -> None:
    argument = t.take("hidden_act", "hidden_activation", "activation_function")
    if argument is None or (text := t.value(argument)) is None:
        return
    if text not in hugging.ACTIVATIONS:
        known = ", ".join(hugging.ACTIVATIONS)
        t.problem(argument, f"{text!r} is not modelled; choose {known}")
        return
    t.put(("model", "activation_function"), hugging.ACTIVATIONS[text], argument)


def _biases(t: Translation) -> None:
    """Biases of all linear layers or of none; those of some are left out, and said to be."""
    mlp, attention = t.arguments.pop("mlp_bias", None), t.arguments.get("attention_bias")
    if mlp is not None and not mlp.denied:
        t.put(("model", "add_bias_linear"), True, mlp)
    if attention is not None and (attention.denied or (mlp is not None and not mlp.denied)):
        t.arguments.pop("attention_bias")


def _window(t: Translation) -> None:
    """A window that the model does not use is none; `layer_types` says which layers have it."""
    used = t.arguments.pop("use_sliding_window", None)
    if used is not None and used.denied:
        t.arguments.pop("sliding_window", None)
        t.arguments.pop("layer_types", None)
    window = t.arguments.get("sliding_window")
    if window is None or window.denied or not has_field("window_size"):
        return
    if (text := t.value(t.arguments.pop("sliding_window"))) is not None:
        t.put(("model", "window_size"), text, window)
    kinds = t.take("layer_types")
    if kinds is not None:
        flags = ["1" if kind.startswith("sliding") else "0" for kind in _listed(kinds)]
        t.put(("model", "window_attn_skip_freq"), flags, kinds)


def _listed(argument: Argument) -> list[str]:
    return re.findall(r"[\w.-]+", argument.text)


def _ties(t: Translation, family: hugging.Family) -> None:
    argument = t.arguments.pop("tie_word_embeddings", None)
    path = ("model", "untie_embeddings_and_output_weights")
    if argument is None:
        t.default(path, not family.tied, "of its family")
    else:
        t.put(path, argument.denied, argument)


def _layers_of_experts(t: Translation) -> None:
    """The first layers may be dense, as DeepSeek's; or each n-th only has experts, as Qwen's."""
    if not has_field("moe_layer_freq"):
        return
    layers = t.whole("model", "num_layers")
    first, step = t.take("first_k_dense_replace"), t.take("decoder_sparse_step")
    dense = t.take("mlp_only_layers")
    count = t.number(first) if first is not None and first.text != "0" else 0
    every = t.number(step) if step is not None else 1
    without = {int(text) for text in _listed(dense) if text.isdecimal()} if dense else set()
    flags = [
        int(i >= (count or 0) and (i + 1) % (every or 1) == 0 and i not in without)
        for i in range(layers)
    ]
    argument = first or step or dense
    if argument is not None and not all(flags):
        t.put(("model", "moe_layer_freq"), list(map(str, flags)), argument)
    for other in (first, step, dense):
        if other is not None and (other is not argument or all(flags)):
            t.also(other, "experts in every layer" if all(flags) else "layers without experts")


def _shared_experts(t: Translation) -> None:
    """DeepSeek counts its shared experts in experts."""
    argument, name = t.take("n_shared_experts"), "moe_shared_expert_intermediate_size"
    if argument is None or not has_field(name) or (count := t.number(argument)) is None:
        return
    width = t.whole("model", "moe_ffn_hidden_size")
    t.put(("model", name), str(count * width), argument)


def _checked(t: Translation) -> ModelSpec:
    if t.problems:
        raise ConfigError(t.problems)
    tree = settings_tree(t.settings, t.source)
    section = tree.child("model")
    assert section is not None
    try:
        return ModelSpec.model_validate(section.plain())
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError(spec_problem(_below_model(d), tree) for d in details) from None


def _below_model(detail: ErrorDetails) -> ErrorDetails:
    return cast(ErrorDetails, {**detail, "loc": ("model", *detail["loc"])})
