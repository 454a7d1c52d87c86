"""The tests on the page about testing are tests, so they pass."""

from docs.snippets.how_to.testing import (
    test_the_function_is_still_a_function,
    test_the_tool_through_the_whole_pipeline_without_http,
    test_the_wire,
)

__all__ = (
    "test_the_function_is_still_a_function",
    "test_the_tool_through_the_whole_pipeline_without_http",
    "test_the_wire",
)
