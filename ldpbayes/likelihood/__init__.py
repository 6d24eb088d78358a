"""p(z | θ): the likelihood of a released value with the latent record integrated out."""

from ldpbayes.likelihood.categorical import Grouped
from ldpbayes.likelihood.channel import Channel, channel
from ldpbayes.likelihood.closed_forms import closed_form, register_closed_form
from ldpbayes.likelihood.privatized import Privatized, privatized
from ldpbayes.likelihood.regression import PrivatizedRegression
from ldpbayes.likelihood.sketch import CountSketch, PanelSketch, Sketch, sketch

__all__ = [
    "Channel",
    "CountSketch",
    "Grouped",
    "PanelSketch",
    "Privatized",
    "PrivatizedRegression",
    "Sketch",
    "channel",
    "closed_form",
    "privatized",
    "register_closed_form",
    "sketch",
]
