"""Which C++ sources can be compiled as one: those of which none uses a name that another declares for itself.

together.py MOST SOURCE... prints a line for each group of at most MOST sources, separated by bars. A source's own names are those that it declares in
unnamed namespaces, its static functions, and the aliases at its top. The sources with most rivals are placed first, so that few groups are needed.
"""

import re
import sys

NOT_CODE = re.compile(
    r'R"(?P<mark>\w*)\((?:.|\n)*?\)(?P=mark)"'  # raw strings
    r"|//[^\n]*|/\*(?:.|\n)*?\*/"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'"  # not between digits
    r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*",
    re.MULTILINE,
)
TYPE = re.compile(r"(?:struct|class|enum(?: class| struct)?|union) (?:\[\[\w+\]\] )?(\w+)")
ALIAS = re.compile(r"(?:using|namespace) (\w+) ?=")
FUNCTION = re.compile(r"(?P<type>[\w:<>,&*\s\[\].~()]+?)[ &*]+(?P<name>[\w:]+) ?\(")
NAME = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*")  # not of a member, and without the namespace or class that is named before it
VARIABLE = re.compile(r".*?(\w+) ?(?:\[[^\]]*\] ?)*(?:=|$)")


def name_of(declaration, is_unnamed):
    """The name that a declaration makes for its source alone; none if others may see it."""
    text = re.sub(r"^template ?<[^;{]*?> ?(?=\w)", "", " ".join(declaration.split()))
    if alias := ALIAS.match(text):
        return alias[1]
    if not is_unnamed and not text.startswith("static "):
        return None
    if made := TYPE.match(text) or FUNCTION.match(text):
        name = made.groupdict().get("name") or made[1]
        return None if "::" in name or name.startswith("operator") else name
    made = VARIABLE.match(text)
    return made[1] if made else None


def code_of(path):
    with open(path, encoding="utf-8") as file:
        return NOT_CODE.sub(lambda match: '""' if match[0][0] in "R\"" else " ", file.read())


def own_names(text):
    names, scopes, declaration = set(), [], ""
    for each in re.split(r"([{};])", text):
        if each not in ("{", "}", ";"):
            declaration += each
            continue
        head = declaration.strip()
        is_scope = each == "{" and re.search(r"\bnamespace( [\w:]+)?$", " ".join(head.split()))
        if each != "}" and not is_scope and "{" not in scopes:
            names.add(name_of(head, "unnamed" in scopes))
        if each == "{":
            scopes.append(("named" if is_scope[1] else "unnamed") if is_scope else "{")
        elif each == "}" and scopes:
            scopes.pop()
        declaration = ""
    return names - {None}


def groups_of(sources, most):
    code = {source: code_of(source) for source in sources}
    own = {source: own_names(code[source]) for source in sources}
    used = {source: set(NAME.findall(code[source])) for source in sources}  # its own ones, too

    def are_rivals(a, b):
        return not own[a].isdisjoint(used[b]) or not own[b].isdisjoint(used[a])

    rivals = {a: sum(are_rivals(a, b) for b in sources) for a in sources}
    groups = []
    for source in sorted(sources, key=lambda source: -rivals[source]):
        for group in groups:
            if len(group) < most and not any(are_rivals(source, other) for other in group):
                group.append(source)
                break
        else:
            groups.append([source])
    return [sorted(group, key=sources.index) for group in groups]


if __name__ == "__main__":
    for group in groups_of(sys.argv[2:], int(sys.argv[1])):
        print("|".join(group))
