"""Rollouts as conversations with environments: the loop, its tokens, and the processes that environments live in."""
