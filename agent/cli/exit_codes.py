"""What `numawarden` exits with. Scripts may rely on these numbers."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of every command."""

    OK = 0
    #: The answer is no: the pod was refused, what was compared differs, the agent has problems.
    REFUSED = 1
    #: The command line is wrong.
    USAGE = 2
    #: A manifest, configuration, state or host tree is wrong, or a file cannot be read.
    BAD_INPUT = 3
    #: The agent does not answer: not running, no permission, or it broke off.
    UNREACHABLE = 4
    #: The environment does not allow it: no root, no cgroup v2, socket in use and the like.
    ENVIRONMENT = 5
    #: The agent knows no such pod or container.
    NOT_FOUND = 6
    #: The pod is admitted, but the kernel does not yet honour its grant.
    NOT_ENFORCED = 7
    #: The agent answered that it failed; its log says more.
    AGENT_FAILED = 8
    #: Interrupted from the keyboard (128 + SIGINT).
    INTERRUPTED = 130
