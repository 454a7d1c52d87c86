"""Types that tools take and give, as the table of schemas looks at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Generic, Literal, NamedTuple, NotRequired, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    computed_field,
)
from typing_extensions import TypedDict

__all__ = (
    "Account",
    "Aliased",
    "Animal",
    "Auto",
    "Colour",
    "Couple",
    "Described",
    "Drawing",
    "Even",
    "Invoice",
    "Labelled",
    "Level",
    "Mixed",
    "Movement",
    "Numbers",
    "Page",
    "Picture",
    "Place",
    "Span",
    "Strict",
    "Tree",
    "Worker",
)

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 9


class Mixed(Enum):
    TEXT = "a"
    NUMBER = 7


class Tree(BaseModel):
    """It refers to itself."""

    name: str
    children: list["Tree"] = []
    parent: "Tree | None" = None


class Worker(BaseModel):
    """It refers to itself through another."""

    name: Annotated[str, Field(max_length=5)]
    team: "Team | None" = None


class Team(BaseModel):
    members: Annotated[list[Worker], Field(max_length=3)] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)] = 9


class SmallDog(BaseModel):
    kind: Literal["dog"] = "dog"
    size: Literal["small"] = "small"
    bark: bool


class LargeDog(BaseModel):
    kind: Literal["dog"] = "dog"
    size: Literal["large"] = "large"
    weight: float


Dog = Annotated[SmallDog | LargeDog, Field(discriminator="size")]
Animal = Annotated[Cat | Dog, Field(discriminator="kind")]
"""A choice inside of a choice; some tags have defaults."""


class Circle(BaseModel):
    shape_type: Literal["circle"] = Field("circle", alias="shapeType")
    radius: Annotated[float, Field(gt=0)]


class Square(BaseModel):
    shape_type: Literal["square"] = Field("square", alias="shapeType")
    side: Annotated[float, Field(gt=0)]


class Drawing(BaseModel):
    shapes: list[Annotated[Circle | Square, Field(discriminator="shape_type")]] = []


def _tag_of(value: object) -> str:
    has_wheels = isinstance(value, dict) and "wheels" in value
    return "auto" if has_wheels or hasattr(value, "wheels") else "picture"


class Auto(BaseModel):
    wheels: int


class Picture(BaseModel):
    title: str = ""


Movement = Annotated[
    Annotated[Auto, Tag("auto")] | Annotated[Picture, Tag("picture")], Discriminator(_tag_of)
]
"""What a function tells apart; much looks like both."""


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_page: int | None = None


class Couple(BaseModel, Generic[T]):
    both: tuple[T, T]


class Labelled(TypedDict):
    label: str
    weight: NotRequired[Annotated[float, Field(ge=0)]]


class Span(NamedTuple):
    start: int
    end: int = 10


@dataclass
class Place:
    street: str
    number: Annotated[int, Field(gt=0)] = 1


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    sku: str = Field(alias="stockKeepingUnit")
    count: int = Field(1, validation_alias=AliasChoices("count", "howMany"))


class Described(BaseModel):
    """It is written otherwise than it is read."""

    price: Decimal = Field(serialization_alias="preis")

    @computed_field
    def doubled(self) -> str:
        return str(self.price * 2)


class Account(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern="^[a-z]+$", max_length=8)]
    tags: Annotated[frozenset[str], Field(max_length=3)] = frozenset()
    made: date | None = None


class Invoice(BaseModel):
    model_config = ConfigDict(extra="allow")

    lines: list[Labelled] = Field(default_factory=list)
    paid: bool = False


class Numbers(RootModel[Sequence[int]]):
    pass


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    when: date
    count: float


Even = Annotated[int, Field(multiple_of=2)]
