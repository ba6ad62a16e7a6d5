"""Character classes for regular expressions: scripts without spaces between words, and marks inside words."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese; these scripts have no spaces between words."""
MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff"
    "\u0f71-\u0f84\u0f8d-\u0fbc\u200c\u200d"
)
r"""Combining marks in words of Indic, Arabic, Hebrew and Tibetan scripts, which `\w` does not match."""
