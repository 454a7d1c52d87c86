"""What a body must be, what is left out of it, and how a refusal is told."""

import logging
from typing import Any

import pytest
from ag_ui import core
from pydantic_core import to_json

from fastapi_carmy.agui.errors import RefusedRequestError
from fastapi_carmy.agui.input import decode


def body(**fields: Any) -> bytes:
    return to_json({"threadId": "t", "runId": "r", "messages": [], **fields})


def user(**fields: Any) -> dict[str, Any]:
    return {"id": "u1", "role": "user", "content": "hi", **fields}


def refusal(sent: bytes) -> str:
    with pytest.raises(RefusedRequestError) as caught:
        decode(sent)
    assert caught.value.status_code == 400
    assert caught.value.code == "INVALID_INPUT"
    return caught.value.message


@pytest.mark.spec("ag-ui B.13")
def test_a_syntax_error_is_told_by_line_and_column() -> None:
    message = refusal(b'{"threadId": ')

    assert "RunAgentInput" in message
    assert "line 1 column 13" in message


@pytest.mark.spec("ag-ui B.14")
def test_a_missing_member_is_named() -> None:
    assert "messages" in refusal(b'{"threadId":"t","runId":"r"}')


@pytest.mark.spec("ag-ui B.15")
@pytest.mark.parametrize("sent", [b"", b"  \n\t"])
def test_an_empty_body_is_told_as_such(sent: bytes) -> None:
    assert "empty" in refusal(sent)


@pytest.mark.parametrize("sent", [b"[]", b'"x"', b"1", b"null"])
def test_a_body_is_an_object(sent: bytes) -> None:
    assert "not a JSON object" in refusal(sent)


@pytest.mark.parametrize("sent", [b"{} x", b"\xff", b'{"state":NaN}', b"[" * 300])
def test_what_is_not_json_is_refused(sent: bytes) -> None:
    assert "RunAgentInput" in refusal(sent)


@pytest.mark.spec("ag-ui B.25")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"state": None, "forwardedProps": None},
        {"state": {}, "forwardedProps": {}},
        {"somethingNewer": 1},
        {"tools": [], "context": []},
        {"threadId": "agent:chat:1", "runId": "1f0-a-b"},
        {"threadId": "", "runId": ""},
        {
            "protocolVersion": None,
            "parentRunId": None,
            "tools": None,
            "context": None,
            "resume": None,
        },
    ],
)
def test_what_clients_send_is_taken(fields: dict[str, Any]) -> None:
    told = decode(body(**fields))

    assert told.run_id == fields.get("runId", "r")
    assert told.model_extra == {}


def test_the_sdks_own_spelling_of_names_is_taken() -> None:
    told = decode(to_json({"thread_id": "t", "run_id": "r", "messages": []}))

    assert told.thread_id == "t"


@pytest.mark.spec("ag-ui B.26")
def test_messages_of_unknown_roles_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        told = decode(body(messages=[{"id": "1", "role": "wizard", "spell": "secret"}, user()]))

    assert [message.id for message in told.messages] == ["u1"]
    assert "messages[0]" in caplog.text
    assert "secret" not in caplog.text
    assert "wizard" not in caplog.text


@pytest.mark.spec("ag-ui B.26")
def test_content_parts_of_unknown_kinds_are_left_out() -> None:
    content = [
        {"type": "hologram", "beam": 1},
        {"type": "text", "text": "a"},
        {"type": "image", "source": {"type": "carrier-pigeon"}},
    ]

    told = decode(body(messages=[user(content=content)]))

    assert told.messages[0].content == [core.TextPart(type="text", text="a")]


@pytest.mark.spec("ag-ui B.26")
@pytest.mark.parametrize(
    ("mime", "given", "expected"),
    [
        ("image/png", {"data": "QQ=="}, ("image", "data", "QQ==")),
        ("audio/wav", {"url": "http://x"}, ("audio", "url", "http://x")),
        ("video/mp4", {"id": "f1"}, ("video", "file", "f1")),
        ("application/pdf", {"data": "QQ=="}, ("document", "data", "QQ==")),
    ],
)
def test_the_old_binary_part_becomes_what_it_is_today(
    mime: str, given: dict[str, str], expected: tuple[str, str, str]
) -> None:
    part = {"type": "binary", "mimeType": mime, "filename": "a.bin", **given}

    told = decode(body(messages=[user(content=[part])]))

    content = told.messages[0].content
    assert isinstance(content, list)
    made = content[0].model_dump(by_alias=True)
    assert (made["type"], made["source"]["type"], made["source"]["value"]) == expected
    assert made["source"]["mimeType"] == mime
    assert made["metadata"] == {"filename": "a.bin"}


