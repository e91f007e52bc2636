"""schema: what may stand in the files of config/, as JSON schemas that editors read, made of the settings models.

A file says a part of its settings, and other layers say the rest: so nothing is required there, and the word `default` may
stand for any value. `recollect check` knows more: it lays all layers over each other.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from recollect.settings.catalogue import known
from recollect.settings.claims import ClaimSettings
from recollect.settings.layers import method_path
from recollect.settings.loading import DEFAULT, config_folder, read_yaml
from recollect.settings.schema import (
    EnvironmentSettings,
    EvaluationSettings,
    FigureSettings,
    MethodSettings,
    ScaleSettings,
    SourceSettings,
)
from recollect.stages.selection import Selection

Schema = dict[str, Any]
_REF = "#/definitions/{model}"
_PLAIN = (
    Selection,
    ClaimSettings,
    EnvironmentSettings,
    EvaluationSettings,
    FigureSettings,
    MethodSettings,
    ScaleSettings,
)
_TEXT: Schema = {"type": "string"}


def write() -> str:
    """Write the files of config/schemas; says which."""
    from recollect.artifacts.sealed import write_bytes

    made = texts()
    for path, text in made.items():
        write_bytes(path, text.encode())
    return f"written: {', '.join(map(str, made))}"


def texts() -> dict[Path, str]:
    """File -> what must stand in it."""
    folder = config_folder() / "schemas"
    return {folder / f"{name}.json": json.dumps(schema, indent=1) + "\n" for name, schema in schemas().items()}


def schemas() -> dict[str, Schema]:
    """Group of files, e.g. `methods` -> the schema of each of them."""
    algorithms, sources, kinds = _ours("method"), _ours("source"), _ours("figure")
    own = [module.Hyperparameters for module in (*algorithms.values(), *sources.values())]
    own += [module.Memory for module in algorithms.values() if hasattr(module, "Memory")]
    own += [module.Options for module in kinds.values()]
    of_model, shared = models_json_schema(
        [(model, "validation") for model in dict.fromkeys((*_PLAIN, SourceSettings, *own))], ref_template=_REF
    )

    def ref(model: type[BaseModel]) -> Schema:
        return of_model[model, "validation"]

    whole: dict[str, Schema] = {name: _untitled(schema) for name, schema in shared["$defs"].items()}
    part = {name: _part(schema) for name, schema in whole.items()}
    options = {kind: {"options": ref(module.Options)} for kind, module in kinds.items()}
    part["FigureSettings"] = _without_name(part["FigureSettings"]) | _by("kind", options)
    part["EnvironmentSettings"] = _without_name(part["EnvironmentSettings"])
    part["EnvironmentSettings"]["properties"]["parameter"] = _TEXT
    hyperparameters = {name: {"hyperparameters": ref(module.Hyperparameters)} for name, module in sources.items()}
    part["SourceSettings"] |= _by("algorithm", hyperparameters)

    # A method's entries for environments and its variants say what it says itself.
    part["Method"] = _method(part["MethodSettings"], "Method", {"evaluation": ref(EvaluationSettings)})
    for name, module in algorithms.items():
        typed = {"hyperparameters": ref(module.Hyperparameters), "evaluation": ref(EvaluationSettings)}
        typed |= {"memory": ref(module.Memory)} if hasattr(module, "Memory") else {}
        part[f"Method.{name}"] = _method(part["MethodSettings"], f"Method.{name}", typed)
    methods = sorted(path.stem for path in (config_folder() / "methods").glob("*.yaml"))
    of_method = {name: _typed(_algorithm_of(name), algorithms) for name in methods}
    part["ScaleSettings"]["properties"] |= {
        "environments": _each(_REF.format(model="EnvironmentSettings")),
        "figures": _each(_REF.format(model="FigureSettings")),
        "methods": {**_each(_REF.format(model="Method")), "properties": {n: {"$ref": r} for n, r in of_method.items()}},
    }

    selection, claim = dict(whole["Selection"]), _without_name(whole["ClaimSettings"])
    several = selection["properties"]["figures"]
    selection["properties"] = {**selection["properties"], "figures": {"anyOf": [_TEXT, several]}}
    at_scale = {**claim, "required": []}
    claim["properties"] = {**claim["properties"], "scales": {"type": "object", "additionalProperties": at_scale}}
    made = {
        "config": _finished(selection, whole),
        "environments": _finished(part["EnvironmentSettings"], part),
        "methods": _finished(_file_of_method(algorithms, of_method), part),
        "figures": _finished(part["FigureSettings"], part),
        "scales": _finished(part["ScaleSettings"], part),
        "claims": _finished(claim, whole),
    }
    return {name: {"title": f"Recollect: {name}", **schema} for name, schema in made.items()}


def _ours(kind: str) -> dict[str, ModuleType]:
    """Name -> module, without plug-ins and without the folder `mine`, which are not everybody's."""
    modules = {name: module for name, module in known(kind).items() if module.startswith("recollect.")}
    return {name: importlib.import_module(modules[name]) for name in sorted(modules)}


