"""HTML that is escaped by construction. Knows HTML, no result."""

import html


class Markup(str):
    """Text that is HTML already, which notebooks show; every other string is escaped on its way in."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Markup of {len(self):,} characters>"

    def _repr_html_(self) -> str:
        return self


def escape(text: str) -> Markup:
    """Return `text` as HTML, unless it is HTML already."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def element(tag: str, *children: str | None, **attributes: str | None) -> Markup:
    """Return one HTML element: Markup in it as it is, other text escaped, and what is None left out.

    Of the names of attributes, `class_` is class, and other underscores are hyphens.

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
    """Return the children one after the other."""
    return Markup("".join(escape(child) for child in children if child is not None))


def script_json(text: str) -> Markup:
    r"""Return JSON text that is safe inside a script element and parses to the same value.

    `<` stands only inside JSON's strings, where `\u003c` means the same; without it neither `</script>` nor `<!--`
    can end or alter the element.
    """
    return Markup(text.replace("<", "\\u003c"))
