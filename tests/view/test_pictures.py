"""Pictures in the documents show the page as it is."""

from __future__ import annotations

from hashlib import sha256

from tests.builders import ROOT


def test_the_picture_of_the_page_was_made_from_the_present_code() -> None:
    """`make pictures` makes it again. The name order is that of the shell."""
    sources = sorted((ROOT / "compose_sim" / "view" / "page").iterdir())
    made_from = (ROOT / "docs" / "pictures" / "page.made-from").read_text().strip()

    assert sha256(b"".join(path.read_bytes() for path in sources)).hexdigest() == made_from
    assert (ROOT / "docs" / "pictures" / "page.png").read_bytes().startswith(b"\x89PNG")
