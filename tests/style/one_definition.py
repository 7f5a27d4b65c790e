"""Types with the same name in the same namespace: two definitions are undefined behaviour in a program that links both.

The compiler sees one source at a time and the linker keeps either's destructor, so nothing else notices."""

import collections
import itertools
import os
import re
import sys

FOLDERS = ("base", "model_specs", "job", "program", "estimator", "planner", "cli", "executor", "phantom", "tests")
TOKEN = re.compile(r"\bnamespace\b(?P<namespace>[^{};=]*)\{|\b(?:struct|class|enum class|enum)\s+(?P<type>\w+)\s*(?:final)?\s*(?::[^:{;][^{;]*)?\{|\{|\}")
COMMENTS_AND_TEXTS = re.compile(r'//[^\n]*|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)


def types_of(text):
    """Full names of the types that `text` defines at the level of a namespace with a name."""
    scopes = []  # a namespace's name; None: any other pair of braces
    for found in TOKEN.finditer(COMMENTS_AND_TEXTS.sub("", text)):
        if found[0] == "}":
            del scopes[-1:]
        elif found["namespace"] is not None:
            scopes.append(found["namespace"].strip())
        else:
            if found["type"] and scopes and all(scopes):
                yield "::".join([*scopes, found["type"]])
            scopes.append(None)


def sources():
    for folder in FOLDERS:
        for path, _, names in os.walk(folder):
            yield from (os.path.join(path, name) for name in names if name.endswith((".h", ".cpp")))


def are_linked(one, other):
    """Whether a program may hold both: vramfit-train has nothing of the command line, nor the other way round."""
    return {one.split("/")[0], other.split("/")[0]} not in ({"cli", "executor"}, {"planner", "executor"})


def main():
    assert list(types_of("namespace a { struct B { struct C {}; }; namespace { struct D {}; } class E; }")) == ["a::B"]
    places = collections.defaultdict(set)
    for path in sources():
        with open(path, encoding="utf-8") as file:
            for name in types_of(file.read()):
                places[name].add(path)
    assert len(places) > 300, len(places)
    twice = {name: sorted(paths) for name, paths in places.items() if any(are_linked(*pair) for pair in itertools.combinations(paths, 2))}
    for name, paths in sorted(twice.items()):
        print(f"{name} is defined in {' and '.join(paths)}: rename one")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
