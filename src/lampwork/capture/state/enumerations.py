"""What native code reads of an enumeration: its tables of members, and the name and value of each member."""

from __future__ import annotations

import enum
from typing import Any, cast

from lampwork.capture.model.region import DictItem, InstanceDict, Known
from lampwork.capture.model.values import CONSTANTS
from lampwork.capture.state.environment import Environment

# Not `_value2member_map_`, in which native code keeps the combinations of flags that come up.
_TABLES = ("_member_map_",)


def guard_enumeration(environment: Environment, value: Any) -> None:
    """Guard all of it before native code is given the class or one of its members; other values need nothing."""
    if not isinstance(value, (enum.Enum, enum.EnumType)):
        return
    cls = value if isinstance(value, enum.EnumType) else type(value)
    for name in _TABLES:
        found, _ = environment.lookup(cls, name)
        if type(found) is dict:
            _guard_table(environment, cast("dict[Any, Any]", found), f"{cls.__qualname__}.{name}")
    members: list[Any] = list(cast("dict[str, Any]", vars(cls).get("_member_map_", {})).values())
    for member in [*members, value] if isinstance(value, enum.Enum) else members:
        table, name = cast("dict[str, Any]", member.__dict__), f"{member}.__dict__"
        environment.guards.version(table, name)
        environment.guards.add(InstanceDict(Known(member, str(member))), "is", table, slow=True)
        for slot in ("_name_", "_value_"):
            _guard_item(environment, table, name, slot)


def _guard_table(environment: Environment, table: dict[Any, Any], name: str) -> None:
    environment.guards.version(table, name)
    environment.guards.add(Known(table, name), "keys", tuple(table), slow=True)
    for key in table:
        _guard_item(environment, table, name, key)


def _guard_item(environment: Environment, table: dict[Any, Any], name: str, key: Any) -> None:
    source = DictItem(Known(table, name), key)
    if key not in table:
        environment.guards.add(Known(table, name), "missing_key", key, slow=True)
        return
    kind = "equals" if type(table[key]) in CONSTANTS else "is"
    environment.guards.add(source, kind, table[key], slow=True)
