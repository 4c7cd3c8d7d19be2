"""What every model of the API has in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

_ACRONYMS = {"boot_id": "bootID"}


def field_name(attribute: str) -> str:
    """The name in the Kubernetes API of a model's attribute: camelCase, with Kubernetes' acronyms (`boot_id`: `bootID`)."""
    return _ACRONYMS.get(attribute) or to_camel(attribute)


class ApiModel(BaseModel):
    """An object of the API, read from and written to JSON by the names of the API.

    Attributes are snake_case and may be given by either name. Fields that this version does not know are ignored, so
    that old and new components can run together; nobody may therefore write back a whole object that was read through
    a model: write patches of what changed.
    """

    model_config = ConfigDict(alias_generator=field_name, populate_by_name=True, extra="ignore")

    def to_api(self) -> dict[str, Any]:
        """The JSON form by the API's names, without the fields that have no value."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
