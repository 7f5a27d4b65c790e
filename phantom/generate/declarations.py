"""Function declarations of C headers: preprocessed by the compiler, then read declaration by declaration."""
import dataclasses
import re
import subprocess

# Words that end a parameter's type, so that a single identifier after them is a type, not a name.
TYPE_WORDS = {"void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "bool", "const", "volatile",
              "struct", "enum", "union", "size_t"}


@dataclasses.dataclass
class Parameter:
    text: str  # as declared, with its name
    name: str
    type: str  # as declared, without the name


@dataclasses.dataclass
class Function:
    name: str
    result: str
    parameters: list


def preprocess(compiler, header, defines, includes):
    """The text of `header` as a C program sees it: no default arguments, no overloads, no extern "C"."""
    command = [compiler, "-x", "c", "-E", "-P", *(f"-I{path}" for path in includes), *(f"-D{name}" for name in defines), "-"]
    source = "".join(f'#include "{name}"\n' for name in header.split(","))
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{header}: the compiler cannot read it:\n{done.stderr}")
    return done.stdout


def without_attributes(text):
    """Drops __attribute__((...)), __asm__(...), and words that say nothing of the type."""
    kept, at = [], 0
    for match in re.finditer(r"\b(?:__attribute__|__attribute|__asm__|__declspec)\s*\(", text):
        if match.start() < at:
            continue
        kept.append(text[at:match.start()])
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
    kept.append(text[at:])
    text = re.sub(r"\b(?:__extension__|extern|__inline__|__inline|__restrict|__restrict__|restrict)\b", " ", "".join(kept))
    return re.sub(r"\b_Bool\b", "bool", text)


def top_level(text):
    """The declarations that end in a semicolon outside any braces, braces' contents dropped."""
    depth, piece = 0, []
    for part in re.split(r"([{};])", text):
        if part == "{":
            depth += 1
        elif part == "}":
            depth -= 1
            if depth == 0:
                piece.append("{}")
        elif depth == 0 and part == ";":
            yield " ".join("".join(piece).split())
            piece = []
        elif depth == 0:
            piece.append(part)


def split_commas(text):
    pieces, depth, piece = [], 0, ""
    for letter in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            pieces.append(piece.strip())
            piece = ""
        else:
            piece += letter
    return [*pieces, piece.strip()]


def read_parameter(text, index):
    """`const float *alpha`, `int`, `T *const a[]`, `void (*callback)(void *)`."""
    pointer_to_function = re.match(r"(.*\(\s*\*\s*)(\w*)(\s*\)\s*\(.*\))$", text)
    if pointer_to_function:
        before, name, after = pointer_to_function.groups()
        name = name or f"unnamed{index}"
        return Parameter(before + name + after, name, before + after)
    array = re.search(r"((?:\s*\[[^\]]*\])+)$", text)
    stem, suffix = (text[:array.start()], array.group(1)) if array else (text, "")
    words = re.findall(r"\w+|\*", stem)
    last = words[-1]
    before = [word for word in words[:-1] if word not in ("const", "volatile", "struct", "enum", "union")]
    if last != "*" and last not in TYPE_WORDS and before:
        return Parameter(text, last, stem[:stem.rindex(last)].strip() + suffix)
    name = f"unnamed{index}"
    return Parameter(f"{stem} {name}{suffix}", name, text)


def read_function(text, wanted):
    """A Function, or None for anything else; `wanted` is a compiled pattern for the name."""
    match = re.match(r"([\w\s*]+?)\b(\w+)\s*\((.*)\)$", text)
    if not match or "{}" in text or text.startswith("typedef"):
        return None
    result, name, parameters = match.groups()
    if not wanted.fullmatch(name) or not result.strip() or re.search(r"\b(static|inline)\b", result):
        return None
    if parameters.strip() in ("", "void"):
        return Function(name, result.strip(), [])
    return Function(name, result.strip(),
                    [read_parameter(piece, index) for index, piece in enumerate(split_commas(parameters))])


def functions_of(text, wanted):
    """The functions declared in preprocessed text, in order, each once."""
    found = {}
    for piece in top_level(without_attributes(text)):
        function = read_function(piece.rsplit("{}", 1)[-1].strip(), wanted)
        if function:
            found.setdefault(function.name, function)
    return list(found.values())
