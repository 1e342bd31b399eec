"""Environments that an OpenEnv server plays: `agent.env=openenv+ws://HOST:PORT`, a session of its own for each.

    we       {"type": "reset", "data": {"seed": 7}}
    server   {"type": "observation", "data": {"observation": {"echoed_message": "ready"}, "reward": 0.0, "done": false}}
    we       {"type": "step", "data": {"message": "what the model said"}}

`openenv.core.env_server.http_server` of openenv-core 0.3, whose package is not needed here. Actions and observations
are the server's own records; its `/schema` says of which fields they are, and `form_of` which of them is the text.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from trainer.agent.contract import Away
from trainer.agent.others import SERVER, Unknown, addresses
from trainer.retrieval import http as requests

KEYS = ("action", "observation", "fields", "reset", "refused", "timeout")  # of agent.env_kwargs
MEET_S = 10.0  # for a server to say what its records are
CLOSE_S = 2.0
PAUSES_S = (0.05, 1.0)  # between tries at a server whose sessions are all taken: the first, the longest
REFUSED = "openenv/refused"  # how many actions of an episode were none of the server's
_NOT_TEXT = ("done", "reward", "metadata")  # of any observation; `metadata` of any action
_CLIENT_SAID = {"INVALID_JSON", "UNKNOWN_TYPE"}
_FULL, _INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"


class _Said(Exception):
    """An error that the server answers with."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(" ".join(str(body.get("message", body)).split())[:300])
        self.code, self.body = str(body.get("code", "")), body


@dataclass(frozen=True)
class Form:
    """Where the texts are: what a model says goes into the field `action`, what it reads stands in `observation`."""

    action: str
    observation: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)  # of every action, beside the text

    def action_of(self, text: str) -> dict[str, Any]:
        """
        >>> Form("message", ("echo",), {"lang": "en"}).action_of("hi")
        {'lang': 'en', 'message': 'hi'}
        """
        return {**self.fields, self.action: text}

    def text_of(self, observation: Mapping[str, Any]) -> str:
        """Fields behind one another, a line each; what is no text as JSON. Raises KeyError.

        >>> Form("message", ("echo", "left")).text_of({"echo": "hi", "left": [3], "size": 2})
        'hi\\n[3]'
        """
        values = [observation[name] for name in self.observation]
        return "\n".join(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values)


