import pytest
from helpers.command_line import run

from pucache.cli.main import REMOVED, main

GONE = [(command, option, instead) for command, options in REMOVED.items() for option, instead in options.items()]


@pytest.mark.parametrize(("command", "option", "instead"), GONE, ids=str)
def test_an_option_that_went_is_one_line_that_says_what_to_do_instead(command, option, instead):
    ended = run(f"{command} {option} 1", 2)
    assert ended.stderr == f"Error: {command} has no {option} any more: {instead}\n"


def test_what_went_is_no_option_of_its_command():
    taken = {(name, option) for name in REMOVED for one in main.commands[name].params for option in one.opts}
    assert not taken & {(command, option) for command, option, _ in GONE}


def test_another_unknown_option_is_told_with_the_usage():
    told = run("embed --no-such-option", 2).stderr
    assert "Usage: pucache embed" in told and "No such option" in told
