"""A hook of mkdocs that writes the formulae of a page as MathML.

Browsers show MathML by themselves, so the site needs no script and no network for its mathematics. Pages
write `$...$` and `$$...$$`; the extension pymdownx.arithmatex marks them, and this hook converts what it
marked.
"""

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
# A command or an alignment mark that latex2mathml does not know stands in its output as it is.
UNKNOWN = re.compile(r"<m[a-z]+>(\\[^<]*|&)</m[a-z]+>")
MATHML = "http://www.w3.org/1998/Math/MathML"
# An operator with limits beside it, and the same with limits below and above it.
LIMITS = {f"{{{MATHML}}}msub": f"{{{MATHML}}}munder", f"{{{MATHML}}}msubsup": f"{{{MATHML}}}munderover"}


def on_page_content(content: str, page, **_) -> str:
    """Return the HTML of a page with MathML for its formulae."""
    for pattern, display in ((INLINE, "inline"), (BLOCK, "block")):
        content = pattern.sub(lambda found, to=display: to_mathml(found[1], to, page.file.src_uri), content)
    return content


def to_mathml(marked: str, display: str, page: str) -> str:
    """Return a formula as MathML.

    Args:
        marked: TeX as it stands in HTML.
        display: "inline" or "block".
        page: the page that the message names if the formula cannot be converted.
    """
    tex = html.unescape(marked).strip()
    try:
        mathml = convert(tex.replace("{aligned}", "{align*}"), display=display)
    except Exception as error:  # latex2mathml has an exception for every kind of mistake
        raise PluginError(f"{page}: the formula {tex} cannot be converted ({type(error).__name__})") from None
    if unknown := UNKNOWN.search(mathml):
        raise PluginError(f"{page}: the formula {tex} has {unknown[1]}, which latex2mathml does not know")
    return with_limits(mathml) if display == "block" else mathml


def with_limits(mathml: str) -> str:
    """Return a displayed formula with the limits of each sum below and above it.

    latex2mathml writes them beside a sum that stands between \\left and \\right. In fractions of a displayed
    formula browsers set them beside the sum all the same, as TeX does.
    """
    ElementTree.register_namespace("", MATHML)
    formula = ElementTree.fromstring(mathml)
    for part in formula.iter():
        if part.tag in LIMITS and part[0].text == "∑":
            part.tag = LIMITS[part.tag]
    return ElementTree.tostring(formula, encoding="unicode")
