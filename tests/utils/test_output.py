"""Other libraries are silent while this package works, and say afterwards what they did before."""

import logging

import pytest

from xcit_mm.utils.output import quiet


@pytest.mark.parametrize("disabled", [logging.NOTSET, logging.CRITICAL])
def test_logs_are_silent_inside_and_as_before_outside(disabled, caplog):
    logging.disable(disabled)
    try:
        with quiet():
            logging.getLogger("other").error("hidden")
            assert logging.root.manager.disable == max(disabled, logging.ERROR)
        assert logging.root.manager.disable == disabled
    finally:
        logging.disable(logging.NOTSET)
    assert not caplog.records
