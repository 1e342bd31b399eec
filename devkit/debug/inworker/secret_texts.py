"""Secrets in a text: those that are known by their look, and those whose name stands beside them. Pure.

The looks are the formats that the makers of keys document, as scanners for secrets list them. Every pattern takes a
time that grows with the length of the text: what is shown may be megabytes that somebody else wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from .secret_names import LONGEST_NAME, is_secret

REDACTED = "<redacted>"

Span = tuple[int, int]

# ---- by their look

# How a key begins, and what follows then. Looked for one by one: a text that has none of them costs next to nothing.
_WORD, _DASHED = r"[A-Za-z0-9]{16,}\w*", r"[\w-]{16,}"
_LOOKS: dict[str, str] = {
    **dict.fromkeys(("hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "npm_", "gsk_"), _WORD),
    **dict.fromkeys(("sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_", "r8_", "dop_v1_", "wandb_v1_"), _WORD),
    **dict.fromkeys(
        ("glpat-", "gldt-", "glrt-", "glft-", "glsoat-", "glcbt-", "glptt-", "gloas-", "glagent-"), _DASHED
    ),
    **dict.fromkeys(("AIza", "ya29.", "GOCSPX-", "dckr_pat_", "glsa_", "tskey-", "hvs.", "hvb.", "pypi-AgE"), _DASHED),
    **dict.fromkeys(("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-"), r"[\w-]{10,}"),
    **dict.fromkeys(("nvapi-", "pplx-", "xai-", "ATATT3", "eyJhcGlf", "ops_eyJ"), r"[\w-]{40,}=*"),
    **dict.fromkeys(("AKIA", "ASIA", "ABIA", "ACCA"), r"[0-9A-Z]{16}(?![0-9A-Z])"),
    **dict.fromkeys(("shpat_", "shpca_", "shppa_", "shpss_", "lin_api_", "sq0atp-", "sq0csp-"), _DASHED),
    **dict.fromkeys(("dapi", "SK", "key-"), r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    "SG.": r"[\w-]{16,}\.[\w-]{16,}",
    "sk-": r"(?:\w{2,12}-){0,3}(?=\w*\d)\w{16,}[\w-]*",
    "eyJ": r"[\w-]{10,}\.[\w-]{10,}\.?[\w-]*",
    "AGE-SECRET-KEY-1": r"\w{16,}",
    "LS0tLS1CRUdJTi": r"[\w+/]*=*",  # the first line of a private key, in base64
    "hooks.slack.com/services/": r"[\w/]{16,}",
    "discord.com/api/webhooks/": r"[\w/-]{16,}",
    "discordapp.com/api/webhooks/": r"[\w/-]{16,}",
}
_ENTRA = re.compile(r"(?<![\w~.-])[\w~.]{3}\dQ~[\w~.-]{31,34}")
_TELEGRAM = re.compile(r"(?<![0-9])\d{5,16}:A[\w-]{34}(?![\w-])")
_URL = re.compile(r"""(?<=://)(?:[^\s/:@"'<>]{0,100}:(?!\d+[/?#])[^\s"'<>]{1,500}@|[^\s/:@"'<>]{8,500}@)""")
_SIGNED = re.compile(r"(?i)(?<=[?&;])((?:x-amz-|x-goog-)?(?:sig|signature|security-token)=)[\w%+/=-]{10,}")
_BEARER = re.compile(r"(?i)\b(bearer\s{1,4})(?:(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{24,})")
_BASIC = re.compile(
    r"\b(Basic\s{1,4})(?=\S{0,400}[a-z])(?=\S{0,400}[A-Z])(?:[A-Za-z0-9+/]{4}){2,}(?:[A-Za-z0-9+/]{2,3}={1,2})?(?![\w+/=])"
)
_BLOCK = 12_000  # characters that a private key may have, with what a log puts before each of its lines
_BEGIN, _END = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----",
    r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----",
)
_PEM = re.compile(rf"{_BEGIN}(?:.{{0,{_BLOCK}}}?{_END}|.{{0,{_BLOCK}}})", re.DOTALL)
_PEM_END = re.compile(_END)
_PEM_LINE = re.compile(r"[A-Za-z0-9+/=]{16,}")

# ---- by the name beside them