class OpenEnv:
    """One session of the server at `url`, `ws://HOST:PORT`.

    `action` is the field of an action that the text goes into, `fields` are others of each; `observation` is the field
    that is read, or several. What is not given, the server's schema says, where it leaves no choice. `reset` is for
    the server's `reset`, beside the seed; `refused` is the reward of an action that it does not take; `timeout` is for
    each answer, in seconds. A class of one's own may say otherwise what an action is, or what is read of an
    observation: `action_of` and `text_of`.
    """

    def __init__(
        self,
        url: str,
        action: str | None = None,
        observation: str | Sequence[str] | None = None,
        fields: Mapping[str, Any] | None = None,
        reset: Mapping[str, Any] | None = None,
        refused: float = 0.0,
        timeout: float | None = 60.0,
        form: Form | None = None,
    ) -> None:
        """`form`: of all four, where it is known already. Raises ValueError for what is no URL."""
        self._socket_url, self._schema_url = addresses(url)
        self._url, self._given, self._form = url.removeprefix(SERVER), (action, observation, fields), form
        self._reset_with, self._penalty, self._timeout = dict(reset or {}), refused, timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._full = ""  # what a server said whose sessions are all taken
        self._refused = 0
        self._seen = ""

    def action_of(self, text: str) -> dict[str, Any]:
        """The server's action for what the model said."""
        return self._known.action_of(text)

    def text_of(self, observation: Mapping[str, Any]) -> str:
        """What the model reads of the server's observation. Raises KeyError for a field that it has not."""
        return self._known.text_of(observation)

    def reset(self, *, seed: int, options: Any = None) -> tuple[str, dict[str, Any]]:
        """The server's `reset`, which need not heed the seed. Raises Away."""
        self._refused, self._full = 0, ""
        body = self._within("reset", self._begun({**self._reset_with, "seed": seed}))
        if body.get("done"):
            raise Away("wrong", f"{self._url} answered reset with an episode that is done")
        self._seen = self._text("reset", body)
        return self._seen, {}

    def step(self, action: str) -> tuple[str, Any, Any, bool, dict[str, Any]]:
        """The server's `step`; one that its action's schema refuses is answered with why. Raises Away."""
        try:
            body = self._within("step", self._exchanged("step", self.action_of(action)))
        except _Said as error:
            if error.code != _INVALID:
                raise self._away("step", error) from error
            self._refused += 1
            return f"Invalid action: {_why(error.body)}", self._penalty, False, False, self._info()
        reward = body.get("reward")
        text = self._text("step", body)
        return text, 0.0 if reward is None else reward, body.get("done", False), False, self._info()

    def close(self) -> None:
        """Ends the session, if there is one."""
        if self._loop is None:
            return
        with suppress(Exception):  # the session ends with its connection, too
            self._loop.run_until_complete(asyncio.wait_for(self._left(), CLOSE_S))
        self._loop.close()

    def _info(self) -> dict[str, Any]:
        return {"metrics": {REFUSED: self._refused}}

    @property
    def _known(self) -> Form:
        if self._form is None:
            try:
                self._form = form_of(schema_at(self._schema_url, self._url), *self._given, self._url)
            except Unknown as error:
                raise Away("server", f"{error}; {error.hint}") from error
        return self._form

    def _text(self, what: str, body: Mapping[str, Any]) -> str:
        observation = body["observation"]
        try:
            return self.text_of(observation)
        except KeyError as error:
            known = ", ".join(observation) or "none"
            said = f"{self._url} answered {what} with an observation without {error.args[0]}: it has {known}"
            raise Away("wrong", said) from error

    # -- over the wire

    def _within(self, what: str, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Raises Away, and _Said where the server answers a step with an error."""
        self._loop = self._loop or asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, self._timeout))
        except TimeoutError:
            why = f"has not answered {what}" if not self._full else f"has no session to give: {self._full}"
            within = f"in {self._timeout:g} s, what agent.turn_timeout leaves" if self._timeout else "in time"
            raise Away("server", f"{self._url} {why} {within}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Away("server", f"{self._url}, at {what}: {type(error).__name__}: {error}") from error

    async def _begun(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """An answer to reset, once the server has a session for it."""
        pause_s, longest_s = PAUSES_S
        while True:
            if self._socket is None:
                self._session = self._session or aiohttp.ClientSession()
                self._socket = await self._session.ws_connect(self._socket_url, max_msg_size=requests.MOST_BYTES)
            try:
                return await self._exchanged("reset", data)
            except _Said as error:
                if error.code != _FULL:
                    raise self._away("reset", error) from error
                self._full = str(error)
            await self._socket.close()
            self._socket = None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _exchanged(self, what: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """What the server answers. Raises Away, _Said."""
        assert self._socket is not None, "reset comes first"
        with suppress(ConnectionError):  # it has hung up, and may have said why
            await self._socket.send_json({"type": what, "data": data})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            code = f" with code {self._socket.close_code}" if self._socket.close_code else ""
            raise Away("server", f"{self._url} closed its connection{code} before it answered {what}")
        try:
            answer = json.loads(message.data)
        except (ValueError, RecursionError):  # the latter of brackets without end
            answer = None
        kind, body = (answer.get("type"), answer.get("data")) if isinstance(answer, dict) else (None, None)
        if kind == "error" and isinstance(body, dict):
            raise _Said(body)
        if kind != "observation" or not isinstance(body, dict) or not isinstance(body.get("observation"), dict):
            raise Away("server", f"{self._url} answered {what} as no OpenEnv server does: {message.data[:80]!r}")
        return body

    async def _left(self) -> None:
        if self._socket is not None:
            with suppress(ConnectionError):
                await self._socket.send_json({"type": "close"})
                await self._socket.receive()  # its hanging up: then the session's place is free
            await self._socket.close()
        if self._session is not None:
            await self._session.close()

    def _away(self, what: str, error: _Said) -> Away:
        if error.code == _INVALID:
            return Away("wrong", f"{self._url} does not take what {what} is given: {_why(error.body)}")
        if error.code in _CLIENT_SAID:
            return Away("server", f"{self._url} does not know {what}: {error}")
        return Away("raised", f"{self._url}: its environment raised at {what}: {error}")


def maker(env: str, given: Mapping[str, Any]) -> Any:
    """What makes sessions of the server `env`, which is asked once for its schema. Raises Unknown."""
    if unknown := [key for key in given if key not in KEYS]:
        raise Unknown(f"agent.env_kwargs has {unknown[0]}, and agent.env={env} takes {', '.join(KEYS)}", "leave it out")
    try:
        _, schema_url = addresses(env)
    except ValueError as error:
        raise Unknown(f"agent.env={env} is {error}", f"such as agent.env={SERVER}ws://127.0.0.1:8000") from error
    url = env.removeprefix(SERVER)
    action, observation, fields = (given.get(key) for key in KEYS[:3])
    form = form_of(schema_at(schema_url, url), action, observation, fields, url)
    return functools.partial(OpenEnv, url, form=form)


def schema_at(address: str, url: str, timeout_s: float = MEET_S) -> Mapping[str, Any]:
    """JSON schemas of the server's `action` and `observation`; empty of a server that has none. Raises Unknown."""
    hint = f"start it, or see its log; each node asks {address}"
    try:
        answer = requests.ask(address, None, timeout_s)
    except TimeoutError as error:
        raise Unknown(f"the OpenEnv server at {url} has not answered in {timeout_s:g} s", hint) from error
    except (OSError, http.client.HTTPException, requests.TooLong) as error:
        raise Unknown(f"there is no OpenEnv server at {url}: {type(error).__name__}: {error}", hint) from error
    if answer.status == http.client.NOT_FOUND:
        return {}
    try:
        found = json.loads(answer.body) if answer.status == http.client.OK else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in ("action", "observation")):
        said = f"{answer.status} {answer.reason}, {answer.body[:60]!r}"
        raise Unknown(f"{url} is no OpenEnv server: {address} gave {said}", hint)
    return found


