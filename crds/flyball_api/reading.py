"""From the API's JSON to typed structs; an error names the object, the JSON path, and what is wrong there.

Specs and metadata are read strictly: an object whose spec is not as the CRD has it is refused whole, with
`InvalidObject`. A status is read in parts: one that cannot be read is left out and named in a problem, and every other
field of the same object stays. Fields that no struct has are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, field

JsonObject = dict[str, Any]
Step = str | int
T = TypeVar("T", bound=Struct)

MAX_INTEGER = 2**63 - 1
MAX_NAME_LENGTH = 253
# Of one field of a status no more parts are left out one by one, for each is another look at all of it: as many as
# the largest servers have GPUs.
MOST_PROBLEMS = 16

# What may stand in the API's fields beside what the structs' types say.
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
Time = Annotated[datetime, Meta(tz=True)]

_LISTS = (list, tuple)
_CONTAINERS = (dict, *_LISTS)

_WHERE = re.compile(r"^(?P<what>.*) - at `(?:key` in `)?\$(?P<path>.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(?P<field>[^.\[\]]+)|\[(?P<index>\d+)\]|\[\.\.\.\]")


class InvalidObject(ValueError):
    """An object that cannot be read; the message names the object, the JSON path, and what would be right there."""


class ApiStruct(Struct, frozen=True, rename="camel", gc=False):
    """A part of an object: snake_case here, camelCase in JSON, and a tree, which the garbage collector need not walk."""


class ObjectMeta(ApiStruct, frozen=True):
    """The metadata that every API object has."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Count = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`, or the bare name of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None


def read_metadata(kind: str, raw: Mapping[str, Any]) -> ObjectMeta:
    """An object's metadata; raises InvalidObject."""
    try:
        return convert(raw["metadata"], ObjectMeta)
    except (KeyError, ValidationError) as error:
        metadata = raw.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        raise InvalidObject(f"{kind} {name}: {describe('metadata', error)}") from error


def read_object(kind: str, raw: Mapping[str, Any], to: type[T]) -> T:
    """A whole object of Kubernetes' own; raises InvalidObject that names the object and the path."""
    try:
        return convert(raw, to)
    except ValidationError:
        try:
            return convert(without_nulls(raw), to)
        except ValidationError as error:
            metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
            name = metadata.get("name") if isinstance(metadata, Mapping) else None
            raise InvalidObject(f"{kind} {name}: {describe('', error).lstrip('.: ')}") from error


def read_spec(kind: str, metadata: ObjectMeta, raw: Mapping[str, Any], to: type[T]) -> T:
    """An object's spec; raises InvalidObject that names the object and the path."""
    spec = raw.get("spec")
    try:
        return convert({} if spec is None else spec, to)
    except ValidationError:
        try:  # a null stands for a missing field, as it does for the API server
            return convert(without_nulls(spec), to)
        except ValidationError as error:
            raise InvalidObject(f"{kind} {metadata.key}: {describe('spec', error)}") from error


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in each other more than so many levels deep."""
    if isinstance(value, dict):
        return levels == 0 or any(
            is_deeper(item, levels - 1) for item in value.values() if isinstance(item, _CONTAINERS)
        )
    if isinstance(value, _LISTS):
        return levels == 0 or any(is_deeper(item, levels - 1) for item in value if isinstance(item, _CONTAINERS))
    return False


def is_larger(value: Any, parts: int) -> bool:
    """Whether lists and objects have more than so many entries together, whichever stands in which."""
    left, unseen = parts, [value]
    while unseen:
        item = unseen.pop()
        left -= len(item) if isinstance(item, _CONTAINERS) else 0
        if left < 0:
            return True
        if isinstance(item, dict):
            unseen += [entry for entry in item.values() if isinstance(entry, _CONTAINERS)]
        elif isinstance(item, _LISTS):
            unseen += [entry for entry in item if isinstance(entry, _CONTAINERS)]
    return False


def read_status(raw: Mapping[str, Any], to: type[T]) -> tuple[T, tuple[str, ...]]:
    """An object's status and what of it could not be read, one sentence with its path each."""
    return read_readable("status", raw, to)


def read_readable(part: str, raw: Mapping[str, Any], to: type[T]) -> tuple[T, tuple[str, ...]]:
    """What can be read of an object's spec or status, and what of it cannot, one sentence with its path each.

    Of what is unreadable the innermost that can be missing is left out: a field, an entry of a list, or all of it; and
    the whole of a field in which more than `MOST_PROBLEMS` parts are.
    """
    found = raw.get(part)
    try:
        return convert({} if found is None else found, to), ()
    except ValidationError:
        left = _Remains(without_nulls(found))
    problems: dict[str, None] = {}
    problems_of: Counter[str] = Counter()  # by the field
    while True:
        try:
            return convert(left.value, to), tuple(problems)
        except ValidationError as error:
            what, steps = _parted(error)
            field = _path(steps[:1])
            problem = left.leave_out(steps if problems_of[field] <= MOST_PROBLEMS else steps[:1])
            if problem is not None:
                problems[f"{part}{problem}: {what}"] = None
                problems_of[field] += 1


def describe(part: str, error: Exception) -> str:
    """An error of msgspec as `path: what is wrong`; `part` is where the path begins."""
    if isinstance(error, KeyError):
        return f"{part} is missing"
    what, steps = _parted(error)
    return f"{part}{_path(steps)}: {what}"


def _parted(error: Exception) -> tuple[str, list[Step]]:
    """What is wrong, and the fields and indices that lead there, as far as msgspec names them (it names no map's keys)."""
    found = _WHERE.match(str(error))
    if found is None:
        return str(error), []
    steps: list[Step] = []
    for step in _STEP.finditer(found["path"]):
        if step["field"] is None and step["index"] is None:
            break
        steps.append(step["field"] if step["index"] is None else int(step["index"]))
    return found["what"], steps


def _path(steps: Sequence[Step]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


class _Remains:
    """A status that loses its unreadable parts one by one, and knows at which index each entry of a list once was."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._emptied: set[str] = set()  # original paths of entries
        self._removed: dict[str, list[int]] = {}  # original indices, by the original path of their list

    def leave_out(self, steps: list[Step]) -> str | None:
        """Take away what `steps` lead to; its original path, or None where it has been reported before.

        An entry of a list is emptied first, so that it still counts where it may be empty.
        """
        if not steps:
            self.value = {}
            return ""
        original, parent = self._original(steps), self.value
        for step in steps[:-1]:
            parent = parent[step]
        last = steps[-1]
        if not isinstance(last, int):
            del parent[last]
        elif parent[last] != {}:
            parent[last] = {}
            self._emptied.add(_path(original))
        else:
            del parent[last]
            self._removed.setdefault(_path(original[:-1]), []).append(int(original[-1]))
            if _path(original) in self._emptied:
                return None
        return _path(original)

    def _original(self, steps: list[Step]) -> list[Step]:
        original: list[Step] = []
        for step in steps:
            if isinstance(step, int):
                for removed in sorted(self._removed.get(_path(original), ())):
                    step += removed <= step
            original.append(step)
        return original


def without_nulls(value: Any) -> Any:
    """A copy without the fields that are null."""
    # Most of what is in an object are scalars: a call for each of them would be most of the work.
    if isinstance(value, dict):
        return {
            key: without_nulls(item) if isinstance(item, _CONTAINERS) else item
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, _LISTS):
        return [without_nulls(item) if isinstance(item, _CONTAINERS) else item for item in value]
    return value
