"""A hook of mkdocs that makes the site work when its pages are opened as files.

There the theme's scripts look for the search index as a script. Without it they stop, and the button for
dark colours does nothing. (The search itself needs a server: `mkdocs serve`, or any web server.)
"""

from pathlib import Path


def on_post_build(config, **_) -> None:
    """Write the search index of the built site as a script, beside the index itself."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(
        f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8"
    )
