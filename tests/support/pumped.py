"""Texts in which one unit repeats: time and memory for them should grow with their length."""

from __future__ import annotations

import string
from typing import NamedTuple


class Pumped(NamedTuple):
    """A text of any length: a beginning, a repeated unit, what closes every unit, and an end.

    `{}` in a unit is the number of the unit.
    """

    unit: str
    head: str = ""
    close: str = ""
    tail: str = ""

    def text(self, size: int) -> str:
        """The text with about `size` characters."""
        if "{}" in self.unit:
            number = size // (len(self.unit) + 2)
            units = "".join(self.unit.replace("{}", str(index)) for index in range(number))
        else:
            number = size // len(self.unit + self.close)
            units = self.unit * number
        return self.head + units + self.close * number + self.tail


_BLANKS = str.maketrans("␣↵⇥□", " \n\t\u3000")
# One text a word: its unit, or `unit⋯close`, or `head⋯unit⋯tail`. These signs stand for blanks: ␣↵⇥□
_UNITS = r"""
    a 0 A Z ␣ ↵ ⇥
    a␣ a↵ a.␣ a. a.↵ a↵↵ A↵ 0↵ 0␣ 1, 1. 1.1 0- 0␣0␣ a, a; a- a@ @a a@a. http:// https://a. www. a/ a= a: a:␣ :␣ :// %20
    &amp; &# the␣ click␣here␣ 1␣like␣ 1␣likes↵ read␣more↵ sign␣in↵ cookie␣policy␣ lorem␣ipsum␣ !!! ... ?! … ." .) !!␣
    a!↵ 。␣ 中国 中。 \a \a␣ \a{ \a{x} \ \\ \% %↵ a%↵ %␣a↵ \input \input␣ \input{a} \input␣a␣ \import{a} \title \title␣
    \title[ \title{ \title{a} \section $ $$ \section␣ \section{ \section*{a} \begin{x} \begin{verbatim} \verb| \verb|a
    \end{x} \iffalse \iffalse␣ \iffalse\fi␣ \else \fi \if \def\a{ \def\a{x} \def\a{\a} \newcommand{\a}{
    \newcommand{\a}[1][ \newcommand\a{a}\a \let\a\b \document \documentclass \begin{thebibliography} \bibliography
    \bibliography{ \printbibliography[ \section{References} \begin{appendix} \appendix \maketitle \endinput a\endinput␣
    {\a [] #1 \# {{ {{{ {{x| {{x|a}} {{x|↵ }} {{disambig| {{disambig␣ {{a␣ [[ [[a| [[a]] ]] [http://a␣ [[File:a| {| {|↵
    |}↵ |-↵ |a↵ <ref <ref> <ref␣name=a <ref/> <nowiki> #redirect #redirect␣ #redirect␣[[ == =␣a↵ =a =a=↵ ==a==↵ ==␣ =a␣
    * *a↵ #a↵ :; ;a: '' '''a __ __A __A__ ---- <!-- <!----> <math> <math>a</math> -{ ~~~~ (, (␣ (; ,␣, ␣, ␣. [␣ | || !!
    {{!}} {{convert|1| < <a <a> <a␣ <a␣b= <a␣b=' <a␣b=" </ </a> <a/> <p> <div> <b>a <br> <li>a <table> <table><tr><td>
    <ul><li> <title <title> <title␣ <title></title <script> <style> <pre> <pre>a <article␣data-score= <select> <form>
    <svg> <template> & &lt charset= <! <a␣href='b'>a</a>␣ <p>a␣word␣of␣text.</p>↵ <i><p> <a><p> </p> <![CDATA[ <?
    #coding= #coding #␣coding=a↵ #␣a↵ #! #!/a↵ /* /**/ /*␣*/␣ // //↵ //␣a↵ -- --↵ --a↵ ;↵ %a↵ (* (**) {- {--} <?php↵
    <?xml↵ <!doctype↵ ''' copyright␣ (c) (c)␣ license␣ licensed␣under␣ generated␣by␣ do␣not␣ mit␣ gnu␣ SPDX-
    SPDX-License-Identifier:␣ MIT␣OR␣ (MIT)␣ apache␣license␣ version␣2 a.a. License:␣ Classifier:␣License␣::␣a↵ x=[ x={
    [a. [[a]]↵ a.a=1↵ {"a": [" {"a":1}, def␣a():↵ if␣a:↵␣ a( not␣ lambda: -a f'{ a␣if␣a␣else␣
    ***␣START␣OF␣THE␣PROJECT␣GUTENBERG␣ ***␣START␣OF␣THE␣PROJECT␣GUTENBERG␣EBOOK␣***↵ *END*THE␣SMALL␣PRINT
    End␣of␣Project␣Gutenberg↵ produced␣ produced↵a↵ ␣↵ ↵↵␣↵ ↵␣↵ <|im_start|> <|im_start|>user↵ <|im_end|>↵ User:↵
    ↵↵Assistant:↵ ###␣Response:↵ a{}␣ a{}↵ a{}.↵ ␣a{}=b ␣a{}='b' <a{}> <a␣b={}> &#{}; [[a{}]] {{a{}}} {{a{}| =={}==↵
    <1␣ <?␣ <ol><li>a {{disambig|a {|↵|a↵ 电话1 a%40 \"a\": &quot; password=a␣ eyJa. +1␣ 1.2.3. a=40b.c ```↵
    \a{}␣ \def\a{}{b} <ref␣name={}> <ref␣name={}/> a{}=1↵ [a{}]↵ "a{}":1, #{}↵ a.a{}↵
"""
_NESTED = r"""
    (⋯) [⋯] {⋯} [[⋯]] [[a|⋯]] {{⋯}} {{a|⋯}} ''⋯'' <div>⋯</div> <b>⋯</b> <ul><li>⋯</li></ul>
    <table><tr><td>⋯</td></tr></table> <ref>⋯</ref> {|↵⋯|}↵ \a{⋯} \begin{x}⋯\end{x} \iffalse␣⋯\fi␣ “⋯” {"a":⋯} /*⋯*/
    \def\a{⋯} x␣=␣[⋯] <blockquote>⋯</blockquote> <ol><li>a⋯</ol> {{disambig|⋯}} -{⋯}-
"""
_BETWEEN = r"""
    {{x|⋯␣⋯}} {{x|⋯⇥⋯}} <p>a</p><a⋯␣b{}=c⋯>a</a> {"text":␣"a"⋯,␣"a{}":␣1⋯} \title⋯␣⋯ \title{⋯␣⋯ \title{⋯\a⋯}
    \section⋯␣⋯ \section{⋯␣⋯ \section*⋯↵⋯x \input⋯␣⋯ \input{⋯../⋯} \printbibliography⋯␣⋯ \bibliography{⋯a⋯
    \newcommand⋯␣⋯ \newcommand{\a}⋯␣⋯[ \documentclass{a}\newcommand\a{aaaaaaaaaa}⋯\a⋯ \def\a#1{#1#1}⋯\a{⋯
    \def\a#1{#1}⋯\a⋯{x} {{disambig⋯␣⋯ {{disambig|⋯␣⋯{ {{⋯␣⋯ #redirect⋯␣⋯ #⋯␣⋯ =a⋯␣⋯ ==a⋯␣⋯b ==a⋯=␣⋯b ==␣⋯=⋯␣b
    {{convert|⋯1⋯x __⋯A⋯ <ref⋯␣⋯ <br⋯␣⋯ </p⋯␣⋯ [⋯␣⋯ (⋯␣⋯ a⋯␣⋯b a⋯⇥⋯b a⋯↵⋯b a⋯□⋯b click␣here⋯␣⋯a read␣more⋯!⋯a sign⋯␣⋯a
    1⋯␣⋯a 1⋯1⋯x 1⋯1,⋯x a⋯!⋯x a.⋯"⋯x <title>⋯a⋯ <title>⋯<⋯ <title⋯␣a⋯ <a⋯␣b⋯> <a⋯␣b=c⋯> <a␣b='⋯c⋯
    <html><body>⋯<p>a</p>⋯</body></html> <meta␣charset⋯␣⋯x charset=⋯a⋯ #!⋯a⋯ #⋯coding⋯ /*⋯*⋯ <!--⋯-⋯ copyright⋯␣⋯
    generated␣by⋯␣⋯ SPDX-License-Identifier:⋯␣⋯ License:⋯␣⋯ #␣⋯-⋯ a⋯.a⋯=1 [a⋯.a⋯] a␣=␣⋯[⋯ a␣=␣⋯{a=⋯ a␣=␣'⋯a⋯
    ***␣START␣OF␣THE␣PROJECT␣GUTENBERG⋯a↵⋯ ***␣START␣OF␣THE␣PROJECT␣GUTENBERG␣a␣***↵Produced⋯␣⋯
    ***␣START␣OF␣THE␣PROJECT␣GUTENBERG␣a␣***↵Produced⋯↵␣↵⋯ *END⋯␣⋯ *END⋯*⋯ https://⋯a⋯ https://a⋯.a⋯ mailto:⋯a⋯@ a@⋯a.⋯
    +⋯1␣⋯ +⋯(1)⋯
"""
_OTHERS = (
    *"\r\f\v\0\x1c\x85\xa0\xad\u0301\u0663\u200b\u200d\u2028\u202e\u3000\u3002\u4e2d",
    *"\ue000\ue001\ue002\ufeff\uff01\uff10\U0001d7ce\U0001f600",
    *("a" * 99 + "\n", '"""', "e\u0301", "\ue0001\ue001"),
)


