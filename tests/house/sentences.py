"""Decides whether a docstring's first sentence can be understood without the code around it.

The test for a verb is a heuristic that errs towards accepting: a sentence passes when it has an
auxiliary, a word that introduces a clause, or a word in the place and form of a verb.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

WORDS_MIN: Final = 3


def _read_words() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = defaultdict(frozenset)
    text = Path(__file__).with_name("sentence_words.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        name, _, words = line.partition(": ")
        found[name] |= frozenset(words.split())
    return dict(found)


def _third_person(verb: str) -> str:
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeou":
        return verb[:-1] + "ies"
    return verb + "s"


_WORDS: Final = _read_words()
REFUSED: Final = _WORDS["pronouns"] | _WORDS["prepositions"] | _WORDS["conjunctions"]
QUESTIONS: Final = _WORDS["questions"]
"""They open an indirect question (`whether it runs`), which is no sentence."""
CLAUSE_FIRST: Final = frozenset({"when", "where", "wherever", "whenever"})
"""They may also open a clause before a main clause, with a comma between."""
AUXILIARIES: Final = _WORDS["auxiliaries"]
CLAUSE_WORDS: Final = _WORDS["clause-words"]
"""A clause follows them, and with it a verb."""
VERBS: Final = _WORDS["verbs"]
THIRD_PERSON: Final = frozenset(map(_third_person, VERBS))
OBJECTS: Final = _WORDS["determiners"] | {"it", "them", "him", "nothing", "everything"}
"""A word before one of them is a verb, unless it is one of `NOT_VERBS`."""
NOT_VERBS: Final = _WORDS["not-verbs"] | _WORDS["determiners"] | _WORDS["prepositions"]
BEFORE_NOUNS: Final = (_WORDS["determiners"] | _WORDS["prepositions"] | {"'s", "'"}) - {"to"}
SUBJECTS_OR_ADVERBS: Final = _WORDS["subjects-or-adverbs"]
"""Words of `BEFORE_NOUNS` that may be the subject itself, or an adverb: `one starts`."""

_SENTENCE: Final = re.compile(r"(?<![.\s]\w)[.!?](?=\s|$)")
_TOKEN: Final = re.compile(
    r"``[^`]*``|`[^`]*`|[A-Za-z]+(?:-[A-Za-z]+)*(?:n't)?|'s?\b|'|[0-9][\w.,%]*|[^\s\w]"
)
_CODE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring's first paragraph, on one line."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    end = _SENTENCE.search(paragraph)
    return paragraph[: end.end()] if end else paragraph


def _has_verb(tokens: list[str]) -> bool:
    padded = [":", *tokens, "."]
    plural = tokens[0].endswith("s") and tokens[0] not in THIRD_PERSON
    return any(
        _is_verb(before, word, after, plural=plural)
        for before, word, after in zip(padded, tokens, padded[2:], strict=False)
    )


def _is_verb(before: str, word: str, after: str, *, plural: bool) -> bool:
    if not word[0].isalpha():
        return False
    if word in AUXILIARIES or (word in CLAUSE_WORDS and after[0].isalnum()):
        return True
    if word in NOT_VERBS:
        return False
    if before in BEFORE_NOUNS and not (before in SUBJECTS_OR_ADVERBS and word in THIRD_PERSON):
        return False
    if after in OBJECTS or word in _WORDS["irregular"]:
        return True
    if word.endswith("ed") and word not in _WORDS["not-participles"]:
        return True
    starts = not (before[0].isalnum() or before[0] == "`")
    if word in THIRD_PERSON:
        return after != "of" and not (starts and after in {",", "."})
    if word in VERBS:
        return after != "of" and (
            starts
            or plural
            or before[-1] == "s"
            or before in CLAUSE_WORDS
            or before in {"and", "or", "to"}
        )
    return starts and before != "," and after[0] == "`"


def offences(docstring: str) -> Iterator[str]:
    """Yield why a docstring's first sentence is refused, with what to write instead."""
    sentence = first_sentence(docstring)
    tokens = [each if each[0] == "`" else each.lower() for each in _TOKEN.findall(sentence)]
    opening = next((each for each in tokens if each[0].isalnum() or each[0] == "`"), "")
    if len(sentence.split()) < WORDS_MIN:
        yield f"has fewer than {WORDS_MIN} words: name what is done, and to what"
    elif opening in REFUSED or (
        opening in QUESTIONS and not (opening in CLAUSE_FIRST and "," in tokens)
    ):
        yield f"opens with `{opening}`: begin with the subject or a verb (Return …; The node …)"
    elif not _has_verb(tokens):
        yield "has no verb: write a sentence (Return the …; The record holds …)"


def unknown_citations(
    docstring: str, names: Collection[str], foreign: Collection[str]
) -> Iterator[str]:
    """Yield what a docstring cites in backticks that is no name, key or command of the project.

    Members of `foreign` packages, commands with arguments and YAML are not looked up.
    """
    for cited in _CODE.findall(docstring):
        if _NAME.fullmatch(cited) and cited.partition(".")[0] not in foreign:
            parts = cited.removesuffix("()").split(".")
            if any(each not in names for each in parts):
                yield f"cites `{cited}`, which does not exist: cite a name that does, or none"
