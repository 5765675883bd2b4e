"""HTML that is escaped by construction. Knows HTML, no result."""

import html


class Markup(str):
    """Text that is already HTML, shown by notebooks; every other string is escaped when it is inserted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Markup of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        return self


def escape(text: str) -> Markup:
    """Return `text` escaped, unless it is HTML already."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def element(tag: str, *children: str | None, **attributes: str | None) -> Markup:
    """Return one HTML element: Markup children unchanged, other text escaped, None left out.

    In names of attributes, `class_` becomes class, and other underscores become hyphens.

    Examples:
        >>> print(element("p", "a < b", class_="note"))
        <p class="note">a &lt; b</p>
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Markup:
    """Return the children, concatenated."""
    return Markup("".join(escape(child) for child in children if child is not None))


def script_json(text: str) -> Markup:
    r"""Return JSON text that is safe inside a script element and parses to the same value.

    `<` occurs only inside JSON strings, where `\u003c` means the same; without it neither `</script>` nor `<!--`
    can end or alter the element.
    """
    return Markup(text.replace("<", "\\u003c"))
