"""The exception for a user's mistake."""


class UserError(ValueError):
    """Bad input or bad settings: one sentence that says what was expected, what was found and what to do.

    The command line prints the sentence and ends with status 2; from Python it is a `ValueError`.
    """
