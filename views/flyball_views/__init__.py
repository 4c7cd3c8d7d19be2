"""What people are shown of a cluster: its caps, nodes and jobs as rows, and why each stands as it does.

Pure: from the objects as `flyball_api` reads them to frozen structs, with no I/O and no clock of their own. The command
line's tables, the terminal view and the status page all show the same rows, and none of them reads a status by itself.
What is not known is None, and every figure that may be old comes with the time by which one can tell.
"""
