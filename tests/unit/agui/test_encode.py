"""Events as bytes: what the SDK writes, without what no client may get."""

import math
from typing import Any

import pytest
from ag_ui import core
from ag_ui.encoder import EventEncoder
from pydantic_core import from_json

from fastapi_carmy.agui.encode import encode_event, format_frame
from fastapi_carmy.agui.errors import EventEncodingError, EventError


def told(frame: bytes) -> Any:
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    return from_json(frame[6:])


@pytest.mark.spec("ag-ui K.138")
@pytest.mark.parametrize(
    ("payload", "frame"),
    [
        ("one", b"data: one\n\n"),
        ("one\ntwo", b"data: one\ndata: two\n\n"),
        ("one\r\ntwo", b"data: one\ndata: two\n\n"),
        ("one\rtwo", b"data: one\ndata: two\n\n"),
        ("one\n", b"data: one\ndata: \n\n"),
        ("", b"data: \n\n"),
    ],
)
def test_a_payload_is_a_data_line_for_each_of_its_lines(payload: str, frame: bytes) -> None:
    assert format_frame(payload) == frame


@pytest.mark.spec("ag-ui K.138")
def test_an_event_is_one_line_of_json() -> None:
    event = core.TextMessageEndEvent(message_id="msg-1")

    assert encode_event(event) == b'data: {"type":"TEXT_MESSAGE_END","messageId":"msg-1"}\n\n'


@pytest.mark.spec("ag-ui K.134")
@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\rb", "data: ", "\n\n: ", '\t"\\', "\u2028"])
def test_text_arrives_as_it_was(text: str) -> None:
    assert (
        told(encode_event(core.TextMessageContentEvent(message_id="m", delta=text)))["delta"]
        == text
    )


@pytest.mark.spec("ag-ui K.140")
@pytest.mark.parametrize(
    "event",
    [
        core.TextMessageStartEvent(message_id="m", role="assistant", name="n", timestamp=1),
        core.ToolCallResultEvent(
            message_id="m",
            tool_call_id="c",
            role="tool",
            content=[
                core.TextPart(type="text", text="x"),
                core.ImagePart(
                    type="image",
                    source=core.UrlSource(type="url", value="u", mime_type="image/png"),
                ),
            ],
        ),
        core.StateDeltaEvent.model_validate(
            {"delta": [{"op": "replace", "path": "/a", "value": None}]}
        ),
        core.MessagesSnapshotEvent.model_validate(
            {"messages": [{"id": "1", "role": "user", "content": "x", "metadata": {"a": None}}]}
        ),
        core.CustomEvent(name="n", value=None),
        core.RawEvent(event={"a": None}, source="s", metadata={"k": None}),
        core.RunFinishedEvent.model_validate(
            {
                "threadId": "t",
                "runId": "r",
                "outcome": {
                    "type": "interrupt",
                    "interrupts": [
                        {"id": "i", "reason": "x", "responseSchema": {}, "expiresAt": "2030"}
                    ],
                },
                "usage": [{"inputTokens": 0}],
            }
        ),
        core.RunStartedEvent.model_validate(
            {
                "threadId": "t",
                "runId": "r",
                "input": {"threadId": "t", "runId": "r", "messages": [], "state": {"a": None}},
            }
        ),
        core.ActivitySnapshotEvent(
            message_id="m", activity_type="x", content={"a": 1.5}, replace=False
        ),
        core.SubagentFinishedEvent.model_validate(
            {"subagentRunId": "s", "outcome": {"type": "suspended", "interruptIds": ["i"]}}
        ),
    ],
    ids=lambda event: event.type.value,
)
def test_the_bytes_are_the_sdks(event: core.BaseEvent) -> None:
    assert encode_event(event) == EventEncoder().encode(event).encode()


def test_nulls_of_the_application_stay() -> None:
    event = core.StateSnapshotEvent(snapshot={"a": None, "b": [None]})

    assert told(encode_event(event)) == {
        "type": "STATE_SNAPSHOT",
        "snapshot": {"a": None, "b": [None]},
    }
    assert told(encode_event(core.CustomEvent(name="n", value=None)))["value"] is None


def test_an_unknown_member_without_a_value_is_left_out() -> None:
    event = core.CustomEvent.model_validate({"name": "n", "value": 1, "new": None, "newer": 2})

    assert told(encode_event(event)) == {"type": "CUSTOM", "name": "n", "value": 1, "newer": 2}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a\ud800b", "a\ufffdb"),
        ({"k\ud800": ["\udfff", ("\ud800",)]}, {"k\ufffd": ["\ufffd", ["\ufffd"]]}),
        ("\ud83d\ude00", "\N{GRINNING FACE}"),
    ],
)
def test_a_lone_surrogate_becomes_a_replacement_character(value: object, written: object) -> None:
    assert told(encode_event(core.CustomEvent(name="n", value=value)))["value"] == written


def test_a_lone_surrogate_inside_a_model_is_mended_too() -> None:
    part = core.TextPart(type="text", text="a\ud800")
    event = core.ToolCallResultEvent(
        message_id="m\ud800", tool_call_id="c", role="tool", content=[part]
    )

    assert told(encode_event(event))["content"] == [{"type": "text", "text": "a\ufffd"}]
    assert told(encode_event(core.CustomEvent(name="n", value=part)))["value"]["text"] == "a\ufffd"


def test_numbers_that_json_has_not_become_null() -> None:
    event = core.CustomEvent(name="n", value=[math.nan, math.inf])

    assert told(encode_event(event))["value"] == [None, None]


class Looped:
    """Holds itself, as a list."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self.items.append(self.items)


@pytest.mark.parametrize("value", [object(), b"\xff", Looped().items, {1: object()}])
def test_what_json_can_not_hold_is_an_error(value: object) -> None:
    with pytest.raises(EventEncodingError, match="CUSTOM"):
        encode_event(core.CustomEvent(name="n", value=value))


def test_an_event_with_a_value_of_another_type_is_an_error() -> None:
    event = core.TextMessageContentEvent(message_id="m", delta="x")
    event.delta = 5  # type: ignore[assignment]

    with pytest.raises(EventError, match="TEXT_MESSAGE_CONTENT"):
        encode_event(event)

    with pytest.raises(EventError):
        encode_event(core.TextMessageContentEvent.model_construct(message_id="m"))


def test_only_events_are_encoded() -> None:
    with pytest.raises(EventError, match="dict"):
        encode_event({"type": "CUSTOM"})  # type: ignore[arg-type]
