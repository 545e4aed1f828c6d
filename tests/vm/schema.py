# SPDX-License-Identifier: GPL-2.0
"""Validates JSON outputs of the tool `ulp` against the schemas that `ulp schema` prints.

    schema.py COMMAND FILE [--lines] [--that CONDITION]

CONDITION is Python, and must hold for each document d. Unlike a published validator it also refuses
keys that the schema does not name, and schemas with keywords that it does not know.
"""

import functools
import json
import os
import subprocess
import sys

ANNOTATIONS = {"$schema", "$defs", "title", "description", "format", "default"}
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def has_type(value, name):
    if name in ("integer", "number"):
        allowed = int if name == "integer" else (int, float)
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def violation(schema, value, root=None, path="$"):
    """The first violation of the schema, or None."""
    root = root or schema
    if schema is True:
        return None
    rules = {keyword: rule for keyword, rule in schema.items() if keyword not in ANNOTATIONS}

    def each(pairs):
        return next(filter(None, (violation(rule, item, root, where) for rule, item, where in pairs)), None)

    def no_match(rules):
        failed = [violation(rule, value, root, path) for rule in rules]
        return None if None in failed else "; ".join(failed)

    properties = rules.pop("properties", {})
    others = rules.pop("additionalProperties", None)
    prefix = rules.pop("prefixItems", [])
    if isinstance(value, dict) and (properties or others):
        for key, item in value.items():
            if key not in properties and not isinstance(others, dict):
                return f"{path}: the schema has no {key}"
            if why := violation(properties.get(key, others), item, root, f"{path}.{key}"):
                return why
    elif why := each((rule, item, f"{path}[]") for rule, item in zip(prefix, value if prefix else [], strict=False)):
        return why
    for keyword, rule in rules.items():
        match keyword:
            case "$ref":
                why = violation(root["$defs"][rule.removeprefix("#/$defs/")], value, root, path)
            case "type":
                names = rule if isinstance(rule, list) else [rule]
                why = None if any(has_type(value, name) for name in names) else f"{value!r} is no {rule}"
            case "const":
                why = None if value == rule else f"{value!r} is not {rule!r}"
            case "enum":
                why = None if value in rule else f"{value!r} is none of {rule}"
            case "anyOf" | "oneOf":
                why = no_match(rule)
            case "items":
                why = each((rule, item, f"{path}[]") for item in value or []) if isinstance(value, list) else None
            case "required":
                missing = [key for key in rule if key not in value] if isinstance(value, dict) else []
                why = f"there is no {missing[0]}" if missing else None
            case "minimum" | "maximum":
                sign = 1 if keyword == "minimum" else -1
                why = f"{value} is beyond the {keyword}" if value is not None and sign * value < sign * rule else None
            case "minItems" | "maxItems":
                sign = 1 if keyword == "minItems" else -1
                why = f"{len(value)} items" if sign * len(value) < sign * rule else None
            case _:
                why = f"unknown keyword {keyword}"
        if why:
            return why if why.startswith("$") else f"{path}: {why}"
    return None


@functools.cache
def of(command):
    """The schema of a command's output."""
    tool = os.environ.get("ULP", "/ulp") + "/bin/ulp"
    return json.loads(subprocess.run([tool, "schema", command], capture_output=True, check=True).stdout)


def main():
    command, file, *options = sys.argv[1:]
    condition = options.pop() if options[-2:-1] == ["--that"] else "True"
    with open(file) as f:
        documents = f.readlines() if "--lines" in options else [f.read()]
    if not documents:
        sys.exit("there is no output")
    for document in documents:
        d = json.loads(document)
        if why := violation(of(command), d):
            sys.exit(f"{why}\n{document}")
        # In one process: to start Python takes an emulated guest longer than all that it does here.
        if not eval(condition, {"d": d}):
            sys.exit(f"not {condition}\n{document}")


if __name__ == "__main__":
    main()