def _untitled(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}


def _part(schema: Any) -> Any:
    """The schema of a part of what a schema describes: nothing is required, and `default` is a value."""
    if isinstance(schema, list):
        return [_part(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: value for key, value in schema.items() if key != "required"}
    for key in {"anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties"} & found.keys():
        found[key] = _part(found[key])
    if "properties" in found:
        inner = {name: _part(value) for name, value in found["properties"].items()}
        found["properties"] = {name: {"anyOf": [value, {"const": DEFAULT}]} for name, value in inner.items()}
    return found


def _without_name(schema: Schema) -> Schema:
    """A file has its name outside."""
    properties = {key: value for key, value in schema["properties"].items() if key != "name"}
    required = [key for key in schema.get("required", ()) if key != "name"]
    return {**schema, "properties": properties, "required": required}


def _by(key: str, properties: Mapping[str, Schema]) -> Schema:
    """Where `key` has this value, these properties are so."""
    rules = []
    for value, schema in properties.items():
        there = {"properties": {key: {"const": value}}, "required": [key]}
        rules.append({"if": there, "then": {"properties": {n: _or_default(one) for n, one in schema.items()}}})
    return {"allOf": rules}


def _or_default(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"const": DEFAULT}]}


def _each(ref: str) -> Schema:
    """Names that are mapped to such settings, or to nothing."""
    return {"type": ["object", "null"], "additionalProperties": {"anyOf": [{"$ref": ref}, {"type": "null"}]}}


def _method(settings: Schema, name: str, typed: Mapping[str, Schema]) -> Schema:
    found = _without_name(settings)
    entries = _each(_REF.format(model=name))
    inner = {key: _or_default(schema) for key, schema in typed.items()}
    found["properties"] = {**found["properties"], **inner, "base": _TEXT, "environments": entries}
    found["properties"] |= {"variants": entries, "subtitle": _TEXT}
    return found


def _algorithm_of(method: str) -> str:
    """The algorithm of a method, which it may have from its base."""
    content = read_yaml(method_path(method))
    return str(content["algorithm"]) if "algorithm" in content else _algorithm_of(str(content.get("base")))


def _typed(algorithm: str, algorithms: Mapping[str, ModuleType]) -> str:
    return _REF.format(model=f"Method.{algorithm}" if algorithm in algorithms else "Method")


def _file_of_method(algorithms: Mapping[str, ModuleType], of_method: Mapping[str, str]) -> Schema:
    """What a method's file may hold depends on its algorithm, or where it names none on that of its base."""
    rules: list[Schema] = []
    for key, refs in (("algorithm", {name: _typed(name, algorithms) for name in algorithms}), ("base", of_method)):
        for value, ref in refs.items():
            there: Schema = {"properties": {key: {"const": value}}, "required": [key]}
            if key == "base":
                there["not"] = {"required": ["algorithm"]}
            rules.append({"if": there, "then": {"$ref": ref}})
    return {"allOf": [{"$ref": _REF.format(model="Method")}, *rules]}


def _finished(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """A schema with all that it refers to."""
    wanted, waiting = set[str](), list(_references(schema))
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += _references(definitions[name])
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    return {**draft, **schema, "definitions": {name: definitions[name] for name in sorted(wanted)}}


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_REF.format(model=""))
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)