def form_of(
    schema: Mapping[str, Any],
    action: str | None,
    observation: str | Sequence[str] | None,
    fields: Mapping[str, Any] | None,
    url: str,
) -> Form:
    """Where texts go, as it is `given`, or else as a schema says that has one text alone. Raises Unknown.

    >>> texts = {"properties": {"message": {"type": "string"}, "metadata": {"type": "object"}}}
    >>> form_of({"action": texts, "observation": texts}, None, None, None, "ws://host")
    Form(action='message', observation=('message',), fields={})
    """
    fixed = dict(fields or {})
    into = action or _only("action", schema, url, besides=fixed)
    read = (observation,) if isinstance(observation, str) else tuple(observation or ())
    read = read or (_only("observation", schema, url),)
    for key, names in (("action", (into, *fixed)), ("observation", read)):
        known = _properties(schema, key)
        if missing := [name for name in names if known and name not in known]:
            raise Unknown(f"the {key} of {url} has no field {missing[0]}", f"it has {', '.join(known)}")
    wanted = _list(schema.get("action", {}).get("required"))
    needed = {name for name in wanted if isinstance(name, str)} - {into, *fixed}
    if needed:
        hint = f"give agent.env_kwargs={{fields:{{{min(needed)}:VALUE}}}}"
        raise Unknown(f"the action of {url} needs {', '.join(sorted(needed))} beside {into}", hint)
    return Form(into, read, fixed)


def _only(key: str, schema: Mapping[str, Any], url: str, besides: Mapping[str, Any] | None = None) -> str:
    known = _properties(schema, key)
    texts = [name for name, each in known.items() if _is_text(each) and name not in (besides or {})]
    if len(texts) == 1:
        return texts[0]
    what = "the text goes into" if key == "action" else "is read"
    among = f"of {', '.join(known)}" if known else "and its server has no schema"
    raise Unknown(
        f"the {key} of {url} does not say which field {what}, {among}", f"give agent.env_kwargs={{{key}:FIELD}}"
    )


def _properties(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    known = schema.get(key, {}).get("properties")
    return {name: each for name, each in known.items() if name not in _NOT_TEXT} if isinstance(known, dict) else {}


def _is_text(known: Any) -> bool:
    """Also one that may be null."""
    if not isinstance(known, dict):
        return False
    kinds = [known, *(each for each in _list(known.get("anyOf")) if isinstance(each, dict))]
    return any(each.get("type") == "string" for each in kinds)


def _list(said: Any) -> list[Any]:
    """A server says what it likes."""
    return said if isinstance(said, list) else []


def _why(body: Mapping[str, Any]) -> str:
    """What pydantic says of each field.

    >>> _why({"errors": [{"loc": ["message"], "msg": "too long"}]})
    'message: too long'
    """
    found = []
    for each in _list(body.get("errors")):
        if isinstance(each, dict):
            found.append(f"{'.'.join(map(str, _list(each.get('loc'))))}: {each.get('msg', '')}")
    return "; ".join(found)[:300] or str(body.get("message", ""))[:300]
