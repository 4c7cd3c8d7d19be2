"""A wrong value of an option is refused with the value and what would be right, never in a library's words."""

from __future__ import annotations

import pytest

from tests.support.command_line import flyball


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("page run --port 99999999", "'--port': 99999999 is too large; wanted at most 65535"),
        ("page run --port x", "'--port': x is no whole number; wanted one such as 3"),
        ("demo --nodes 0", "'--nodes': 0 is too small; wanted at least 1"),
        ("top --refresh-seconds soon", "'--refresh-seconds': soon is no number; wanted one such as 2.5"),
        ("top --refresh-seconds nan", "'--refresh-seconds': nan is "),
        ("logs train --rank one", "'--rank': one is no whole number"),
        ("top -o xml", "'--output' / '-o': 'xml' is not one of 'table', 'json'."),
        ("report --by colour", "'--by': 'colour' is not one of 'job', 'namespace', 'cap', 'day', 'month'."),
        ("frontier --profile /nowhere.csv", "'--profile': file '/nowhere.csv' does not exist."),
        ("agent run", "Missing option '--node-name' (NODE_NAME)."),
    ],
)
def test_what_is_wrong_with_a_value_is_said_with_it_and_with_what_would_be_right(arguments: str, words: str) -> None:
    ended = flyball(*arguments.split(), env={"NODE_NAME": ""})
    assert ended.exit_code == 2
    assert words in ended.output
    assert [word for word in ("Input should", "Value error", "unable to parse", "['") if word in ended.output] == []
