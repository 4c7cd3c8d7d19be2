"""Where meters may be read is the operator's word alone, and a file that is wrong says what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_operator.meters.endpoints import MAX_FILE_BYTES, Endpoint, read_endpoints
from flyball_operator.settings import Settings


def written(folder: Path, text: str) -> Path:
    path = folder / "endpoints.yaml"
    path.write_text(text)
    return path


def test_endpoints_are_read_by_name(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "endpoints:\n"
        "  - {name: main, url: 'https://prometheus.monitoring:9090/prom', caFile: /ca, tokenFile: /token}\n"
        "  - {name: hall, url: 'http://10.0.0.1', timeoutSeconds: 0.5}\n",
    )
    assert read_endpoints(path) == {
        "main": Endpoint("main", "https://prometheus.monitoring:9090/prom", "/ca", "/token"),
        "hall": Endpoint("hall", "http://10.0.0.1", timeout_seconds=0.5),
    }
    assert Settings(meter_endpoints_file=path).meter_endpoints.keys() == {"main", "hall"}
    assert Settings().meter_endpoints == {}


WRONG = [
    ("endpoints: [{name: main}]", "url"),
    ("endpoints: [{name: main, url: 'file:///etc/passwd'}]", "no http"),
    ("endpoints: [{name: main, url: 'http://a/?x=1'}]", "no http"),
    ("endpoints: [{name: main, url: 'http://user:secret@a/'}]", "tokenFile"),
    ("endpoints: [{name: main, url: 'http://a', tokenFile: /t}]", "https only"),
    ("endpoints: [{name: Main, url: 'http://a'}]", "lower-case"),
    ("endpoints: [{name: main, url: 'http://a', insecure: true}]", "insecure"),
    ("endpoints: [{name: main, url: 'http://a', timeoutSeconds: 0}]", "timeoutSeconds"),
    ("endpoints: [{name: a, url: 'http://a'}, {name: a, url: 'http://b'}]", "two endpoints"),
    ("endpoints: {", "endpoints.yaml"),
    ("", "object"),
    ("#" * (MAX_FILE_BYTES + 1), "longer than"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"endpoints\.yaml") as refused:
        Settings(meter_endpoints_file=written(tmp_path, text))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"meter endpoints .*none\.yaml: No such file"):
        Settings(meter_endpoints_file=tmp_path / "none.yaml")
