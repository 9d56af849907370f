import os
import pty
import subprocess
import sys
import termios

from pucache.cli.progress import ERASE

WORK = """
import time
from pucache.cli.progress import Line
with Line() as shown:
    shown.start(3, "embedding")
    shown.remark("a remark that is longer than the line of the terminal")
    for _ in range(3):
        time.sleep(0.11)
        shown.advance(1)
"""


def test_on_a_terminal_one_line_is_written_anew_and_erased_at_the_end():
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 60))
    subprocess.run([sys.executable, "-c", WORK], stderr=terminal, check=True)
    shown = os.read(reader, 4096).decode().split(ERASE)
    assert [text[:13] for text in shown] == ["", "embedding 1/3", "embedding 2/3", "embedding 3/3", ""]
    assert max(map(len, shown)) == 59 and "\n" not in "".join(shown)
