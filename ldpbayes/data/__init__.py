"""What was released: releases, their files, and sketches of them; no likelihood."""

from ldpbayes.data._count_sketch import CountSketch
from ldpbayes.data._panel_sketch import PanelSketch
from ldpbayes.data._release import Release, ReleaseWarning
from ldpbayes.data._sketch import Sketch
from ldpbayes.data._sketching import sketch

__all__ = ["CountSketch", "PanelSketch", "Release", "ReleaseWarning", "Sketch", "sketch"]
