"""Arguments of wrong types: each is refused with one sentence that names the argument."""

from __future__ import annotations

import pytest

from tests.support import programs


@pytest.mark.campaign
def test_every_wrong_type_is_named() -> None:
    [answer] = programs.answers(programs.start("wrong_arguments", num_devices=1))
    assert answer["num_calls"] >= 600
    assert not answer["wrong_answers"], "\n".join(answer["wrong_answers"])
