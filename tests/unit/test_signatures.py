"""What a tool's function may look like, and what comes of it: one table."""

import contextvars
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pytest
from fastapi import (
    BackgroundTasks,
    Body,
    Cookie,
    Depends,
    File,
    Form,
    Header,
    Path,
    Query,
    Request,
    Response,
    Security,
    UploadFile,
    WebSocket,
)
from fastapi.security import SecurityScopes
from pydantic import BaseModel, BeforeValidator, Field, RootModel, ValidationError
from typing_extensions import Doc, TypeAliasType, TypedDict

from fastapi_carmy.errors import ToolError
from fastapi_carmy.injection import make_tool, with_overrides
from tests.support.postponed import make_postponed_tool
from tests.support.tools import call, opened_on, scope_of, validate

Function = Callable[..., Any]


class Refused(Enum):
    """How a row ends when it does not end in a value."""

    BY_VALIDATION = "the call's arguments are refused"
    AT_REGISTRATION = "the tool is refused"


INVALID = Refused.BY_VALIDATION
REFUSED = Refused.AT_REGISTRATION


# ---- types of the table


class Item(BaseModel):
    name: str
    qty: int = 1


class Filter(BaseModel):
    q: str
    limit: int = 10


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    a: int


Num = TypeAliasType("Num", int)


class Numbers(RootModel[list[int]]):
    pass


current = contextvars.ContextVar("current", default="unset")


# ---- dependencies of the table


def pagination(limit: int = 10, offset: Annotated[int, Query(ge=0)] = 0) -> tuple[int, int]:
    return limit, offset


def required_limit(limit: int) -> int:
    return limit


def from_body(item: Item) -> Item:
    return item


class Pager:
    def __init__(self, limit: int = 10, offset: int = 0) -> None:
        self.limit = limit
        self.offset = offset


class Reads:
    def __call__(self, request: Request) -> str:
        return request.headers["x-h"]


def user(scopes: SecurityScopes) -> list[str]:
    return scopes.scopes


class Counter:
    """A dependency that gives a new value each time it is called."""

    def __init__(self) -> None:
        self.value = 0

    def __call__(self) -> int:
        self.value += 1
        return self.value


async def sets_async() -> None:
    current.set("async")


def sets_sync() -> None:
    current.set("sync")


async def yields() -> AsyncIterator[str]:
    yield "open"


