"""What can go wrong with the files of a dataset, each told in one line."""


class DataError(OSError):
    """A dataset's file is damaged, incomplete, not the official one, or cannot be fetched."""


class DataNotFoundError(DataError, FileNotFoundError):
    """None of the places where a dataset could be holds it."""
