"""Bringing a cluster up on several machines: over ssh, from the environment, through Slurm, dstack and KubeRay.

Every launcher is one module behind the Protocol of `base.py`. What starts and joins a Ray on each node is
`devkit debug-cluster` there, so that each way gives the same cluster: debug flags on every node, one token, one record.
"""
