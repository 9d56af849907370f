import re

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers.command_line import run

from pucache.cli.main import SENTENCES, main
from pucache.cli.removed import REMOVED

GONE = [(command, option, instead) for command, options in REMOVED.items() for option, instead in options.items()]


def options_of(commands):
    return {option for name in commands for one in main.commands[name].params for option in one.opts}


@pytest.mark.parametrize(("command", "option", "instead"), GONE, ids=str)
def test_what_went_is_one_line_that_names_what_works(command, option, instead):
    ended = run(f"{command} {option} 1", 2)
    assert ended.stderr == f"Error: {command} has no {option} any more: {instead}\n"
    named = {name for name in SENTENCES if re.search(rf"(?<![-\w]){name}(?![-\w])", instead)}
    assert set(re.findall(r"--[a-z-]+", instead)) <= options_of({command, *named})
    for name, value in re.findall(r"(--[a-z-]+) ([a-z]+)", instead):
        for one in main.commands[command].params:
            if name in one.opts and isinstance(one.type, click.Choice):
                assert value in one.type.choices


def test_what_went_is_no_option_of_its_command():
    for command, options in REMOVED.items():
        assert not options_of([command]) & options.keys()


def test_another_unknown_option_or_value_is_told_with_the_usage():
    for wrong in ("embed --no-such-option", "retrieve-positives --by colour", "train-pu c.h5 --seed -1"):
        assert f"Usage: pucache {wrong.split()[0]}" in run(wrong, 2).stderr


@pytest.mark.parametrize("error", [np.linalg.LinAlgError("SVD did not converge"), torch._C._LinAlgError("eigh")])
def test_a_decomposition_that_fails_names_the_cache_as_the_cause(monkeypatch, error):
    def fails(path):
        raise error

    monkeypatch.setattr("pucache.cli.info.run", fails)
    ended = CliRunner().invoke(main, ["info", "c.h5"])
    assert ended.exit_code == 1 and "overwritten while it was read; pucache verify FILE tells" in ended.output
