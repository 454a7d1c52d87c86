"""Which headers a run can be answered to."""

import pytest

from fastapi_carmy.agui.errors import RefusedRequestError
from fastapi_carmy.agui.negotiation import check_content_type, negotiate


@pytest.mark.spec("ag-ui B.19")
@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "   ",
        "*/*",
        "text/*",
        "text/event-stream",
        "TEXT/Event-Stream",
        "text/html;q=0.9, text/event-stream;q=1.0",
        "text/*;q=0.4, application/json",
        "application/json, text/*;q=0.1",
        "application/json, text/event-stream",
        "application/vnd.ag-ui.event+proto, text/event-stream",
        "text/event-stream; Q = 0.5",
        'text/event-stream;q="0.5"',
        "text/event-stream;q=much",
        "text/event-stream;charset=utf-8;q=0.1",
        "*/*;q=0, text/event-stream",
        "text/event-stream;q=1, text/event-stream;q=0",
        "garbage, text/event-stream",
        "*/event-stream",
    ],
)
def test_who_takes_events_gets_them(accept: str | None) -> None:
    assert negotiate(accept) == "text/event-stream"


@pytest.mark.spec("ag-ui B.19")
@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream;q=0",
        "text/event-stream;q=0, */*",
        "*/*;q=0",
        "text/*;q=0, */*",
        "text/event-stream;q=-1",
        "text/event-stream;q=nan",
        "application/xml",
        "text/plain",
        "application/json",
        "garbage",
        "text/",
        "application/vnd.ag-ui.event+proto",
    ],
)
def test_who_takes_no_events_is_refused(accept: str) -> None:
    with pytest.raises(RefusedRequestError) as caught:
        negotiate(accept)

    assert caught.value.status_code == 406
    assert caught.value.code == "NOT_ACCEPTABLE"
    assert accept in caught.value.message
    assert "text/event-stream" in caught.value.message


@pytest.mark.spec("ag-ui B.17")
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "text/json",
        "application/vnd.acme.run+json",
        "application/a+b+json",
    ],
)
def test_json_is_taken(content_type: str | None) -> None:
    check_content_type(content_type)


@pytest.mark.spec("ag-ui B.16")
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json5", "json"]
)
def test_anything_else_is_refused_with_what_was_found(content_type: str) -> None:
    with pytest.raises(RefusedRequestError) as caught:
        check_content_type(content_type)

    assert caught.value.status_code == 415
    assert content_type in caught.value.message


def test_a_missing_content_type_may_be_refused() -> None:
    with pytest.raises(RefusedRequestError):
        check_content_type(None, is_required=True)
