"""Pictures with a dark version, `NAME-dark.svg` beside `NAME.svg`: the page shows the one that
suits its theme. On GitHub, where this does not run, the light one is shown."""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class DarkPictures(SphinxTransform):
    """Puts the dark version beside the light one; MyST gives paths from the top of the pages."""

    default_priority = 500

    def apply(self) -> None:
        for light in list(self.document.findall(nodes.image)):
            path = Path(light["uri"])
            dark_path = path.with_name(f"{path.stem}-dark{path.suffix}")
            file = Path(self.env.srcdir, str(dark_path).lstrip("/"))
            if path.stem.endswith("-dark") or not file.exists():
                continue
            dark = light.deepcopy()
            dark["uri"] = str(dark_path)
            light["classes"].append("only-light")
            dark["classes"].append("only-dark")
            light.replace_self([light.deepcopy(), dark])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(DarkPictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
