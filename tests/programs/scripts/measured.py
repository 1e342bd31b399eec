"""What is measured: each line of `sign` counts."""


def sign(number):
    word = "plus"  # @plus
    if number < 0:
        word = "minus"  # @minus
    return word
