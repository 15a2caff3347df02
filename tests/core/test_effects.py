"""What came of a publish, and whether trying again can change it."""

import pytest

from carom.core.effects import CONFIRMED, NACKED, Nacked, Returned, Unknown, lasts


@pytest.mark.parametrize(
    "result",
    [
        Nacked("too large", lasting=True),
        Returned(311, "CONTENT_TOO_LARGE"),
        Returned(406),
        Returned(502),
        Returned(540),
    ],
)
def test_what_is_wrong_with_the_message_itself_lasts(result):
    assert lasts(result)


@pytest.mark.parametrize("result", [CONFIRMED, NACKED, Returned(), Returned(404), Returned(403), Unknown("no answer")])
def test_what_may_be_mended_does_not_last(result):
    assert not lasts(result)
