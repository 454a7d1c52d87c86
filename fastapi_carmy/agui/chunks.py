"""Streams told in chunks: which one an event continues, opens or ends.

A chunk names its stream only when it opens it, so the streams live in lanes, one a
subagent and one for the agent itself (`None`), and each lane has at most one.

Source: AG-UI 1.0; the same reading as the reference client's chunk expansion.
"""

from dataclasses import dataclass

from fastapi_carmy.agui.rules import violation

__all__ = ("Chunk", "Lanes", "Stream")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a chunk event says of its stream."""

    event_type: str
    kind: str
    entity_id: str | None
    owner: str | None
    first: tuple[str | None, str | None]
    """What only the first chunk needs: role and name, or tool and parent message."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream that is being told in chunks."""

    kind: str
    entity_id: str
    first: tuple[str | None, str | None]


class Lanes:
    """The open chunk streams, by owner."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: dict[str | None, Stream] = {}

    def __bool__(self) -> bool:
        return bool(self._streams)

    def holds(self, kind: str, entity_id: str) -> bool:
        """Whether `entity_id` is being told in chunks."""
        return any(
            stream.kind == kind and stream.entity_id == entity_id
            for stream in self._streams.values()
        )

    def close(self, owner: str | None) -> None:
        """End the stream of one lane, if there is one."""
        self._streams.pop(owner, None)

    def close_all(self) -> None:
        """End every stream."""
        self._streams.clear()

    def lane_of(self, chunk: Chunk) -> str | None:
        """Return the lane that a chunk belongs to.

        Raises:
            ProtocolViolationError: If its tag contradicts its id, or several would do.
        """
        if chunk.entity_id is not None:
            return self._lane_by_id(chunk, chunk.entity_id)

        if chunk.owner is not None:
            return chunk.owner

        lanes = [owner for owner, stream in self._streams.items() if stream.kind == chunk.kind]

        if None in lanes or not lanes:
            return None

        if len(lanes) > 1:
            raise violation(chunk.event_type, "ambiguous-chunk")

        return lanes[0]

    def continues(self, chunk: Chunk, lane: str | None) -> bool:
        """Whether a chunk continues the stream of its lane.

        Raises:
            ProtocolViolationError: If it changes what the first chunk said.
        """
        stream = self._streams.get(lane)

        if stream is None or stream.kind != chunk.kind:
            return False

        if chunk.entity_id is not None and chunk.entity_id != stream.entity_id:
            return False

        for said, before in zip(chunk.first, stream.first, strict=True):
            if said is not None and said != before:
                raise violation(chunk.event_type, "chunk-mismatch", stream.entity_id)

        return True

    def open(self, chunk: Chunk, lane: str | None, entity_id: str) -> None:
        """Let a chunk open a stream; the one before it in the lane ends."""
        said, more = chunk.first

        # An absent role means assistant, so a later chunk may say that.
        if chunk.kind == "message" and said is None:
            said = "assistant"

        self._streams.pop(lane, None)
        self._streams[lane] = Stream(chunk.kind, entity_id, (said, more))

    def _lane_by_id(self, chunk: Chunk, entity_id: str) -> str | None:
        for owner, stream in self._streams.items():
            if stream.kind == chunk.kind and stream.entity_id == entity_id:
                if chunk.owner is not None and chunk.owner != owner:
                    raise violation(chunk.event_type, "owner-mismatch", entity_id)

                return owner

        return chunk.owner
