"""Runs one server, and ends it with all its children when the process that asked for it stops or
dies. Run as a script; standard library only.

    python guard.py USER PATIENCE SIGNAL COMMAND...

stdin is a pipe whose other end the asking process holds. It closes when that process closes it or
dies. The server then gets SIGNAL and PATIENCE seconds, and its remains are killed. If a server ends
by itself, or by kill -9, its remains are killed at once.

Nothing escapes. As a child subreaper this process inherits every orphan below it (PostgreSQL's
backends leave the process group), and it ends only when it has no child left. If it is killed
itself, the kernel kills the server (PR_SET_PDEATHSIG), and its backends notice.

USER is `-`, or the user that the server runs as. stdout gets one line, the server's process id;
stderr is the server's log.
"""

import contextlib
import ctypes
import os
import pwd
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _become_server(guard: int, user: str, command: list[str]) -> None:
    """Run in the child: change to the user, ask to die with the guard, become the server."""
    null, log = os.open(os.devnull, os.O_RDONLY), 2
    os.dup2(null, 0)
    os.dup2(log, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if user != "-":
        entry = pwd.getpwnam(user)
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)
    # After the change of user, which clears it; and the guard may have died before it was set.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    os.execv(command[0], command)  # noqa: S606  (a list, no shell)


def _children() -> list[int]:
    """Return living and dead children of this process: as a subreaper it is every orphan's
    parent.
    """
    me = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


def _reap() -> set[int]:
    """Return the process ids of ended children."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.add(pid)
    return ended


def _kill_all() -> None:
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def main() -> None:
    user, patience, ending, command = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))

    guard = os.getpid()
    server = os.fork()
    if server == 0:
        try:
            _become_server(guard, user, command)
        except OSError as error:
            os.write(2, f"cannot start {command[0]} as {user}: {error}\n".encode())
        os._exit(127)
    os.write(1, f"{server}\n".encode())
    os.close(1)

    deadline = None
    while True:
        ready = select.select(
            [0, woken] if deadline is None else [woken], [], [], deadline and deadline - time.monotonic()
        )[0]
        if woken in ready:
            os.read(woken, 4096)
        if server in _reap():
            break
        if deadline is None and (asked_to_stop or (0 in ready and not os.read(0, 4096))):
            os.kill(server, ending)
            deadline = time.monotonic() + patience
        if deadline is not None and time.monotonic() >= deadline:
            break
    _kill_all()


if __name__ == "__main__":
    main()
