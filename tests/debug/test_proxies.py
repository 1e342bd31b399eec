"""A proxy of the environment that is in the way to a host nearby."""

from __future__ import annotations

import ast
import sys
import urllib.request
from typing import Any

import pytest

from devkit.debug.inworker import proxies

PROXY = "http://name:pass-word-1@127.0.0.1:3128"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", PROXY)


def said(call: str, url: str = "http://127.0.0.1:8000") -> dict[str, str]:
    session: Any = urllib.request.OpenerDirector()
    plain: Any = object()
    found = proxies.said([ast.parse(call, mode="eval").body], sys._getframe())
    return found if url and session and plain else {}


@pytest.mark.parametrize(
    "call",
    [
        "urlopen(url)",
        "urllib.request.urlopen(f'{url}/health', timeout=2)",
        "session.open(url + '/health').status == 200",
        "session.open(url=url)",
    ],
)
def test_what_asks_through_the_proxy(call: str) -> None:
    [(name, text)] = said(call).items()
    assert name == "http_proxy" and text.endswith("in its environment, and no_proxy lacks 127.0.0.1")
    assert "127.0.0.1:3128" in text and "pass-word-1" not in text


def test_a_host_that_is_spared_and_what_does_not_ask_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("plain.get(url)") == {} == said("url.strip(url)")
    assert said("urlopen(url)", "https://127.0.0.1:1") == {} == said("urlopen(url)", "http://hub.example")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert said("urlopen(url)") == {}
