"""The check of the vocabulary finds what it is for, and nothing else."""

from __future__ import annotations

import ast

import vocabulary

PAGE = """
| term | meaning |
|---|---|
| batch | rows |

| not | but | where |
|---|---|---|
| bite | batch | everywhere |
| but for, apart from | except | everywhere |
| `Aside`, look | a noun | names |
"""
RULES = vocabulary.ruled_out(PAGE)


def test_the_table_is_read() -> None:
    assert [(rule.word, rule.names_only) for rule in RULES] == [
        ("bite", False),
        ("but for", False),
        ("apart from", False),
        ("Aside", True),
        ("look", True),
    ]


def test_a_word_is_found_in_text_and_in_names_and_not_inside_another() -> None:
    text = "bite_rows = 1  # a look aside\n# all but\n#     for one\nbitemporal = 'Bite'\n"
    assert list(vocabulary.in_text(text, RULES)) == [
        (1, "'bite' is ruled out: batch"),
        (4, "'bite' is ruled out: batch"),
        (2, "'but for' is ruled out: except"),
    ]


def test_a_name_is_found_where_it_is_the_whole_name() -> None:
    tree = ast.parse("class Aside:\n    def _look(self): ...\n    def look_up(self): ...\n")
    assert [line for line, _ in vocabulary.in_names(tree, RULES)] == [1, 2]


def test_long_prose_is_found_and_long_code_and_tables_are_none() -> None:
    long = "word " * 30
    page = f"{long}\n| {long} |\n```\n{long}\n```\n    {long}\n- {long}\n- [{'x' * 120}](y)\n"
    assert [line for line, _ in vocabulary.long_prose(page)] == [1, 7]
