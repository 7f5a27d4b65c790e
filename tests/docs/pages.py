"""The pages in docs/: who each is for, links that lead somewhere, the glossary, and phrases that only a translation would use.

Every page starts with a paragraph "For ...". Relative links resolve, with their #anchors. A page that uses a word of the glossary
in prose links to it. The phrases below were all found in these pages once; README.md and CONTRIBUTING.md are searched too.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLOSSARY = "docs/glossary.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
# Words of our own, by the anchor of their entry. Entries for words that are also plain English (runtime, event) are not enforced.
OWN_WORDS = {"ghost": re.compile(r"\bghosts?\b"), "band": re.compile(r"\b(a|the) band\b", re.I), "unit": re.compile(r"\b(?<!FP8 )units?\b"),
             "pairwise-cover": re.compile(r"\b(a|the|both|pairwise) covers?\b"), "tape": re.compile(r"\b(a|the) tapes?\b"),
             "segment": re.compile(r"\bsegment by segment\b")}
# Each is a pattern; prose is searched without regard to case.
TRANSLATED = [
    "at hand", "(held|holds) against", "held beside", "mended", "recollected", "cards to play", "speaks of", "not for booking",
    "good for ranking", "PyTorch's neither", "newest sound", "goe?s? on from", "one a (line|rank|row|table)", "once a step",
    "has not(?= ?[.,;:)])", "(was|were) never seen", "first weights", r"faster by \d+ ?%",
]


def anchors(text):
    """As GitHub makes them: lower case, spaces to hyphens, other punctuation dropped."""
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def link_problems(path, text):
    for target in LINK.findall(FENCED.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield f"links to {target}: {file.name} has no such heading"


def prose(text):
    """Without code blocks, inline code and links' targets."""
    text = re.sub(r"^(    |\t).*$", "", FENCED.sub("", text), flags=re.M)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "", text))


def phrase_problems(text):
    words = " ".join(prose(text).split())
    for match in re.finditer(rf"\b({'|'.join(TRANSLATED)})", words, re.I):
        yield f'"{match.group(0)}": say it in plain English'


def glossary_problems(text):
    words = prose(text)
    for anchor, word in OWN_WORDS.items():
        if word.search(words) and f"glossary.md#{anchor}" not in text:
            yield f'"{word.search(words).group(0)}" without a link to {GLOSSARY}#{anchor}'


def problems_of(path):
    text = path.read_text(encoding="utf-8")
    yield from link_problems(path, text)
    if path.name == "roadmap.md":
        return  # a list of work, written for those who do it
    yield from phrase_problems(text)
    if path.parent.name == "docs":
        if not text.split("\n\n")[1].startswith("For "):
            yield 'the first paragraph does not start with "For": say who the page is for and what it answers'
        if path.name not in ("glossary.md", "trials.md"):
            yield from glossary_problems(text)


def main():
    pages = sorted((ROOT / "docs").glob("*.md")) + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    problems = [f"{page.relative_to(ROOT)}: {problem}" for page in pages for problem in problems_of(page)]
    print("\n".join(problems + [f"pages: {len(pages)} pages, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