def _pumped(word: str) -> Pumped:
    match word.translate(_BLANKS).split("⋯"):
        case [head, unit, tail]:
            return Pumped(unit, head=head, tail=tail)
        case [unit, close]:
            return Pumped(unit, close=close)
        case _:
            return Pumped(word.translate(_BLANKS))


PUMPED: dict[str, Pumped] = {
    **{word: _pumped(word) for word in (*string.punctuation, *f"{_UNITS} {_NESTED} {_BETWEEN}".split())},
    **{ascii(unit)[1:-1]: Pumped(unit) for unit in _OTHERS},
}
_SHARP = r"""
    a ␣ ↵ . ! a␣ ." <title <title> #coding= {{x| [[ <ref \begin{x} a{}␣ \def\a{⋯} (⋯) <div>⋯</div> {{x|⋯␣⋯}} \title⋯␣⋯
    \section⋯␣⋯ #redirect⋯␣⋯ =a⋯␣⋯ {{disambig|⋯␣⋯{ click␣here⋯␣⋯a 1⋯␣⋯a a⋯.a⋯=1 <p>a</p><a⋯␣b{}=c⋯>a</a> a⋯!⋯x
    <1␣ <?␣ <ol><li>a <ol><li>a⋯</ol> <table> {{disambig| [[⋯]] 电话1 password=a␣ a%40 1.2.3. 中国 @a
"""
SHARP = _SHARP.split()
"""The names of texts that have taken quadratic time, and of common ones: few enough for a test."""
