"""Errors that are the user's to mend, as opposed to ours."""


class SpatialError(Exception):
    """Something the user can mend: names the file, key or line, and the remedy. The command line exits with code 2."""
