"""Words that wikis use for files, categories, redirects and link sections, in the languages of LLaMA's Wikipedia.

The languages are bg, ca, cs, da, de, en, es, fr, hr, hu, it, nl, pl, pt, ro, ru, sl, sr, sv and uk; words for files and
categories also in ja, ko, tr, vi and zh.
"""

from __future__ import annotations


def _names(listed: str) -> tuple[str, ...]:
    """Split at semicolons and line ends."""
    return tuple(filter(None, map(str.strip, listed.replace("\n", ";").split(";"))))


FILES_AND_CATEGORIES = frozenset(
    _names("""
    file; image; media; category
    файл; картинка; медия; категория
    fitxer; imatge; categoria
    soubor; obrázok; kategorie
    fil; billede; bild; kategori
    datei; kategorie
    archivo; imagen; categoría
    fichier; catégorie
    datoteka; slika; kategorija
    fájl; kép; kategória
    immagine; bestand; afbeelding; categorie
    plik; grafika; kategoria
    ficheiro; arquivo; imagem
    fișier; fişier; imagine
    изображение; датотека; слика; категорија
    зображення; категорія
    dosya; resim; tập tin; thể loại; ファイル; 画像; 파일; 그림; 분류; 文件; 图像; 檔案; 分类; 分類
    """)
)
REDIRECTS = _names("""
    redirect; виж; пренасочване; redirecció; přesměruj; tam; omdiriger; omstilling; weiterleitung; redirección
    redirección a; redirection; preusmjeri; átirányítás; ujratérés; rinvia; rimando; doorverwijzing; patrz; przekieruj
    redirecionamento; redirecteaza; перенаправление; перенапр; preusmeritev; preusmeri; преусмери; omdirigering
    перенаправлення; перенаправити
    """)
"""Words between the hash sign and the link of a redirect."""
DISAMBIGUATIONS = _names("""
    disambiguation; disambiguation page; disambig; disamb; dab; hndis; geodis; пояснение; desambiguació; rozcestník
    flertydig; begriffsklärung; desambiguación; desambig; homonymie; razdvojba; egyért; egyértelműsítő lap; disambigua
    dp; doorverwijspagina; ujednoznacznienie; desambiguação; dezambiguizare; неоднозначность; многозначность; razločitev
    вишезначна одредница; вишезначност; förgrening; gren; неоднозначність; disambigg; значения; значення
    olika betydelser
    """)
"""Names of templates, and words in brackets after a title."""
APPENDICES = frozenset(
    _names("""
    see also; references; notes; notes and references; footnotes; citations; sources; bibliography; further reading
    external links; works cited
    вижте също; източници; външни препратки; бележки; литература
    vegeu també; referències; notes i referències; bibliografia; enllaços externs
    související články; odkazy; reference; literatura; externí odkazy; poznámky
    se også; referencer; kilder; eksterne henvisninger; noter; litteratur
    siehe auch; einzelnachweise; literatur; weblinks; quellen; anmerkungen
    véase también; referencias; notas; notas y referencias; bibliografía; enlaces externos
    voir aussi; articles connexes; références; notes et références; bibliographie; liens externes; annexes
    povezani članci; izvori; vanjske poveznice; bilješke; poveznice
    lásd még; jegyzetek; források; külső hivatkozások; további információk; irodalom
    note; voci correlate; collegamenti esterni; altri progetti
    zie ook; bronnen; referenties; externe links; externe link; bronnen, noten en/of referenties; literatuur
    zobacz też; przypisy; linki zewnętrzne; uwagi
    ver também; referências; ligações externas
    vezi și; referințe; bibliografie; legături externe
    см. также; примечания; источники; ссылки
    glej tudi; sklici; viri; zunanje povezave
    види још; референце; извори; спољашње везе; напомене
    se även; referenser; källor; externa länkar
    див. також; примітки; джерела; посилання; література; виноски
    """)
)
"""Titles of sections with links and lists of works."""