def test_a_binary_part_without_a_source_is_left_out() -> None:
    told = decode(body(messages=[user(content=[{"type": "binary", "mimeType": "image/png"}])]))

    assert told.messages[0].content == []


def test_unknown_members_are_left_out_at_every_level() -> None:
    told = decode(
        body(
            extra=1,
            messages=[
                {
                    "id": "a",
                    "role": "assistant",
                    "extra": 1,
                    "toolCalls": [
                        {
                            "id": "c",
                            "type": "function",
                            "extra": 1,
                            "function": {"name": "f", "arguments": "{}", "extra": 1},
                        }
                    ],
                },
                user(
                    extra=1,
                    content=[
                        {
                            "type": "image",
                            "extra": 1,
                            "source": {"type": "url", "value": "x", "extra": 1},
                        }
                    ],
                ),
            ],
            tools=[{"name": "t", "description": "d", "extra": 1, "parameters": {"extra": 1}}],
            context=[{"description": "d", "value": "v", "extra": 1}],
            resume=[
                {"interruptId": "i", "status": "resolved", "payload": {"extra": 1}, "extra": 1}
            ],
            state={"extra": None},
        )
    )

    written = told.model_dump_json(by_alias=True)
    assert written.count('"extra"') == 3
    assert told.tools is not None
    assert told.tools[0].parameters == {"extra": 1}
    assert told.state == {"extra": None}


def test_a_null_where_something_may_be_absent_counts_as_absent() -> None:
    told = decode(
        body(messages=[user(name=None, metadata=None)], tools=[{"name": "t", "description": "d"}])
    )

    assert "null" not in told.model_dump_json(by_alias=True)


@pytest.mark.spec("ag-ui B.27")
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"messages": [{"id": "1", "role": "user"}]}, "messages[0].content: "),
        ({"messages": [user(id=1)]}, "messages[0].id: "),
        ({"messages": [user(content=7)]}, "messages[0].content: "),
        ({"messages": [user(content=[{"type": "text"}])]}, "messages[0].content[0].text: "),
        ({"messages": [user(role=5)]}, "messages[0]: "),
        ({"messages": [user(content=[{"text": "x"}])]}, "messages[0].content[0]: "),
        ({"messages": [7]}, "messages[0]: "),
        ({"messages": {}}, "messages: "),
        ({"messages": [{"id": "1", "role": "new"}, user(id=1)]}, "messages[1].id: "),
        ({"tools": [{"name": "t"}]}, "tools[0].description: "),
        ({"tools": [7]}, "tools[0]: "),
        ({"resume": [{"interruptId": "i", "status": "maybe"}]}, "resume[0].status: "),
        (
            {"messages": [{"id": "1", "role": "assistant", "toolCalls": [{"id": "c"}]}]},
            "messages[0].toolCalls[0].",
        ),
        (
            {"messages": [{"id": "1", "role": "assistant", "toolCalls": [7]}]},
            "messages[0].toolCalls[0]: ",
        ),
        ({"messages": [user(content=[7])]}, "messages[0].content[0]: "),
        (
            {"messages": [user(content=[{"type": "image", "source": 7}])]},
            "messages[0].content[0].source: ",
        ),
    ],
)
def test_a_wrong_value_is_told_by_its_place(fields: dict[str, Any], place: str) -> None:
    assert f"RunAgentInput: {place}" in refusal(body(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"threadId": 424242},
        {"messages": [user(role=424242)]},
        {"messages": [user(content=424242)]},
        {"messages": [user(content=[{"type": 424242}])]},
        {"resume": [{"interruptId": "i", "status": "424242"}]},
    ],
)
def test_a_refusal_never_repeats_what_was_sent(fields: dict[str, Any]) -> None:
    assert "424242" not in refusal(body(**fields))


def test_another_version_is_served_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        told = decode(body(protocolVersion="1.7"))

    assert told.protocol_version == "1.7"
    assert "another AG-UI version" in caplog.text
