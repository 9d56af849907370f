"""Python scripts that are killed while they work."""

import signal
import subprocess
import sys
import time


def run_and_kill(script, *arguments, seconds):
    """Kill a script `seconds` after it has printed "ready"; whether that came before its end."""
    process = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    time.sleep(seconds)
    process.kill()
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0