class Doubler:
    """A validator that counts how often it runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        return value * 2


async def doubled_dependency(n: Annotated[int, BeforeValidator(lambda value: value + 1)]) -> int:
    return n


# ---- the functions, by the number of their row


async def single_model(item: Item) -> Any:
    return item


async def mixed(item: Item, n: int, q: Optional[str] = None) -> Any:  # noqa: UP045
    return item.name, n, q


async def constrained(n: Annotated[int, Field(ge=1)]) -> Any:
    return n


async def constrained_default(n: Annotated[int, Field(ge=1)] = 5) -> Any:
    return n


async def markers(a: Annotated[int, Query(ge=1)], b: Annotated[str, Body()]) -> Any:
    return a, b


async def default_markers(a: int = Query(ge=1), b: str = Body("z")) -> Any:
    return a, b


async def embedded(item: Annotated[Item, Body(embed=True)]) -> Any:
    return item


async def query_alias(name: Annotated[str, Query(alias="itemName")]) -> Any:
    return name


async def field_alias(name: Annotated[str, Field(alias="itemName")]) -> Any:
    return name


async def field_alias_default(name: Annotated[str, Field(alias="itemName")] = "zz") -> Any:
    return name


async def query_model(f: Annotated[Filter, Query()]) -> Any:
    return f


async def paginated(q: str, p: Annotated[tuple[int, int], Depends(pagination)]) -> Any:
    return q, p


async def paginated_default(q: str, p: tuple[int, int] = Depends(pagination)) -> Any:
    return q, p


async def only_paginated(p: tuple[int, int] = Depends(pagination)) -> Any:
    return p


async def needs_limit(n: Annotated[int, Depends(required_limit)]) -> Any:
    return n


async def two_owners(n: int, item: Annotated[Item, Depends(from_body)]) -> Any:
    return n, item


async def clash(limit: str, n: Annotated[int, Depends(required_limit)]) -> Any:
    return limit, n


async def class_dependency(p: Annotated[Pager, Depends()]) -> Any:
    return p.limit, p.offset


async def instance_dependency(h: Annotated[str, Depends(Reads())]) -> Any:
    return h


class Callable_:  # noqa: N801
    async def __call__(self, x: int) -> Any:
        return x


def base(a: int, b: int = 2) -> Any:
    return a, b


class Shop:
    async def method(self, x: int) -> Any:
        return x

    @classmethod
    async def on_class(cls, x: int) -> Any:
        return cls.__name__, x

    @staticmethod
    async def static(x: int) -> Any:
        return x


async def any_number(a: int, *args: int) -> Any:
    return a, args


async def any_names(a: int, **kw: int) -> Any:
    return a, kw


async def positional(a: int, /, b: int) -> Any:
    return a, b


async def positional_default(a: int = 5, /, b: int = 0) -> Any:
    return a, b


async def positional_request(r: Request, a: int = 5, /, *, b: int) -> Any:
    return r.method, a, b


async def mutable_default(xs: list[int] = []) -> Any:  # noqa: B006
    xs.append(1)
    return list(xs)


async def factory(xs: Annotated[list[int], Field(default_factory=lambda: [1])]) -> Any:
    return xs


async def body_factory(xs: list[int] = Body(default_factory=lambda: [1])) -> Any:
    return xs


async def unions(
    a: Optional[int],  # noqa: UP045
    b: Union[int, str],  # noqa: UP007
    c: Literal["x"],
    d: Colour,
) -> Any:
    return a, b, c, d


async def nones(o: int | None, p: str | None = None) -> Any:
    return o, p


async def discriminated(pet: Annotated[Dog | Cat, Field(discriminator="kind")]) -> Any:
    return pet


async def upload(f: UploadFile) -> Any:
    return f


async def uploads(f: list[UploadFile]) -> Any:
    return f


async def file_bytes(f: Annotated[bytes, File()]) -> Any:
    return f


async def form(f: Annotated[str, Form()]) -> Any:
    return f


async def takes_dataclass(p: Point) -> Any:
    return p


async def takes_typed_dict(r: Row) -> Any:
    return r


async def async_items(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


def sync_items(n: int) -> Iterator[int]:
    yield from range(n)


def sync_tool(n: int) -> Any:
    return n


def returns_coroutine(n: int) -> Awaitable[int]:
    async def later() -> int:
        return n

    return later()


def decorator(function: Function) -> Function:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@decorator
async def decorated(n: int) -> Any:
    return n


async def headers(x: int, x_h: Annotated[str, Header()], ck: Annotated[str, Cookie()]) -> Any:
    return x, x_h, ck


async def background(x: int, bt: BackgroundTasks, r: Response) -> Any:
    return x, type(bt), isinstance(r, Response)


async def secured(x: int, u: Annotated[list[str], Security(user, scopes=["w", "r"])]) -> Any:
    return x, u


counter = Counter()


async def counted(
    a: Annotated[int, Depends(counter)],
    b: Annotated[int, Depends(counter)],
    c: Annotated[int, Depends(counter, use_cache=False)],
) -> Any:
    return a == b, c == a + 1


async def reads_async_context(d: Annotated[None, Depends(sets_async)]) -> Any:
    return current.get()


def reads_async_context_in_thread(d: Annotated[None, Depends(sets_async)]) -> Any:
    return current.get()


async def reads_sync_context(d: Annotated[None, Depends(sets_sync)]) -> Any:
    return current.get()


async def model_names(  # noqa: PLR0917
    model_config: int, json: int, schema: int, copy: int, self: int, model_dump: int
) -> Any:
    return model_config, json, schema, copy, self, model_dump


async def underscore(_p: int) -> Any:
    return _p


async def envelope_names(tool: int, arguments: int, request: int, body: int) -> Any:
    return tool, arguments, request, body


async def bare(x) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001
    return x


async def alias_type(n: Num) -> Any:
    return n


async def path_marker(item_id: Annotated[int, Path(ge=1)]) -> Any:
    return item_id


async def many_types(  # noqa: PLR0917
    a: date, b: UUID, c: Decimal, d: bytes, e: set[int], f: tuple[int, str], g: timedelta
) -> Any:
    return a, b, c, d, e, f, g


async def strict_date(d: Annotated[date, Field(strict=True)]) -> Any:
    return d


async def strict_int(n: Annotated[int, Field(strict=True)]) -> Any:
    return n


doubler = Doubler()


async def validated(n: Annotated[int, BeforeValidator(doubler)]) -> Any:
    return n


async def validated_dependency(n: Annotated[int, Depends(doubled_dependency)]) -> Any:
    return n


async def with_yield(x: int, y: Annotated[str, Depends(yields)]) -> Any:
    return x, y


async def with_function_yield(x: int, y: Annotated[str, Depends(yields, scope="function")]) -> Any:
    return x, y


async def socket(ws: WebSocket) -> Any:
    return ws


async def query_list(xs: Annotated[list[int], Query()]) -> Any:
    return xs


async def root_model(data: Numbers) -> Any:
    return data.root


async def documented(n: Annotated[int, Doc("How many.")]) -> Any:
    return n


UUID_TEXT = "12345678-1234-5678-1234-567812345678"

TABLE: list[tuple[str, Function, dict[str, Any], Any]] = [
    ("1 one model is an argument", single_model, {"item": {"name": "a"}}, Item(name="a")),
    ("2 a model beside scalars", mixed, {"item": {"name": "a"}, "n": "3"}, ("a", 3, None)),
    ("3 a constraint", constrained, {"n": 0}, INVALID),
    ("4 a constraint with a default", constrained_default, {}, 5),
    ("5 markers are arguments", markers, {"a": 2, "b": "x"}, (2, "x")),
    ("6 markers as defaults", default_markers, {"a": 2}, (2, "z")),
    ("7 embed changes nothing", embedded, {"item": {"name": "a"}}, Item(name="a")),
    ("8 an alias of Query", query_alias, {"itemName": "v"}, "v"),
    ("9 an alias of Field", field_alias, {"itemName": "v"}, "v"),
    ("10 an alias with a default, given", field_alias_default, {"itemName": "v"}, "v"),
    ("11 an alias with a default", field_alias_default, {}, "zz"),
    ("12 a query model", query_model, {"f": {"q": "1"}}, Filter(q="1")),
    ("13 a dependency's scalars", paginated, {"q": "x", "limit": 3}, ("x", (3, 0))),
    ("14 a dependency as default", paginated_default, {"q": "x"}, ("x", (10, 0))),
    ("15 a dependency's constraint", only_paginated, {"offset": -1}, INVALID),
    ("16 a dependency's required scalar", needs_limit, {}, INVALID),
    (
        "17 a dependency's model",
        two_owners,
        {"n": 1, "item": {"name": "a"}},
        (1, Item(name="a")),
    ),
    ("18 two owners of one name", clash, {}, REFUSED),
    ("19 a class as dependency", class_dependency, {}, (10, 0)),
    ("20 an instance as dependency", instance_dependency, {}, "header"),
    ("21 a callable instance", Callable_(), {"x": 1}, 1),
    ("22 a partial with a position", functools.partial(base, 1), {"b": 5}, (1, 5)),
    ("23 a partial with a name", functools.partial(base, b=8), {"a": 1}, (1, 8)),
    ("24 a bound method", Shop().method, {"x": 1}, 1),
    ("25 a classmethod", Shop.on_class, {"x": 1}, ("Shop", 1)),
    ("26 a staticmethod", Shop.static, {"x": 1}, 1),
    ("27 an unbound method", Shop.method, {}, REFUSED),
    ("28 *args", any_number, {}, REFUSED),
    ("29 **kwargs", any_names, {}, REFUSED),
    ("30 positional-only", positional, {"a": 1, "b": 2}, (1, 2)),
    ("31 positional-only with a default", positional_default, {"b": 2}, (5, 2)),
    ("32 positional-only and injected", positional_request, {"b": 2}, ("POST", 5, 2)),
    ("33 a mutable default", mutable_default, {}, [1]),
    ("34 a default factory", factory, {}, [1]),
    ("35 a default factory of Body", body_factory, {}, [1]),
    (
        "36 unions, literals, enums",
        unions,
        {"a": None, "b": "x", "c": "x", "d": "red"},
        (None, "x", "x", Colour.RED),
    ),
    ("37 optional is not the same as nullable", nones, {"o": None}, (None, None)),
    (
        "38 a discriminated union",
        discriminated,
        {"pet": {"kind": "dog", "name": "Rex"}},
        Dog(kind="dog", name="Rex"),
    ),
    ("39 UploadFile", upload, {}, REFUSED),
    ("40 a list of UploadFile", uploads, {}, REFUSED),
    ("41 File", file_bytes, {}, REFUSED),
    ("42 Form", form, {"f": "x"}, "x"),
    ("43 a dataclass", takes_dataclass, {"p": {"x": "1"}}, Point(1)),
    ("44 a TypedDict", takes_typed_dict, {"r": {"a": "1"}}, {"a": 1}),
    ("45 an async generator", async_items, {"n": 2}, [0, 1]),
    ("46 a sync generator", sync_items, {"n": 2}, [0, 1]),
    ("47 a sync function", sync_tool, {"n": 1}, 1),
    ("48 a sync function that returns a coroutine", returns_coroutine, {"n": 1}, 1),
    ("49 a decorated function", decorated, {"n": 1}, 1),
    ("50 headers and cookies", headers, {"x": 1}, (1, "header", "cookie")),
    ("51 background tasks and response", background, {"x": 1}, (1, BackgroundTasks, True)),
    ("52 security scopes", secured, {"x": 1}, (1, ["w", "r"])),
    ("53 caching", counted, {}, (True, True)),
    ("54 a context variable, async", reads_async_context, {}, "async"),
    ("55 a context variable, in a thread", reads_async_context_in_thread, {}, "async"),
    ("56 a context variable set in a thread", reads_sync_context, {}, "unset"),
    (
        "57 names that models lack",
        model_names,
        {"model_config": 1, "json": 2, "schema": 3, "copy": 4, "self": 5, "model_dump": 6},
        (1, 2, 3, 4, 5, 6),
    ),
    ("58 a leading underscore", underscore, {"_p": 1}, 1),
    (
        "59 names of the envelope",
        envelope_names,
        {"tool": 1, "arguments": 2, "request": 3, "body": 4},
        (1, 2, 3, 4),
    ),
    ("60 an unknown argument", sync_tool, {"n": 1, "m": 2}, INVALID),
    ("61 no annotation", bare, {"x": [1]}, [1]),
    ("62 a type alias", alias_type, {"n": "3"}, 3),
    ("63 Path", path_marker, {"item_id": 3}, 3),
    (
        "64 JSON's missing types",
        many_types,
        {
            "a": "2024-01-02",
            "b": UUID_TEXT,
            "c": "1.5",
            "d": "x",
            "e": [1, 1],
            "f": [1, "x"],
            "g": "PT1S",
        },
        (
            date(2024, 1, 2),
            UUID(UUID_TEXT),
            Decimal("1.5"),
            b"x",
            {1},
            (1, "x"),
            timedelta(seconds=1),
        ),
    ),
    ("65 a strict date", strict_date, {"d": "2024-01-02"}, date(2024, 1, 2)),
    ("66 a strict integer", strict_int, {"n": "3"}, INVALID),
    ("67 a validator", validated, {"n": 2}, 4),
    ("68 a dependency's validator", validated_dependency, {"n": 2}, 3),
    ("69 a yield dependency", with_yield, {"x": 1}, (1, "open")),
    ("70 a yield dependency of the function", with_function_yield, {"x": 1}, (1, "open")),
    ("71 WebSocket", socket, {}, REFUSED),
    ("74 a list in Query", query_list, {"xs": [1, "2"]}, [1, 2]),
    ("75 a root model", root_model, {"data": [1]}, [1]),
    ("76 Doc", documented, {"n": 1}, 1),
]


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [pytest.param(*row[1:], id=row[0]) for row in TABLE],
)
async def test_a_signature_works_as_the_table_says(
    function: Function, arguments: dict[str, Any], expected: Any
) -> None:
    if expected is REFUSED:
        with pytest.raises(ToolError):
            make_tool(function, name="tool", effect="none")

        return

    tool = make_tool(function, name="tool", effect="none")

    if expected is INVALID:
        with pytest.raises(ValidationError):
            validate(tool, arguments)

        return

    opened = opened_on(scope_of({"x-h": "header", "cookie": "ck=cookie"}))

    assert await call(tool, arguments, opened=opened) == expected


async def test_calls_do_not_share_a_mutable_default() -> None:
    tool = make_tool(mutable_default, effect="none")

    results = [await call(tool, {}), await call(tool, {})]

    assert results == [[1], [1]]


async def test_a_validator_runs_once() -> None:
    tool = make_tool(validated, effect="none")
    doubler.calls = 0

    await call(tool, {"n": 2})

    assert doubler.calls == 1


async def test_an_override_takes_its_own_parameters_from_the_arguments() -> None:
    tool = make_tool(paginated, effect="none")

    def other(limit: Annotated[int, Query(ge=1)], size: int = 7) -> tuple[int, int]:
        return limit, size

    overridden = with_overrides(tool, {pagination: other})

    assert await call(overridden, {"q": "x", "limit": 9}) == ("x", (9, 7))
    assert overridden.spec is tool.spec


async def test_a_lambda_overrides_a_dependency() -> None:
    tool = make_tool(only_paginated, effect="none")

    overridden = with_overrides(tool, {pagination: lambda: (1, 2)})

    assert await call(overridden, {}) == (1, 2)


async def test_a_local_class_works_with_postponed_annotations() -> None:
    tool = make_postponed_tool()

    assert await call(tool, {"item": {"name": "a"}}) == "a"
