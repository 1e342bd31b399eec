"""The checks of the smoke test: each looks at what a run shows and names one thing that can be broken.

Functions here are pure: records and figures in, an `Outcome` out. Each threshold is explained where it stands.
`watch.py` feeds them while the trainer runs.
"""