_HINTS = ("pass", "pw", "secret", "token", "key", "cred", "auth", "cookie", "jwt", "netrc", "netloc")
_QUOTE = r"""[bBrRfFuU]{0,2}\\*["']"""
_ASSIGNED = re.compile(
    rf"""
    (?<![\w.-]) (?P<dash>--?)? (?P<name>[A-Za-z_][\w.-]*+) (?P<close>\\*+["']\]?)?
    (?: [ \t]{{0,4}} (?::=|=>|==?|:) [ \t]{{0,4}}         # name=value, "name": "value"
      | (?(close) [ \t]{{0,4}},\s{{0,40}} (?={_QUOTE}) | (?!)) # ("name", "value")
      | (?(dash) [ \t]+(?:\\\n[ \t]*)? | [ \t]+(?:is[ ]|was[ ])? (?={_QUOTE})) # --name value, the name 'value'
    )
    """,
    re.VERBOSE,
)
# As Kubernetes has variables: a name, and beside it a value.
_MANIFEST = re.compile(
    r"""(?i)\b(?:name|key)\\*["']?\s{0,4}[:=]\s{0,4}\\*["']?(?P<name>[\w.-]{1,100})\\*["']?"""
    r"""(?:\s|\\+[nr]){0,40},?(?:\s|\\+[nr]){0,40}\\*["']?value\\*["']?\s{0,4}[:=]\s{0,4}"""
)
_TAGGED = re.compile(r"<(?P<name>[A-Za-z_][\w.:-]{1,100})(?:\s[^<>]{0,200})?>(?=[^<\s])")
_SPOKEN = re.compile(
    r"(?i)\b(?:api|access|secret|private|account|auth|bearer)[ ](?:key|token)s?(?:[ ]is)?"
    r"(?:\s{0,2}[:=]\s{0,2}|\s{1,2})(?![/~.])(?=[\w.~+/=-]{0,400}\d)(?=[\w.~+/=-]{16})"
)
_LOGIN = re.compile(
    r"(?:\b(?:sshpass|mysql\w{0,8}|mariadb\w{0,8}|login)\b[^\n]{0,200}?\s-p\s{0,4}"
    r"|\bcurl\b[^\n]{0,500}?\s(?:-u|--user|--proxy-user)[\s=]{0,4}[^\s:\"']{0,100}:"
    r"|\blogin\s{1,4}\S{1,100}\s{1,4}password\s{1,4}"
    r"|\bwandb\s{1,4}login\s{1,4}(?:--\w[\w=:/.-]{0,200}\s{1,4}){0,4}"
    r"|\bredis-cli\b[^\n]{0,200}?\s-a\s{1,4}|\s-pass(?:in|out)?\s{1,4}pass:"
    r"""|(?i:auth)\s{0,4}(?:=\s{0,4})?[(\[]\s{0,4}b?["'][^"'\n]{0,100}["']\s{0,4},\s{0,4})"""
)
_QUOTED = re.compile(
    r"""[bBrRfFuU]{0,2}(?P<quote>\\*+["'])(?!\s?[)\]},;+%]|\Z)(?P<inner>(?:(?!(?P=quote)(?:[\s,;:.?!)\]}&|<>\\]|\Z))(?:\\.|[^\n\\]))*)""",
    re.DOTALL,
)
_BARE = re.compile(r"""(?:(?!\\[nrt])(?:[^\s"']|["'](?=[^\s,;:)\]}&|])))+""")
_BARE_LINE = re.compile(r"""(?:(?!\\[nr])[^\n\r"'])+""")
_KEY_ENDS = re.compile(r"""\\*["']?\s?:""")
_NEXT = re.compile(r"""[,;&|](?=["']?[\w.-]+["']?\s?[:=])""")
_TAIL = ",;:)]}&|."
_EMPTY = re.compile(
    r"(?:none|null|nil|true|false|undefined|str|bytes|int|\*+|<[\w-]+>|\{\w*\}|%s|\.\.\.|\$(?-i:[A-Z_][A-Z0-9_]*|[a-z_]+)|\$\{.*|\$\(.*|)",
    re.IGNORECASE,
)


def hide(text: str, *, code: bool = False) -> str:
    """The text without secrets; in a line of code only literals can be any.

    >>> hide("curl -H 'Authorization: Bearer abcdefgh12345' https://me:pass@host/ --password 'correct horse'")
    "curl -H 'Authorization: <redacted>' https://<redacted>@host/ --password '<redacted>'"
    >>> hide("export WANDB_API_KEY=abc123 STEP=4 eos_token=</s> max_tokens=512")
    'export WANDB_API_KEY=<redacted> STEP=4 eos_token=</s> max_tokens=512'
    >>> hide("password = ask('the password')", code=True), hide("password = 'abc'", code=True)
    ("password = ask('the password')", "password = '<redacted>'")
    """
    if "PRIVATE KEY" in text:
        text = _without_end(_PEM.sub(REDACTED, text))
    for start, rest in _LOOKS.items():
        if start in text:
            text = _look(start, rest).sub(REDACTED, text)
    low = text.lower()
    if "://" in text:
        text = _URL.sub(f"{REDACTED}@", text)
    if "sig" in low or "security-token" in low:
        text = _SIGNED.sub(rf"\1{REDACTED}", text)
    if "Q~" in text:
        text = _ENTRA.sub(REDACTED, text)
    if ":A" in text:
        text = _TELEGRAM.sub(REDACTED, text)
    if any(hint in low for hint in _HINTS):
        text = _replaced(text, _TAGGED, lambda head: _tagged(text, head))
        text = _replaced(text, _SPOKEN, lambda head: _value(text, head.end()))
        text = _replaced(text, _ASSIGNED, lambda head: _assigned(text, head, code))
        text = _replaced(text, _MANIFEST, lambda head: _assigned(text, head, code))
    if " -p" in text or "login" in low or "auth" in low or "curl" in low or "redis-cli" in low:
        text = _replaced(text, _LOGIN, lambda head: _value(text, head.end()))
    if "bearer" in low or "basic" in low:
        text = _BASIC.sub(rf"\1{REDACTED}", _BEARER.sub(rf"\1{REDACTED}", text))
    return text


