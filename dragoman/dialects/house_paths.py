"""The paths that are of one house alone. The houses are loaded with the first request of one."""

NEXUS = "/api/v1/a2a"
R = "/api/a2a"
CORVID_SEND = "/a2a/tasks/send"
CORVID_TASK = "/a2a/tasks/"
