"""A module that workers import."""


def make_adder(number):
    def add(more):
        return number + more  # @closure

    return add
