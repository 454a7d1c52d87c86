import inspect
import textwrap

import pytest

from fastapi_carmy.docstrings import Documentation, read_docstring

GOOGLE = """Place an order.

    It is sent at once.

    Note:
        Not on Sundays.

    Args:
        sku: Stock-keeping unit, as
            `search` returns it.
        quantity (int, optional): How many.
        gift:

    Returns:
        The order.

    Raises:
        without a colon
    """

NUMPY = """Place an order.

    Parameters
    ----------
    sku : str
        Stock-keeping unit.

    Returns
    -------
    Order
        The order.
    """

REST = """Place an order.

    :param sku: Stock-keeping unit.
    :returns: The order.
    """


def test_a_google_docstring_is_a_description_and_its_arguments() -> None:
    assert read_docstring(GOOGLE) == Documentation(
        description=("Place an order.\n\nIt is sent at once.\n\nNote:\n    Not on Sundays."),
        arguments={
            "sku": "Stock-keeping unit, as\n`search` returns it.",
            "quantity": "How many.",
        },
    )


@pytest.mark.parametrize("text", [NUMPY, REST])
def test_other_styles_are_read_too(text: str) -> None:
    assert read_docstring(text) == Documentation(
        description="Place an order.", arguments={"sku": "Stock-keeping unit."}
    )


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST])
def test_indentation_which_newer_pythons_strip_does_not_matter(text: str) -> None:
    stripped = inspect.cleandoc(text)
    deeper = textwrap.indent(text, "    ").lstrip()

    assert read_docstring(stripped) == read_docstring(text) == read_docstring(deeper)


@pytest.mark.parametrize("text", [None, "", "   "])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert read_docstring(text) == Documentation()


def test_arguments_in_prose_describe_none_of_them() -> None:
    text = "Find.\n\nArgs:\n    see the manual\n"

    assert read_docstring(text) == Documentation(description="Find.")


def test_a_paragraph_right_below_the_first_line_stays_there() -> None:
    assert read_docstring("Find things\nthat are lost.").description == (
        "Find things\nthat are lost."
    )
