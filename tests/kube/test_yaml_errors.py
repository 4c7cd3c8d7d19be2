"""A broken YAML file is described on one line, with the place."""

from __future__ import annotations

import pytest
import yaml
from flyball_kube.yaml_errors import yaml_problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb", "line 2, column 2: expected ',' or ']', but got 'the end of the file'"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("\ta: 1", "line 1, column 1: found character '\\t' that cannot start any token"),
    ],
)
def test_the_place_and_what_is_wrong_there(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError) as raised:
        yaml.safe_load(text)
    assert yaml_problem(raised.value) == words


def test_an_error_without_a_place_is_its_own_words_on_one_line() -> None:
    with pytest.raises(yaml.YAMLError) as raised:
        yaml.safe_load("a: \x00")
    assert "\n" not in yaml_problem(raised.value)
    assert "special characters are not allowed" in yaml_problem(raised.value)
