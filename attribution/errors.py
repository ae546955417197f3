"""The one exception whose message is meant for the person at the screen."""

from __future__ import annotations


class UserError(Exception):
    """One clear sentence that names what is wrong and what to change.

    Everything that a user can cause (an empty text, an unknown model, a full disk) is raised as
    this, so that pages and the command line can show the message as it is; any other exception
    is a defect and is shown without details.
    """


class Stopped(UserError):
    """`should_stop` said so before the result was there."""
