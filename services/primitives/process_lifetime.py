"""Ends a process with the one that started it, however that ended; by the kernel, on Linux alone.

Run as a program this is the launcher, which becomes the command. The kernel keeps the setting
over an exec, so any program can be started so, and there is no moment at which it would be missed:
a parent that has ended before is seen by its number.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

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


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