@lru_cache(maxsize=len(_LOOKS))
def _look(start: str, rest: str) -> re.Pattern[str]:
    """With the text first and what must not be before it behind that: such a pattern is searched for as a text is."""
    plain = re.escape(start)
    return re.compile(f"{plain}(?<![A-Za-z0-9]{plain}){rest}")


def _without_end(text: str) -> str:
    """A key whose beginning is not in the text: what looks like its lines, before its last one."""
    while end := _PEM_END.search(text):
        before = text[max(0, end.start() - _BLOCK) : end.start()]
        lines = [line.start() for line in re.finditer(r"(?:^|\n|\\n)(?=[^\n]*?[A-Za-z0-9+/=]{16})", before)]
        first = lines[0] if lines else len(before)
        text = text[: end.start() - len(before) + first] + REDACTED + text[end.end() :]
    return text


def _replaced(text: str, heads: re.Pattern[str], value_of: Callable[[re.Match[str]], Span | None]) -> str:
    """The text with `<redacted>` for each value that stands behind one of the heads."""
    parts, at = [], 0
    for head in heads.finditer(text):
        value = value_of(head) if head.start() >= at else None
        if value is not None:
            parts += [text[at : value[0]], REDACTED]
            at = value[1]
    return "".join([*parts, text[at:]]) if parts else text


def _assigned(text: str, head: re.Match[str], code: bool) -> Span | None:
    """Where the value of a name is, if it is a secret's."""
    low = head["name"].lower()
    if len(low) > LONGEST_NAME or not any(hint in low for hint in _HINTS):
        return None
    name = head["name"].rpartition(".")[2].replace("-", "_")
    if quoted := _QUOTED.match(text, head.end()):
        value = quoted["inner"]
        is_key = "," in head[0] and _KEY_ENDS.match(text, quoted.end())
        is_meant = is_secret(name, value) and not is_key and not _EMPTY.fullmatch(value)
        return quoted.span("inner") if is_meant else None
    if code or not is_secret(name, "text"):
        return None
    if low.endswith(("authorization", "cookie")):
        line = _BARE_LINE.match(text, head.end())
        return None if line is None or _EMPTY.fullmatch(line[0].strip()) else line.span()
    span = _value(text, head.end())
    return span if span and _is_telling(name, text[span[0] : span[1]]) else None


def _tagged(text: str, head: re.Match[str]) -> Span | None:
    """What stands in an element of XML, up to its end."""
    name = head["name"].rpartition(":")[2].rpartition(".")[2].replace("-", "_")
    end = text.find("<", head.end())
    value = text[head.end() : end].strip()
    is_meant = end > 0 and is_secret(name, "text") and not _EMPTY.fullmatch(value) and _is_telling(name, value)
    return (head.end(), end) if is_meant else None


def _is_telling(name: str, value: str) -> bool:
    """Whether what stands behind a name without quotes can be its secret.

    >>> [_is_telling("token", text) for text in ("17", "expected", "q1w2e3r4")], _is_telling("password", "17")
    ([False, False, True], True)
    """
    if re.fullmatch(rf"[\w.]*{re.escape(name)}", value):  # password=settings.password
        return False
    if not is_secret(name, 0) and value.isdecimal() and len(value) < 8:
        return False
    has_both = any(each.isdigit() for each in value) and any(each.isalpha() for each in value)
    if name.lower() == "token" and not (len(value) >= 20 or (len(value) >= 8 and has_both)):
        return False
    return is_secret(name, value)


def _value(text: str, at: int) -> Span | None:
    """A text in quotes, or one up to a space or what else ends it."""
    if quoted := _QUOTED.match(text, at):
        return quoted.span("inner")
    bare = _BARE.match(text, at)
    if bare is None or bare[0].startswith("--"):
        return None
    value = bare[0]
    if following := _NEXT.search(value):
        value = value[: following.start()]
    value = value.rstrip(_TAIL)
    is_other = text[at - 1 : at].isspace() and re.fullmatch(r"[\d:]+|-\w", value)  # a port, another option
    return None if is_other or _EMPTY.fullmatch(value) else (at, at + len(value))
