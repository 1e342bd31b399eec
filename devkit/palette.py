"""The colours of what is printed: each as legible on black as on white, since a terminal does not say which it has.

A terminal's own yellow, cyan and green are made for a dark one and vanish on white; these have fixed values. Its red,
bold and dim do on both. The trainer, which knows nothing of devkit, has the same three in `trainer/config/show.py`.
"""

from __future__ import annotations

CAUTION = "color(130)"  # what differs, what was left out, what is worth a look
NAME = "turquoise4"  # ids, places, signs that lead on
GOOD = "green4"
