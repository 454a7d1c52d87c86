"""Errors as data. Source: carmy/1, sections 3 and 5."""

from datetime import date

import pytest
from pydantic import BaseModel

from fastapi_carmy import AgentError, ErrorCategory
from fastapi_carmy.errors import STATUS, ConfigurationError, HostError, ToolError
from fastapi_carmy.jsontext import encode


def test_absent_fields_are_left_out() -> None:
    error = AgentError("NO", "No.", ErrorCategory.CONFLICT)

    assert error.as_dict() == {
        "code": "NO",
        "message": "No.",
        "category": "conflict",
        "recoverable": False,
        "retryable": False,
    }
    assert str(error) == "NO: No."


def test_all_fields_stand_in_order() -> None:
    error = AgentError(
        "A_1",
        "m",
        ErrorCategory.CAPACITY,
        retryable=True,
        retry_after=0,
        suggested_action="t",
        details=[],
    )

    assert list(error.as_dict().items()) == [
        ("code", "A_1"),
        ("message", "m"),
        ("category", "capacity"),
        ("recoverable", True),
        ("retryable", True),
        ("retry_after", 0),
        ("suggested_action", "t"),
        ("details", []),
    ]
    assert error.headers == {"Retry-After": "0"}


@pytest.mark.parametrize("code", ["", "no", "No", "_NO", "NO_", "N__O", "1NO", "NO\n", "NÖ"])
def test_a_code_is_upper_snake(code: str) -> None:
    with pytest.raises(ValueError, match="UPPER_SNAKE"):
        AgentError(code, "", ErrorCategory.CONFLICT)


@pytest.mark.parametrize("seconds", [-1, 1.5, 2.0, float("nan"), True, "3"])
def test_whoever_waits_waits_whole_seconds(seconds: object) -> None:
    with pytest.raises(ValueError, match="retry_after"):
        AgentError("NO", "", ErrorCategory.CONFLICT, retry_after=seconds)  # type: ignore[arg-type]


def test_an_unknown_category_is_refused() -> None:
    with pytest.raises(ValueError, match="weather"):
        AgentError("NO", "", "weather")  # type: ignore[arg-type]


def test_a_category_may_be_its_name() -> None:
    error = AgentError("NO", "", "conflict")  # type: ignore[arg-type]

    assert error.category is ErrorCategory.CONFLICT
    assert error.status_code == 409


def test_each_category_has_a_status() -> None:
    assert set(STATUS) == set(ErrorCategory)


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"when": date(2026, 1, 2)}, {"when": "2026-01-02"}),
        (Point(x=1), {"x": 1}),
        ([float("nan"), float("inf")], [None, None]),
        ({"text": "a\ud800b"}, {"text": "a?b"}),
        (object(), "<object>"),
        ({"in": object(), "bytes": b"\xff"}, {"in": "<object>", "bytes": "�"}),
        ({1: (2, frozenset({3}))}, {"1": [2, [3]]}),
    ],
    ids=["date", "model", "nan", "surrogate", "object", "nested", "keys"],
)
def test_details_are_plain_json_whatever_they_hold(details: object, expected: object) -> None:
    error = AgentError("NO", "", ErrorCategory.CONFLICT, details=details)

    assert error.as_dict()["details"] == expected


def test_json_text_is_written_whatever_it_is() -> None:
    endless: list[object] = []
    endless.append(endless)

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    assert encode(endless) == b'["<list>"]'
    assert encode({"a": Odd()}) == b'{"a":"<Odd>"}'
    assert encode({"\ud800": 10**5000}).startswith(b'{"')


def test_a_host_error_keeps_what_the_host_said_until_it_is_the_tools() -> None:
    error = HostError(
        "HTTP_ERROR",
        "Teapot.",
        ErrorCategory.VALIDATION,
        host_status=418,
        host_headers={"X-Tea": "green"},
    )

    plain = error.without_host()

    assert (error.status_code, error.headers) == (418, {"X-Tea": "green"})
    assert (plain.status_code, plain.headers) == (400, {})
    assert plain.as_dict() == error.as_dict()


def test_a_mistake_in_a_tool_names_the_tool_the_parameter_and_the_mend() -> None:
    error = ToolError("order", "use something else.", parameter="sku")

    assert isinstance(error, ConfigurationError)
    assert isinstance(error, ValueError)
    assert str(error) == "Tool 'order', parameter 'sku': use something else."
    assert (error.tool, error.parameter, error.problem) == ("order", "sku", "use something else.")
    assert str(ToolError("order", "mend it.")) == "Tool 'order': mend it."
