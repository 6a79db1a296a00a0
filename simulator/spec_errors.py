"""What a spec refused, in words: key path, what was found, what is allowed, the nearest name.

What is allowed is read from the JSON Schema of the specs, so there is one source for checking,
for messages and for editors.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic_core import ErrorDetails

from simulator.errors import Place, Problem
from simulator.overrides import PRESET, PRESET_KINDS
from simulator.runspec import RunSpec
from simulator.yaml_lines import Located

Schema = Mapping[str, Any]

NOT_YET_VALUES: Mapping[tuple[str, str], tuple[str, ...]] = {}
"""Values of the run file's contract that are not built yet."""

NOT_YET_KEYS: Mapping[str, tuple[str, ...]] = {}
"""Keys of the run file's contract that are not built yet."""


_TAGS = ("[key]", "[name]", "[mapping]")
"""Parts of pydantic's locations that are no keys: a mapping's key itself, and the spelling that a
value is taken for."""


def spec_problem(detail: ErrorDetails, tree: Located) -> Problem:
    """Put one error of pydantic's into words, at the place of the value (or of the mapping that
    lacks it)."""
    path = key_path(detail["loc"])
    kind = detail["type"]
    if kind == "missing":
        what = "entry" if path[-1].isdigit() else "key"
        message = f"missing {what}; it takes {describe(schema_at(path))}"
    elif kind == "extra_forbidden":
        message = _unknown_key(path)
    elif kind == "value_error":
        message = str(detail["ctx"]["error"])
    elif detail["loc"][-1] == "[key]":
        message = f"the key {path[-1]!r} is not a whole number of at least 0"
    else:
        message = _bad_value(path, _value_at(tree, path))
    return Problem(message, ".".join(path), place_at(tree, path))


def key_path(location: Iterable[object]) -> tuple[str, ...]:
    """Pydantic's location as a key path."""
    return tuple(str(part) for part in location if part not in _TAGS)


def place_at(tree: Located, path: Sequence[str]) -> Place:
    """Place of the value at `path`, or of the innermost mapping or list that would hold it."""
    node = tree
    for key in path:
        below = node.child(key)
        if below is None:
            break
        node = below
    return node.place


def _value_at(tree: Located, path: Sequence[str]) -> object:
    node: Located | None = tree
    for key in path:
        node = node.child(key) if node is not None else None
    return None if node is None else node.value


@cache
def run_schema() -> Schema:
    """JSON Schema of the run file with every preset written out."""
    return RunSpec.model_json_schema()


def schema_at(path: Sequence[str]) -> Schema:
    """JSON Schema of the value at a key path; empty for a path that no spec has."""
    return _resolved(_unresolved(path))


def _unresolved(path: Sequence[str]) -> Schema:
    node: Schema = run_schema()
    for key in path:
        node = _resolved(node, key)
        children = node.get("properties", {})
        rest = node.get("additionalProperties") or node.get("items") or {}
        entries = node.get("prefixItems", ())
        if key.isdigit() and int(key) < len(entries):
            rest = entries[int(key)]
        node = children.get(key, rest)
    return node


def _resolved(node: Schema, key: str = "") -> Schema:
    """Follow references, and of a value that may be left empty take what it may hold. Of a value
    with several spellings, the one that may have `key` below it, else the first."""
    while "$ref" in node or "anyOf" in node or "oneOf" in node:
        if "$ref" in node:
            node = run_schema()["$defs"][node["$ref"].rpartition("/")[2]]
        elif "oneOf" in node:
            options = [_resolved(option) for option in node["oneOf"]]
            node = next((o for o in options if key and "properties" in o), options[0])
        else:
            node = next(option for option in node["anyOf"] if option.get("type") != "null")
    return node


def describe(node: Schema) -> str:
    """What a value of this schema is, in words."""
    if "enum" in node:
        return "one of " + ", ".join(node["enum"])
    noun = {
        "integer": "a whole number", "number": "a number", "boolean": "true or false",
        "string": "text", "array": "a list", "object": "a mapping",
    }[node.get("type", "object")]  # fmt: skip
    if "prefixItems" in node:
        return f"a list of {len(node['prefixItems'])}, each {describe(node['prefixItems'][0])}"
    limits = [
        f"{words} {node[key]:g}"
        for key, words in (
            ("exclusiveMinimum", "above"),
            ("minimum", "of at least"),
            ("exclusiveMaximum", "below"),
            ("maximum", "at most"),
        )
        if key in node
    ]
    return " ".join([noun, " and ".join(limits)]).strip()


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The closest of `choices`, if one is close; case and dashes do not count."""
    by_folded = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None


def known_keys(path: Sequence[str]) -> list[str]:
    """Keys that the mapping at `path` may have."""
    preset = [PRESET] if tuple(path) in PRESET_KINDS else []
    return [*_resolved(_unresolved(path), "any").get("properties", {}), *preset]


def suggest_key(path: Sequence[str]) -> str | None:
    """The known key closest to the unknown one that `path` ends with."""
    return nearest(path[-1], known_keys(path[:-1]))


def suggest_value(path: Sequence[str], value: object) -> str | None:
    """The allowed value closest to the one found at `path`."""
    choices = schema_at(path).get("enum", ())
    return nearest(value, choices) if isinstance(value, str) else None


def _unknown_key(path: tuple[str, ...]) -> str:
    if path[-1] in NOT_YET_KEYS.get(".".join(path[:-1]), ()):
        return "not supported yet; leave it out"
    for home in ((), ("model",), ("training",), ("parallelism",), ("optimizer",), ("cluster",)):
        if home != path[:-1] and path[-1] in known_keys(home):
            return f"unknown key here; it belongs {'under ' + home[0] if home else 'at the top'}"
    near = suggest_key(path)
    if near:
        return f"unknown key; did you mean {near!r}?"
    return "unknown key; choose " + ", ".join(known_keys(path[:-1]))


def _bad_value(path: tuple[str, ...], value: object) -> str:
    found = _words(value)
    node = schema_at(path)
    if "enum" in node:
        return _bad_choice(path, value, node["enum"])
    if node.get("maximum") is not None and node.get("maximum") == node.get("minimum"):
        reason = "not supported yet" if _is_above(value, node["maximum"]) else "not allowed"
        return f"{found} is {reason}; allowed: {node['maximum']}"
    if value is None:
        return f"nothing is set; expected {describe(node)}"
    return f"{found} is not {describe(node)}{_whole_number_hint(node, value)}"


def _bad_choice(path: tuple[str, ...], value: object, choices: Sequence[str]) -> str:
    planned = NOT_YET_VALUES.get((path[0], path[-1]), ())
    named = value if isinstance(value, str) else ""
    reason = "not supported yet" if named in planned else "not allowed"
    message = f"{_words(value)} is {reason}; choose {', '.join(choices)}"
    near = suggest_value(path, value)
    return f"{message}; did you mean {near!r}?" if near and named not in planned else message


def _words(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None:
        return "nothing"
    text = str(value)
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _is_above(value: object, limit: float) -> bool:
    try:
        return float(str(value)) > limit
    except ValueError:
        return False


def _whole_number_hint(node: Schema, value: object) -> str:
    """1e6 is a number to most people and a word to an integer field: say how to write it."""
    try:
        number = float(str(value))
    except ValueError:
        return ""
    if node.get("type") != "integer" or not number.is_integer() or not 0 < number < 1e15:
        return ""
    return f"; write {int(number)}" if "e" in str(value).lower() else ""
