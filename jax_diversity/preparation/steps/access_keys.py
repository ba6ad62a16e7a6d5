"""Find keys, tokens and passwords in code and configurations, by the services' formats and by the names of values."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise

from jax_diversity.preparation.steps.base import Span
from jax_diversity.preparation.steps.replacing import Find, by_pattern, holding

# Service -> words (each key contains one of these words), and the pattern of the service's keys.
_FORMS = {
    "private_key": (
        "PRIVATE",
        # Up to the last line. Without a last line, up to the last run of base 64 characters.
        r"-----BEGIN (?:[A-Z0-9]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?>(?:(?!-----)[\s\S]){16,20000})-----END [A-Z0-9 ]{0,30}-----"
        r"|(?>(?:\s{0,3}[A-Z][A-Za-z-]{2,20}: [^\n]{1,100}){0,5})(?>(?:[\s\\\"'>#*|,]{1,12}+[A-Za-z0-9+/=]{16,}+)+)"
        r"(?:[\s\\\"'>#*|,]{1,12}+[A-Za-z0-9+/]{1,15}(?:=|\Z)=?)?)",
    ),
    "authorization": (
        "uthorization UTHORIZATION",
        r"(?i:\bauthorization[\"']?\]?\s{0,3}[:=,]\s{0,3}[fbru]?[\"'`]?(?:bearer|basic|token)\s{1,3})"
        r"(?P<value>(?=[A-Za-z_.~+/-]{0,4000}[\d=])[\w.~+/-]{8,4000}={0,2})",
    ),
    "bearer": ("earer EARER", r"(?i:\bbearer[ :]{1,3})(?P<value>[\w.~+/-]{20,4000}={0,2})(?![\w(\[])"),
    "jwt": ("eyJ", r"(?<![\w-])eyJ[\w-]{8,2000}\.eyJ[\w-]{8,8000}\.[\w-]{16,1500}"),
    "aws": ("AKIA ASIA ABIA ACCA", r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    "github": (
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})",
    ),
    "gitlab": ("glpat- glrt- gldt- glptt-", r"(?<![\w-])gl(?:pat|rt|dt|ptt)-[\w-]{20,100}"),
    "slack": (
        "xox xapp- hooks.slack.com/",
        r"(?<![A-Za-z0-9])(?:xox[abeoprs]-[A-Za-z0-9-]{10,250}|xapp-\d-[A-Za-z0-9-]{20,250})"
        r"|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{20,100}",
    ),
    "google": ("AIza GOCSPX- ya29.", r"(?<![\w-])(?:AIza[\w-]{35}(?![\w-])|GOCSPX-[\w-]{28}|ya29\.[\w-]{30,1000})"),
    "stripe": (
        "k_live_ k_test_ whsec_",
        r"(?<![A-Za-z0-9])(?:[rs]k_(?:live|test)_[A-Za-z0-9]{16,250}|whsec_[A-Za-z0-9]{24,100})",
    ),
    "openai": ("sk-", r"(?<![\w-])sk-(?:ant-|proj-|svcacct-)?(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{32,200}(?![\w-])"),
    "huggingface": ("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{34,40}(?![A-Za-z0-9])"),
    "npm": ("npm_", r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    "pypi": ("pypi-", r"(?<![\w-])pypi-AgE[\w-]{50,1000}"),
    "sendgrid": ("SG.", r"(?<![\w.-])SG\.[\w-]{22}\.[\w-]{43}(?![\w-])"),
    # Services whose keys begin with a prefix of their own, as their documentation or their scanners of keys describe.
    "airtable": ("pat", r"pat(?<![A-Za-z0-9]pat)[A-Za-z0-9]{14}\.[0-9a-f]{64}(?![A-Za-z0-9])"),
    "alibaba": ("LTAI", r"(?<![A-Za-z0-9])LTAI[A-Za-z0-9]{16,26}(?![A-Za-z0-9])"),
    "atlassian": ("ATATT3 ATCTT3 ATBB", r"(?<![\w-])(?:AT[AC]TT3[\w=-]{60,250}|ATBB[A-Za-z0-9]{28,36}(?![\w-]))"),
    "azure": ("AccountKey= SharedAccessKey=", r"(?:AccountKey|SharedAccessKey)=(?P<value>[A-Za-z0-9+/]{43,88}={0,2})"),
    "databricks": ("dapi", r"(?<![A-Za-z0-9])dapi[0-9a-f]{32}(?:-\d)?(?![A-Za-z0-9])"),
    "digitalocean": ("_v1_", r"(?<![A-Za-z0-9])do[opr]_v1_[0-9a-f]{64}(?![A-Za-z0-9])"),
    "discord": (".", r"[MNO](?<![\w.-].)[A-Za-z0-9_-]{23,27}\.[\w-]{6}\.[\w-]{27,38}(?![\w.-])"),
    "docker": ("dckr_pat_", r"(?<![A-Za-z0-9])dckr_pat_[\w-]{27}(?![\w-])"),
    "facebook": ("EAA", r"(?<![A-Za-z0-9])EAA[A-Za-z0-9]{80,400}(?![A-Za-z0-9])"),
    "figma": ("figd_", r"(?<![A-Za-z0-9])figd_[\w-]{38,44}(?![\w-])"),
    "grafana": ("glsa_ glc_", r"(?<![A-Za-z0-9])(?:glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/]{40,400}={0,2})"),
    "groq": ("gsk_", r"(?<![A-Za-z0-9])gsk_[A-Za-z0-9]{48,56}(?![A-Za-z0-9])"),
    "linear": ("lin_api_", r"(?<![A-Za-z0-9])lin_api_[A-Za-z0-9]{40}(?![A-Za-z0-9])"),
    "mailchimp": ("-us", r"(?<![A-Za-z0-9])[0-9a-f]{32}-us\d{1,2}(?![A-Za-z0-9])"),
    "mailgun": ("key-", r"(?<![\w-])key-[0-9a-f]{32}(?![A-Za-z0-9])"),
    "newrelic": ("NRAK- NRJS- NRII-", r"(?<![\w-])NR(?:AK-[A-Z0-9]{27}|JS-[0-9a-f]{19}|II-[\w-]{32})(?![\w-])"),
    "notion": ("ntn_", r"(?<![A-Za-z0-9])ntn_[A-Za-z0-9]{40,50}(?![A-Za-z0-9])"),
    "perplexity": ("pplx-", r"(?<![\w-])pplx-[A-Za-z0-9]{40,56}(?![\w-])"),
    "planetscale": ("pscale_", r"(?<![A-Za-z0-9])pscale_(?:tkn|pw|oauth)_[\w.-]{32,64}(?![\w-])"),
    "postman": ("PMAK-", r"(?<![\w-])PMAK-[0-9a-f]{24}-[0-9a-f]{34}(?![\w-])"),
    "replicate": ("r8_", r"(?<![A-Za-z0-9])r8_[A-Za-z0-9]{37}(?![A-Za-z0-9])"),
    "rubygems": ("rubygems_", r"(?<![A-Za-z0-9])rubygems_[0-9a-f]{48}(?![A-Za-z0-9])"),
    "sentry": ("sntrys_", r"(?<![A-Za-z0-9])sntrys_[\w+/=-]{60,300}"),
    "shopify": ("shp", r"(?<![A-Za-z0-9])shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}(?![A-Za-z0-9])"),
    "square": ("sq0", r"(?<![A-Za-z0-9])sq0(?:atp|csp|idp)-[\w-]{22,43}(?![\w-])"),
    "supabase": ("sbp_", r"(?<![A-Za-z0-9])sbp_[0-9a-f]{40}(?![A-Za-z0-9])"),
    "telegram": (":AA", r"(?<![A-Za-z0-9])\d{8,10}:AA[\w-]{33}(?![\w-])"),
    "terraform": (".atlasv1.", r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,80}"),
    "twilio": ("SK AC", r"(?<![A-Za-z0-9])(?:SK|AC)[0-9a-f]{32}(?![A-Za-z0-9])"),
    "vault": ("hvs. hvb.", r"(?<![\w.-])hv[sb]\.[\w-]{24,200}(?![\w-])"),
    "xai": ("xai-", r"(?<![\w-])xai-[A-Za-z0-9]{70,90}(?![\w-])"),
    # user:password@host; an all-letter password is usually a placeholder.
    "url_password": (
        "://",
        r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@<>{}$'\"]{0,64}:(?P<value>(?=[A-Za-z]*[^A-Za-z@\s])[^\s/@<>{}$'\":]{6,128})@[\w.\[-]",
    ),
}

_MARKS = {service: marks.split() for service, (marks, _) in _FORMS.items()}
_WITH_SPACES = ("private_key", "authorization", "bearer")
"""Services whose keys contain spaces. Other keys lie within words of at least `_SHORTEST` characters."""
_SHORTEST = 14  # of url_password
_DISCORD = re.compile(r"\.[\w-]{6}\.")  # fast: few texts contain a dot in so many words

_UNSPACED = "\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff\uff01-\uff0f\uff1a-\uff20"
"""The letters and marks of scripts that put no spaces between a value and the next word."""
# A value that is assigned to a name. The name ends here or a little later. Computed values are not secrets.
_NAMES = ("password", "passwd", "passphrase", "pwd", "secret", "credential", "key", "token")
_NAMES += ("пароль", "密码", "密碼", "パスワード", "비밀번호", "รหัสผ่าน")
_WRITTEN = tuple(dict.fromkeys(form for name in _NAMES for form in (name, name.capitalize(), name.upper())))
_OF_ACCESS = re.compile(
    r"(?:api|access|auth|account|private|secret|encryption|signing|bearer|refresh|session)[_-]?$", re.IGNORECASE
)
_LONG_VALUE = 20
_GIVEN = re.compile(
    r"[\w-]{0,20}[\"']?\]?[ \t]{0,4}(?::=|=>|==?|[:\uff1a是は는]|>(?=[^\s<>]{8,200}</))[ \t]{0,4}(?:\r?\n[ \t]{0,8})?"
    r"(?:\"(?P<double>[^\"\s]{8,200})\"|'(?P<single>[^'\s]{8,200})'"
    rf"|(?P<bare>(?:[^\W{_UNSPACED}]|[+/.~-]){{10,200}}={{0,2}})(?![^\W{_UNSPACED}]|[(\[]))"
)
# A line of a file of settings, such as `export DB_PASSWORD=...`. Its value may have any marks, and a tag may follow it.
_SETTING = re.compile(rf"[A-Z0-9_]{{0,20}}=(?P<bare>[^\s'\"<{_UNSPACED}]{{8,200}})(?=[\s<{_UNSPACED}]|\Z)")
# A parameter of a URL, whose value may have escapes such as `%21`.
_PARAMETER, _IN_QUERY = re.compile(r"=(?P<bare>[^\s'\"<>&;]{8,200})"), re.compile(r"[?&;][\w.-]*\Z")
_NO_SECRET = re.compile(
    r"\$[({]|\{|\}|<|>|%\(|://|\.\w+\(|^[\w.-]+\.(?:\w{1,5})$|^[./~]|^(?:x{4,}|\*{4,}|\.{3,})", re.IGNORECASE
)


def service_keys() -> dict[str, Find]:
    """Return the searches for keys and tokens, by service, and for passwords in addresses."""
    checks = {"bearer": _is_random}
    # Letters of another script may touch a key, so `\w` means ASCII.
    finds = {name: by_pattern(re.compile(pattern, re.ASCII), checks.get(name)) for name, (_, pattern) in _FORMS.items()}
    return finds | {"discord": holding(_DISCORD.search, finds["discord"])}


def marked_services(text: str) -> list[str]:
    """Return the services of which a text may contain keys: it contains a word that all keys of the service contain."""
    # Most words are short, so a search of the long words is many times as fast as a search of the text. A key may have
    # letters only, but not in small letters.
    long = [word for word in text.split() if len(word) >= _SHORTEST]
    words = " ".join([word for word in long if not word.isalpha() or not word[1:].islower()])
    return [
        service
        for service, marks in _MARKS.items()
        if (where := text if service in _WITH_SPACES else words) and any(map(where.__contains__, marks))
    ]


def assigned_secrets(text: str) -> list[Span]:
    """Return the spans of the values that are assigned to names of secrets, such as `password`."""
    spans: set[Span] = set()
    for name in _WRITTEN:
        start = text.find(name)  # this is many times as fast as a pattern
        while start >= 0:
            ahead = text[max(start - 12, 0) : start]
            match = name.isupper() and _SETTING.match(text, start + len(name))
            match = match or (_IN_QUERY.search(ahead) and _PARAMETER.match(text, start + len(name)))
            match = match or _GIVEN.match(text, start + len(name))
            if match and _names_a_secret(name, ahead, match) and _is_random(match):
                spans.add(match.span(str(match.lastgroup)))
            start = text.find(name, start + 1)
    return sorted(spans)


def _names_a_secret(name: str, before: str, match: re.Match) -> bool:
    """Return whether the name is that of a secret.

    `key`, and `token` before a short value, need a word such as `api` before them.
    """
    least = {"key": math.inf, "token": _LONG_VALUE}.get(name.lower(), 0)
    return len(match[str(match.lastgroup)]) >= least or _OF_ACCESS.search(before) is not None


def _is_random(match: re.Match) -> bool:
    """Return whether a value looks random: it has letters and digits, no words, and many different characters.

    Keys are long. Passwords are short and contain marks. A short value without quotes may be a variable: it must change
    between capital letters, small letters, digits and marks at every third character, as few names do.
    """
    value = match[str(match.lastgroup)]
    if _NO_SECRET.search(value) or not re.search(r"\d", value) or not re.search(r"[A-Za-z]", value):
        return False
    bits = _bits(value)
    # Joined words have few digits, and these digits are neighbours.
    joined = re.sub("[-_./]", "", value)
    if len(value) >= _LONG_VALUE:
        return bits >= (3.0 if re.fullmatch("[0-9a-fA-F]+", value) else 3.5) and _changes(joined) >= len(joined) / 5
    if match.lastgroup == "bare" and _changes(joined) < len(joined) / 3:
        return False
    classes = sum(bool(re.search(pattern, value)) for pattern in ("[a-z]", "[A-Z]", r"\d", r"[^\w\s]"))
    return classes >= 3 and bits >= 2.75


def _bits(value: str) -> float:
    """Return the Shannon entropy of the characters, in bits per character."""
    return -sum(number / len(value) * math.log2(number / len(value)) for number in Counter(value).values())


def _changes(value: str) -> int:
    """Count the neighbouring characters of different classes: capital letters, small letters, digits, marks."""
    classes = [
        "A" if character.isupper() else "a" if character.islower() else "0" if character.isdigit() else character
        for character in value
    ]
    return sum(one != other for one, other in pairwise(classes))
