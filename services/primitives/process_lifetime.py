"""Ends a process with the one that started it, or starts one when that has ended.

Run as a program this is the launcher, which becomes the command. `ending_with_us` uses the kernel's
parent death signal (Linux only): the kernel keeps the setting over an exec, so any program can be
started so, and there is no moment at which it would be missed: a parent that has ended before is
seen by its number. `starting_after_us` waits for the end of its standard input, a pipe whose other
end the parent holds: the kernel closes it however the parent ended.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

AT_END_OF_INPUT: Final = "at-end-of-input"
PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""


def ending_with_us(command: Sequence[str]) -> tuple[str, ...]:
    """The command that is killed when this process ends; elsewhere than on Linux as it is.

    To the kernel it is the thread that counts. Processes are started in the event loop's thread,
    which is the main one.
    """
    if sys.platform != "linux":
        return tuple(command)
    # Isolated and without `site`: what is needed is in the standard library, and it takes 20 ms.
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def starting_after_us(command: Sequence[str]) -> tuple[str, ...]:
    """The command, started when the other end of its standard input is closed."""
    return (sys.executable, "-I", "-S", __file__, AT_END_OF_INPUT, *command)


def become(parent: int, command: Sequence[str]) -> None:
    """Set the death signal, and become the command unless the parent has ended already."""
    import ctypes  # noqa: PLC0415 - the launcher's alone

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        sys.stderr.write(f"{command[0]} will outlive a killed parent: prctl: {reason}\n")
    # Checked afterwards: from here on the kernel reports the parent's end.
    if os.getppid() == parent:
        os.execvp(command[0], tuple(command))  # noqa: S606


def wait(command: Sequence[str]) -> None:
    """Become the command at the end of standard input."""
    while os.read(0, 1):
        pass
    os.execvp(command[0], tuple(command))  # noqa: S606


if __name__ == "__main__":
    if sys.argv[1] == AT_END_OF_INPUT:
        wait(sys.argv[2:])
    else:
        become(int(sys.argv[1]), sys.argv[2:])
