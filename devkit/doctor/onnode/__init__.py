"""What runs on a node: the standard library only, and Ray and torch where they are what is looked at.

It travels by value, so that no node needs devkit. Its modules import each other relatively: on the cluster the package
has another name.
"""
