"""What every model of the job file is made of: its configuration and the types of its fields."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[str, Field(pattern=NAME, max_length=40)]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Entrypoint = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""`package.module:attribute`, imported where it runs."""
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$")]
"""Bytes, as Kubernetes writes them."""
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Of an object in the job's namespace."""


class Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True
    )
