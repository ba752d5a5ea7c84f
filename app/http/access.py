"""Permissions of API keys: scopes, and the topics and groups that they are for."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, SecretStr

from app.problems import Refusal

Scope = Literal["send", "receive", "transact", "operate", "audit", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

_SHOWN = 255  # characters of a name in a refusal
_PATTERN = re.compile(r"[^?\[\]\x00-\x1f\x7f]{1,255}")
_ANY = "*"  # in a pattern: any characters, also none


def _checked(pattern: str) -> str:
    if not _PATTERN.fullmatch(pattern):
        raise ValueError("a pattern is 1 to 255 printable characters without '?', '[' and ']'")
    return pattern


Pattern = Annotated[str, AfterValidator(_checked)]


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """Settings of an API key with limited permissions. `topics`, `groups`: names, or patterns in
    which * stands for any characters; groups of consumers and of producers.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    key: SecretStr
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    topics: tuple[Pattern, ...] = (_ANY,)
    groups: tuple[Pattern, ...] = (_ANY,)

    @property
    def access(self) -> "Access":
        return Access(self.name, scopes=self.scopes, topics=self.topics, groups=self.groups)


class Access:
    """Permissions of one key. Immutable."""

    def __init__(
        self,
        name: str | None = None,
        *,
        scopes: Collection[Scope] = SCOPES,
        topics: Collection[str] = (_ANY,),
        groups: Collection[str] = (_ANY,),
    ) -> None:
        """`name`: of the key, where it has one. `topics`, `groups`: patterns."""
        self.name = name
        self.scopes: Sequence[Scope] = [scope for scope in SCOPES if scope in scopes]
        self.topics = tuple(topics)
        self.groups = tuple(groups)
        # to some topics or groups
        self.is_limited = _ANY not in self.topics or _ANY not in self.groups
        self.is_full = not self.is_limited and len(self.scopes) == len(SCOPES)

    def may_use_topic(self, topic: str) -> bool:
        return _matches(topic, self.topics)

    def may_use_group(self, group: str) -> bool:
        """Whether the key may use the group, of consumers or of producers."""
        return _matches(group, self.groups)

    def check_scope(self, enough: Sequence[Scope]) -> None:
        """Raise Refusal forbidden unless the key has one of these scopes."""
        if not any(scope in self.scopes for scope in enough):
            raise Refusal(
                "forbidden",
                f"the key lacks the scope {' or '.join(enough)}",
                context={"scope": enough[0]},
            )

    def check_topic(self, topic: str) -> None:
        """Raise Refusal forbidden unless the key is for the topic."""
        if not self.may_use_topic(topic):
            raise _not_for("topic", topic)

    def check_group(self, group: str) -> None:
        """Raise Refusal forbidden unless the key is for the group, of consumers or of producers."""
        if not self.may_use_group(group):
            raise _not_for("group", group)

    def check_unlimited(self) -> None:
        """Raise Refusal forbidden unless the key is for all topics and groups."""
        if self.is_limited:
            raise Refusal(
                "forbidden",
                "the key is limited to some topics or groups, and the operation is not",
            )


EVERYTHING = Access()
NOTHING = Access(scopes=())


def _not_for(what: str, name: str) -> Refusal:
    shown = name[:_SHOWN]
    return Refusal("forbidden", f"the key is not for {what} {shown}", context={what: shown})


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
