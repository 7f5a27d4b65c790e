"""The table of a library: what its generated functions do.

    status    TYPE SUCCESS NOT_SUPPORTED    the library's status type, and two of its values
    pointer   TYPE                          an integer type that holds a device address
    verdict   NAME...                       parameters in which compute calls report success: 0 is written, once per problem of the
                                            call (parameter batchSize)
    alias     PATTERN REPLACEMENT           the same function under another name (a regular expression and what it becomes)
    ACTION    PATTERN [TEXT]                what functions with matching names do; the first match counts

    computes     the device memory that its pointers to non-const point to, or handles among them remember, is marked as
                 written; a number that it would return to the host is 0 and counted as an uncertain read; success
    accepts      success
    creates      the first argument gets a handle of its own, which remembers the others by their names; success
    destroys     the first argument's handle is gone; success
    describes    the first argument's handle remembers the others by their names; success
    recalls      what the first argument's handle remembers by the names of the others; 0 if nothing; success
    stores       what a ...Set... function is given for its first argument, the ...Get... function of that name answers; 0 before
    workspace    every number asked for is 0, and the record says that the real one is unknown and has no bound; success
    text         returns TEXT
    unsupported  the library's NOT_SUPPORTED, and the record counts it; so does what matches nothing
"""
import fnmatch
import re
import shlex

ACTIONS = ("computes", "accepts", "creates", "destroys", "describes", "recalls", "stores", "workspace", "text", "unsupported")


def split_words(line):
    """As a shell does, but a backslash is a backslash: regular expressions have them."""
    words = shlex.shlex(line, posix=True, punctuation_chars=False)
    words.whitespace_split, words.escape = True, ""
    return words


class Table:
    def __init__(self, path):
        self.statuses, self.pointers, self.verdicts, self.aliases, self.rows = {}, set(), set(), [], []
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                words = list(split_words(line))
                if words and not self.read(words):
                    raise SystemExit(f"{path}:{number}: cannot be read: {line.strip()}")

    def read(self, words):
        kind, *rest = words
        if kind == "status" and len(rest) == 3:
            self.statuses[rest[0]] = (rest[1], rest[2])
        elif kind == "pointer" and len(rest) == 1:
            self.pointers.add(rest[0])
        elif kind == "verdict" and rest:
            self.verdicts.update(rest)
        elif kind == "alias" and len(rest) == 2:
            self.aliases.append((re.compile(rest[0]), rest[1]))
        elif kind in ACTIONS and len(rest) == (2 if kind == "text" else 1):
            self.rows.append((kind, *rest))
        else:
            return False
        return True

    def action(self, name):
        """(action, text or None) of a function."""
        for kind, pattern, *text in self.rows:
            if fnmatch.fnmatchcase(name, pattern):
                return kind, (text[0] if text else None)
        return "unsupported", None

    def alias(self, name, known):
        """The function in `known` that `name` stands for, or None."""
        for pattern, replacement in self.aliases:
            if pattern.fullmatch(name):
                target = pattern.sub(replacement, name)
                if target in known and target != name:
                    return target
        return None
